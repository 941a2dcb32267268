"""Audits find what tests accept although it is wrong, and never call an equivalent rewrite wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from swegym_env.auditing.audit import Audit, audit
from swegym_env.auditing.gold import GoldPatch
from swegym_env.auditing.rewrites import REWRITES, rewrite
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError
from swegym_env.repo.differ import differ
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.data import mini_c
from swegym_env.tasks.task import Task, task_to_row

BASE = """\
def clamp(value, low, high):
    return value


def sign(value):
    '''Of a number.'''
    return 1
"""
GOLD = """\
def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def sign(value):
    '''Of a number: -1, 0 or 1.'''
    return (value > 0) - (value < 0)
"""


def patch_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    sides = [{path: (0o100644, text.encode()) for path, text in side.items()} for side in (before, after)]
    return "".join(differ().diff(*sides).values())


def task_with(*assertions: str, base: str = BASE, gold: str = GOLD) -> Task:
    tests = "import unittest\n\nfrom numbers_ import clamp, sign\n\n\nclass Test(unittest.TestCase):\n"
    for number, assertion in enumerate(assertions):
        tests += f"    def test_{number}(self):\n        self.{assertion}\n\n"
    return Task(
        instance_id="numbers-1",
        repo="some/numbers",
        base_commit="",
        problem_statement="clamp does not clamp",
        patch=patch_of({"numbers_.py": base}, {"numbers_.py": gold}),
        test_patch=patch_of({}, {"tests/test_numbers.py": tests}),
        fail_to_pass=tuple(f"tests.test_numbers.Test.test_{number}" for number in range(len(assertions))),
        pass_to_pass=(),
        files={"numbers_.py": base, "tests/__init__.py": ""},
        test_command="python3 -m unittest -v",
        log_parser="unittest",
    )


WEAK = task_with("assertEqual(clamp(-7, 0, 5), 0)")
STRONG = task_with(
    "assertEqual([clamp(n, 2, 5) for n in (1, 2, 3, 5, 6)], [2, 2, 3, 5, 5])",
    "assertEqual([sign(n) for n in (-4, -1, 0, 1, 4)], [-1, -1, 0, 1, 1])",
    "assertEqual(clamp(2.5, 2, 5), 2.5)",
)


def audited(task: Task, store: LayerStore, tmp_path: Path, mutants: int = 100) -> Audit:
    return audit(task, mutants=mutants, store=store, place=tmp_path, backend="namespace")


def test_what_weak_tests_accept_survives_and_is_shown(store: LayerStore, tmp_path: Path) -> None:
    found = audited(WEAK, store, tmp_path)
    assert not found.is_broken
    assert not found.false_rejects
    changes = "\n".join(one.change for one in found.survivors)
    assert "-    if value > high:\n+    if value < high:" in changes.replace("numbers_.py", "")  # nothing tests it
    assert "-    if value < low:\n+    if value > low:" not in changes
    # Nothing tests the upper bound or the second function: the patch is not needed there.
    left_out = [one.name for one in found.survivors if one.kind == "partial"]
    assert left_out == ["numbers_.py:6 left out"]
    assert found.mutation_score is not None and 0 < found.mutation_score < 1


def test_strong_tests_leave_only_equivalent_mutants(store: LayerStore, tmp_path: Path) -> None:
    found = audited(STRONG, store, tmp_path)
    assert found.count("mutant") >= 15
    assert found.count("partial") == 2
    assert found.count("rewrite") == len(REWRITES)
    assert not found.false_rejects
    # `value < low` or `value <= low`: the value that it returns is the same.
    assert {one.name for one in found.survivors} <= {"wrong-boundary"}
    assert found.mutation_score is not None and found.mutation_score > 0.8


def test_an_audit_continues_and_is_not_made_twice(store: LayerStore, tmp_path: Path) -> None:
    few = audited(WEAK, store, tmp_path, mutants=3)
    (record,) = tmp_path.iterdir()
    rows = len(record.read_text().splitlines())
    assert rows == 1 + 3 + few.count("partial") + few.count("rewrite")
    record.write_text(record.read_text() + '{"kind": "mutant", "na')  # the machine died
    assert audited(WEAK, store, tmp_path, mutants=3) == few
    more = audited(WEAK, store, tmp_path, mutants=5)
    assert set(few.variants) < set(more.variants)
    assert len(record.read_text().splitlines()) == rows + 1 + 2  # with the line that was cut off


def test_a_variant_that_never_ends_does_not_survive(store: LayerStore, tmp_path: Path) -> None:
    base = BASE.replace("    return 1\n", "    return 1 if value else 2\n")
    gold = GOLD.replace(
        "    return (value > 0) - (value < 0)\n", "    while abs(value) > 1:\n        value = value // 2\n"
    )
    gold += "    return value\n"
    task = task_with("assertEqual(sign(2), 1)", "assertEqual(sign(0), 0)", base=base, gold=gold)
    found = audit(task, mutants=100, store=store, place=tmp_path, backend="namespace", timeout_s=3)
    late = [one for one in found.variants if "did not end within" in one.reason]
    assert late
    assert not any(one.resolved for one in late)


def test_a_hunk_of_comments_is_no_partial_repair(store: LayerStore, tmp_path: Path) -> None:
    far = "\n\n\n".join(f"def other_{number}():\n    return {number}" for number in range(6)) + "\n"
    task = task_with(
        "assertEqual(sign(-3), -1)",
        base=far + BASE,
        gold="# The numbers.\n" + far + BASE.replace("    return 1\n", "    return (value > 0) - (value < 0)\n"),
    )
    found = audited(task, store, tmp_path, mutants=0)
    assert [one.kind for one in found.variants if one.kind != "rewrite"] == ["gold", "partial"]
    assert not found.survivors


def test_a_task_that_cannot_be_audited_is_named(store: LayerStore, tmp_path: Path) -> None:
    broken = dataclasses.replace(WEAK, fail_to_pass=("tests.test_numbers.Test.test_absent",))
    found = audited(broken, store, tmp_path)
    assert found.is_broken
    assert len(found.variants) == 1
    with pytest.raises(ConfigurationError, match="needs a gold patch"):
        audited(dataclasses.replace(WEAK, patch=""), store, tmp_path)
    with pytest.raises(ConfigurationError, match="its language is c"):
        audited(next(iter(mini_c.load())), store, tmp_path)


REWRITTEN = '''\
PAGE = "a\x0cb"


class Shelf:
    \x0c
    @staticmethod
    def total(prices, *, factor=2):
        """Sum them.

    Not indented.
        """
        text = """one
two"""
        whole = sum(price * factor for price in prices)
        if len(prices) > 2 and text == "one\\ntwo":
            kept = [price for price in prices if price]
        else:
            kept = prices
        if not prices:
            return f"nothing of {whole!r}, {kept}"
        elif factor > 2:
            return (whole, len(kept))
        return [whole + number for number, _ in enumerate(kept)]  # each
'''


@pytest.mark.parametrize("how", [how for how in REWRITES if how != "extra-files"])
def test_rewrites_have_another_text_and_the_same_effect(how: str) -> None:
    lines = frozenset(range(1, REWRITTEN.count("\n") + 1))
    changed = REWRITES[how](REWRITTEN, lines)
    assert changed != REWRITTEN
    assert changed.startswith('PAGE = "a\x0cb"\n\n\nclass Shelf:\n    \x0c\n')
    outcomes = []
    for text in (REWRITTEN, changed):
        space: dict[str, type] = {}
        exec(text, space)
        total = space["Shelf"].total  # type: ignore[attr-defined]
        calls = [((),), (([1, 0, 4]),), (([1, 2]),)]
        outcomes.append([total.__doc__, *(total(*call, factor=factor) for call in calls for factor in (1, 3))])
    assert outcomes[0] == outcomes[1]
    assert REWRITES[how](REWRITTEN, frozenset({1})) == REWRITTEN  # no function was changed


def test_a_rewrite_is_a_patch_of_the_base_commit(tmp_path: Path) -> None:
    (tmp_path / "numbers_.py").write_text(BASE)
    gold = GoldPatch.of(WEAK.patch, tmp_path)
    assert gold.with_files({}) == WEAK.patch
    patches = {how: rewrite(gold, how) for how in REWRITES}
    assert "+def test_reproduced_issue" in patches["extra-files"]
    assert "-def " not in patches["reformatted"]
    assert "own_" not in patches["renamed-locals"]  # parameters keep their names
    assert "returned_value = (value > 0) - (value < 0)" in patches["restructured"]


def test_variables_that_a_generator_of_parsers_reads_keep_their_names() -> None:
    text = "def make():\n    tokens = ['A']\n    return {}(module='a')\n"
    for call, changes in (("ply.yacc.yacc", False), ("lex", False), ("other", True)):
        renamed = REWRITES["renamed-locals"](text.format(call), frozenset({2}))
        assert ("own_tokens" in renamed) is changes


def test_the_command_prints_survivors_and_exits_with_1(
    store: LayerStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "tasks.jsonl"
    rows.write_text(json.dumps(task_to_row(WEAK)) + "\n")
    monkeypatch.setenv("SWEGYM_WORKDIR", str(store.root.parent))
    arguments = ["audit", "--dataset", str(rows), "--mutants", "6", "--sandbox", "namespace"]
    assert main(arguments) == 1
    assert "  survives: " in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["survivors"] and not summary["false_rejects"]
    assert (summary["mutants"], summary["broken"]) == (6, False)
    assert main(["audit", "--dataset", "mini-c", "--select", ":1", "--sandbox", "namespace"]) == 2


def test_a_function_below_a_decorator_in_parentheses_is_printed_whole() -> None:
    text = "@(\n    mark\n)\ndef f():\n    return  1\n"
    assert REWRITES["reformatted"](text, frozenset({5})) == "@mark\ndef f():\n    return 1\n"
