"""Merged runs: the copies of a lineup beside the blind tests. They say what the tests and a lineup say apart."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swegym_env.grading import merged as merged_module
from swegym_env.grading.grading import Verdict, grade
from swegym_env.grading.task_tests import Run
from swegym_env.languages import ExpectedValue, Merged, Scrutiny
from swegym_env.languages.python.blind import make_blind
from swegym_env.languages.python.lineup import expectations
from swegym_env.languages.python.merged import make_merged
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.env.grading.points import (
    BUGGY,
    COMPUTED,
    FILES,
    GOLD,
    OLD,
    PLACE,
    REWRITE,
    TASK,
    noted_runs,
    patch_of,
    watch,
)
from tests.redteam.cases import POINT_KEYS, diff

_NEW = f"""{OLD}
    def check(self, point, x, y):
        self.assertEqual(point.x, x)
        self.assertEqual(point.y, y)

    def test_parse(self):
        expected = Point(31, 47)
        found = parse("31 47")
        self.assertEqual(found, expected)
        self.assertLess(norm(parse("-5 -3")), norm(parse("31 47")))
        self.assertEqual(norm(parse("-5 -3")), 8)

    def test_parts(self):
        self.check(parse("52 68"), 52, 68)
"""
_SENT = f"""{OLD}
    def test_parse(self):
        self.assertEqual((parse("31 4759").x, parse("31 4759").y), (31, 4759))

    def test_parts(self):
        self.assertEqual([parse("5 681234").y, norm(parse("-52 -11111"))], [681234, 11163])
"""
_INSIDE = f"""{OLD}
    def test_parse(self):
        self.assertTrue(any(parse("31 47") == each for each in [Point(31, 47), Point(47, 31)]))

    def test_parts(self):
        self.assertEqual(parse("52 68"), Point(52, 68))
"""
_BESIDE = "copies of tests ran beside them"


def _task(name: str, files: dict[str, str], gold: str, tests: str, **others: Any) -> Task:
    """The task with other files, of which `gold` repairs the points."""
    return replace(
        TASK,
        instance_id=name,
        files=files,
        patch=diff(files, {**files, "plane/points.py": gold}),
        test_patch=diff(files, {**files, "tests/test_points.py": tests}),
        **others,
    )


def _logs_of_further_runs(monkeypatch: pytest.MonkeyPatch, *modules: str) -> list[str]:
    """A list that grows with the log of each run of tests from now on that one of these modules makes."""
    logs: list[str] = []

    def note(_patch: str, _is_blind: bool, run: Run, module: str) -> None:
        if module in modules:
            assert run.result is not None
            logs.append(run.result.output)

    watch(monkeypatch, note)
    return logs


def _summary(verdict: Verdict) -> tuple[object, ...]:
    statuses = {name: verdict.tests.get(name) for name in (*TASK.fail_to_pass, *TASK.pass_to_pass)}
    return verdict.resolved, verdict.failure_reason, verdict.fail_to_pass, verdict.pass_to_pass, statuses


def test_a_merged_run_says_what_the_tests_and_a_lineup_say_apart(public_directory: Path) -> None:
    patches = {
        "only one of two values": GOLD.replace("abs(point.x) + abs(point.y)", "point.x + point.y"),
        "none": BUGGY.replace("words = text.split()", "words = list(text.split())"),
        "one that breaks another test": GOLD.replace("abs(point.x) + abs(point.y)", "8 + 0 * point.x"),
        "one without what the tests import": BUGGY.replace("def norm(", "def length("),
        "rewrite": REWRITE,  # the first to pass: what it takes to merge is found out then
    }
    store = LayerStore(public_directory / "layers")
    apart = {name: grade(TASK, patch_of(text), store=store, backend="namespace") for name, text in patches.items()}
    assert not any(_BESIDE in verdict.log for verdict in apart.values())
    assert grade(TASK, TASK.patch, store=store, backend="namespace").resolved
    merged = {name: grade(TASK, patch_of(text), store=store, backend="namespace") for name, text in patches.items()}
    assert all(_BESIDE in verdict.log for verdict in merged.values())
    assert {name: _summary(verdict) for name, verdict in merged.items()} == {
        name: _summary(verdict) for name, verdict in apart.items()
    }
    rewrite = merged["rewrite"]
    assert (rewrite.proof, rewrite.controls > 0) == ("controls", True)
    assert rewrite.forgery_chance == apart["rewrite"].forgery_chance
    assert rewrite.tests.keys() == apart["rewrite"].tests.keys()
    assert rewrite.control_duration_s < rewrite.test_duration_s < apart["rewrite"].control_duration_s


def test_slow_tests_are_merged_after_the_third_patch_that_passes(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_module, "_SLOW_S", 0.0)
    task = replace(TASK, instance_id="merged-slow")  # nothing is known of it
    store = LayerStore(public_directory / "layers")
    verdicts = [grade(task, patch_of(REWRITE), store=store, backend="namespace") for _ in range(4)]
    assert all(verdict.resolved for verdict in verdicts)
    assert [_BESIDE in verdict.log for verdict in verdicts] == [False, False, False, True]


def test_no_copy_holds_what_a_blind_run_keeps_out_of_the_sandbox(public_directory: Path) -> None:
    condition = "all(one == other for one, other in zip([found.x, found.y], [31, 47]))"
    assert condition in COMPUTED
    tests = COMPUTED.replace(condition, "'47' in str(found.y)")
    task = replace(TASK, test_patch=diff(FILES, {**FILES, "tests/test_points.py": tests}))
    store = LayerStore(public_directory / "layers")
    first, second = (grade(task, patch_of(REWRITE), store=store, backend="namespace") for _ in range(2))
    assert first.resolved
    assert second.resolved
    assert _BESIDE not in second.log


def _merged(tests: str, added: frozenset[int] = frozenset()) -> tuple[Merged | None, tuple[ExpectedValue, ...]]:
    path, name = "tests/test_points.py", f"{PLACE}.test_parse"
    found = expectations({path: tests}, [name], {})
    blinded = make_blind({path: tests}, [name], frozenset(), 0)
    assert blinded is not None
    shares = {one: (3, 2) for one in found if one.text in ("31", "47")}
    return make_merged({path: tests}, blinded, [name], {path: added}, shares, 1, sure=frozenset()), found


def test_beside_its_copies_a_test_holds_nothing_that_is_examined() -> None:
    merged, _ = _merged(_NEW)
    assert merged is not None
    (text,) = merged.files.values()
    tests = {node.name: ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert len(merged.copies) == 16
    assert "Point(0, 0)" in tests["test_parse"]
    assert "assertLess" in tests["test_parse"]  # nothing of it is examined
    assert "check" in tests["test_parts"]
    for value in ("31", "47"):
        # Among the copies that examine a place, each candidate is in two, the right one too.
        rights = [copy.name for copy in merged.copies if copy.right and copy.expectation.text == value]
        assert len(rights) == 2
        assert all(f"Point({value}," in tests[name] or f", {value})" in tests[name] for name in rights)
    assert text.split("\n").index("    def test_parse(self):") == _NEW.split("\n").index("    def test_parse(self):")


@pytest.mark.parametrize("revealing", ["47", "47.0", "'x is 47'", "norm(Point(-47, 1))"])
def test_nothing_is_merged_beside_a_new_test_that_reveals_what_is_examined(revealing: str) -> None:
    other = f"\n    def test_other(self):\n        self.assertNotEqual(parse('1 2').y, {revealing})\n"
    number = len(_NEW.splitlines())
    assert _merged(_NEW + other, frozenset({number + 3}))[0] is None
    assert _merged(_NEW + other)[0] is not None  # of the base commit, which whoever wrote the patch has seen
    assert _merged(_NEW + other.replace("47", "46"), frozenset({number + 3}))[0] is not None
    another = f"{_NEW}\n\nclass AnotherTest(unittest.TestCase):{other.replace('test_other', 'test_parse')}"
    assert _merged(another, frozenset({number + 5}))[0] is None


def test_docstrings_and_comments_tell_nothing_beside_copies() -> None:
    head = "    def test_parse(self):\n"
    assert _merged(_NEW.replace(head, f'{head}        """Both 31 and 47 count."""\n'))[0] is None
    assert _merged(_NEW.replace(head, f'{head}        """Both numbers count."""\n'))[0] is not None
    merged, _ = _merged(_NEW.replace(head, f"    # Both 31 and 47 count.\n{head}"))
    assert merged is not None and "count." not in "".join(merged.files.values())


def test_the_first_verdict_on_the_gold_patch_runs_nothing_twice(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = noted_runs(monkeypatch)
    store = LayerStore(public_directory / "layers")
    task = replace(TASK, test_patch=diff(FILES, {**FILES, "tests/test_points.py": _SENT}))
    first = grade(task, task.patch, store=store, backend="namespace")
    # Two find out what can be blind, and the last one whether the tests compare objects.
    assert kinds == ["patch blind", "empty blind", "patch blind", "patch blind"]
    again = grade(task, task.patch, store=store, backend="namespace")
    assert kinds[4:] == ["patch blind"]
    assert _summary(first) == _summary(again) and first.resolved and first.proof == again.proof == "blind"


def test_copies_and_recorded_comparisons_run_without_the_tests_that_need_no_repair(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = "import unittest\n\n\nclass NameTest(unittest.TestCase):\n    def test_name(self):\n        pass\n"
    changed = {**FILES, "tests/test_points.py": _INSIDE, "tests/test_names.py": kept}
    task = replace(
        TASK,
        instance_id="further-runs",
        test_patch=diff(FILES, changed),
        pass_to_pass=(*TASK.pass_to_pass, "tests.test_names.NameTest.test_name"),
    )
    store = LayerStore(public_directory / "layers")
    logs = _logs_of_further_runs(monkeypatch, "examination", "equality")
    assert grade(task, task.patch, store=store, backend="namespace").resolved
    assert len(logs) >= 3 and all("test_parse" in log for log in logs)
    assert not any("test_norm" in log or "test_name " in log for log in logs)


def test_controls_without_copies_run_without_the_tests_that_need_no_repair(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a test that depends on its name fail with the gold patch too."""
    tests = f"{OLD}\n    def test_parse(self):\n        text = {{'test_parse': '31 47'}}[self._testMethodName]\n"
    tests += "        self.assertTrue(norm(parse(text)) == 78)\n"
    task = replace(
        TASK,
        instance_id="separate-runs",
        test_patch=diff(FILES, {**FILES, "tests/test_points.py": tests}),
        fail_to_pass=(f"{PLACE}.test_parse",),
    )
    store = LayerStore(public_directory / "layers")
    logs = _logs_of_further_runs(monkeypatch, "examination")
    assert grade(task, patch_of(REWRITE), store=store, backend="namespace", scrutiny=Scrutiny(1 / 1000)).resolved
    logs = [log for log in logs if "copies_" not in log]
    assert len(logs) >= 2 and all("test_parse" in log for log in logs)
    assert not any("test_norm" in log for log in logs)


def test_copies_and_controls_run_beside_other_tests_where_the_gold_patch_needs_what_these_leave_behind(
    public_directory: Path,
) -> None:
    """A test of another file prepares what the copies need, and one of the same file what the controls need."""
    other = "import os\nimport unittest\n\n\nclass FirstTest(unittest.TestCase):\n    def test_first(self):\n"
    other += "        os.environ['PLANE'] = '31 47'\n"
    copied = OLD.replace("import unittest\n", "import os\nimport unittest\n")
    copied += "\n    def test_parse(self):\n        self.assertTrue(norm(parse(os.environ['PLANE'])) == 78)\n"
    single = copied.replace("(os.environ['PLANE'])", "({'test_parse': self.text}[self._testMethodName])")
    single = single.replace(
        "    def test_norm(self):\n", "    def test_norm(self):\n        type(self).text = '31 47'\n"
    )
    store = LayerStore(public_directory / "layers")
    for name, tests in (("copied", copied), ("single", single)):
        task = replace(
            TASK,
            instance_id=f"needing-{name}",
            test_patch=diff(FILES, {**FILES, "tests/test_points.py": tests, "tests/test_first.py": other}),
            fail_to_pass=(f"{PLACE}.test_parse",),
        )
        options = {"store": store, "backend": "namespace", "scrutiny": Scrutiny(1 / 1000)}
        verdict = grade(task, patch_of(REWRITE), **options)  # type: ignore[arg-type]
        assert verdict.resolved and verdict.proof == "controls" and verdict.controls, name


def test_tests_that_need_what_others_leave_behind_are_recorded_beside_them(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = _NEW.replace("    def test_norm(self):\n", "    def test_norm(self):\n        type(self).ready = True\n")
    tests = tests.replace("    def test_parse(self):\n", "    def test_parse(self):\n        self.ready\n")
    task = replace(TASK, instance_id="left-behind", test_patch=diff(FILES, {**FILES, "tests/test_points.py": tests}))
    store = LayerStore(public_directory / "layers")
    logs = _logs_of_further_runs(monkeypatch, "equality")
    assert grade(task, task.patch, store=store, backend="namespace").resolved
    assert ["test_norm" in log for log in logs] == [False, True]
    assert "FAILED" in logs[0] and "FAILED" not in logs[1]


_LEAKING = """\
class Point:
    def __init__(self, x, y, tags):
        self.x, self.y, self.tags = x, y, tags

    def __eq__(self, other):
        return key(self) == key(other)

    __hash__ = None


def key(point):
    return point.x, point.y, tuple(point.tags)


def parse(text, tags=[]):
    words = text.split()
    tags += words[2:]
    return Point(int(words[0]), int(words[1]), tags)


def width(text):
    return len(text) * 31
"""


@pytest.mark.parametrize("end", [', [Point(2, 3, ["blue"])][0])', ', *[Point(2, 3, ["blue"])])'])
@pytest.mark.parametrize("set_up", ["", "    def setUp(self):\n        parse('1 1 red')\n\n"])
def test_an_equality_that_hides_what_another_test_left_behind_is_rejected(
    end: str, set_up: str, public_directory: Path
) -> None:
    """Without the other test there is nothing to hide, and the patch compares as the gold patch does."""
    before = {**FILES, "plane/points.py": _LEAKING}
    old = "import unittest\n\nfrom plane.points import Point, parse, width\n\n\nclass PointTest(unittest.TestCase):\n"
    old += f"{set_up}    def test_norm(self):\n        self.assertEqual(parse('1 1 red').x, 1)\n"
    new = f"{old}\n    def test_parse(self):\n        self.assertEqual(width('31 47'), 162)\n"
    new += f"        self.assertEqual(parse('2 3 blue'){end}\n"
    before["tests/test_points.py"] = old
    wide = _LEAKING.replace("* 31", "* 31 + 7")
    gold = wide.replace("tags += words[2:]", "tags = words[2:]")
    task = _task("leaking", before, gold, new, fail_to_pass=(f"{PLACE}.test_parse",))
    store = LayerStore(public_directory / "layers")
    honest, hiding = (
        wide.replace("tags += words", "tags = tags + words"),
        wide.replace("(point.tags)", "(point.tags[-1:])"),
    )
    verdicts = [
        grade(task, diff(before, {**before, "plane/points.py": text}), store=store, backend="namespace")
        for text in (honest, hiding)
    ]
    assert [verdict.fail_to_pass for verdict in verdicts] == [(1, 1), (1, 1)]
    assert [verdict.resolved for verdict in verdicts] == [True, False]


def test_a_gold_patch_that_does_not_pass_is_no_repair_at_its_first_verdict_either(public_directory: Path) -> None:
    broken = replace(TASK, patch=patch_of(BUGGY.replace("words = text.split()", "words = list(text.split())")))
    store = LayerStore(public_directory / "layers")
    verdicts = [grade(broken, broken.patch, store=store, backend="namespace") for _ in range(2)]
    assert [verdict.resolved for verdict in verdicts] == [False, False]
    assert verdicts[0].fail_to_pass == verdicts[1].fail_to_pass == (0, 2)


def test_a_merged_run_counts_only_if_the_patch_passes_without_expected_values_too(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(
        TASK, instance_id="merged-inside", test_patch=diff(FILES, {**FILES, "tests/test_points.py": _INSIDE})
    )
    store = LayerStore(public_directory / "layers")
    assert grade(task, task.patch, store=store, backend="namespace").resolved  # how its tests run is found out
    kinds = noted_runs(monkeypatch)
    rewrite = grade(task, patch_of(REWRITE), store=store, backend="namespace")
    assert (rewrite.resolved, _BESIDE in rewrite.log, len(kinds)) == (True, True, 3)  # the last one asks its points
    # Its points have another content than the gold patch's: the blind tests and the lineup run separately.
    other = REWRITE.replace("self.x, self.y = x, y", "self.x, self.y, self.pair = x, y, (x, y)")
    verdict = grade(task, patch_of(other), store=store, backend="namespace")
    assert (verdict.resolved, _BESIDE in verdict.log, len(kinds) - 3) == (
        True,
        False,
        7,
    )  # once gold with the other tests
    assert verdict.controls > 0 and _summary(verdict) == _summary(rewrite)


def test_where_all_that_decides_is_compared_outside_the_tests_run_once_without_copies(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    also = '        self.assertIn("5", str(parse("5 681234").x))\n'  # the base commit passes it, and so do many values
    task = replace(
        TASK, instance_id="merged-outside", test_patch=diff(FILES, {**FILES, "tests/test_points.py": _SENT + also})
    )
    store = LayerStore(public_directory / "layers")
    first = grade(task, task.patch, store=store, backend="namespace")
    assert first.resolved and first.controls > 0
    kinds = noted_runs(monkeypatch)
    second = grade(task, patch_of(REWRITE), store=store, backend="namespace")
    assert (second.resolved, kinds, _BESIDE in second.log) == (True, ["patch blind"], False)
    assert (second.proof, second.forgery_chance) == (first.proof, first.forgery_chance)
    half = GOLD.replace("abs(point.x) + abs(point.y)", "point.x + point.y")
    assert not grade(task, patch_of(half), store=store, backend="namespace").resolved


_WARNING = "        warnings.warn(f'{name} is above')\n"
_LABELS = """
import itertools

_numbers = itertools.count(1)


def fresh():
    return next(_numbers)
"""
_NAMED = """
import warnings

from plane.labels import fresh


def named(name, text):
    point = parse(text)
    if point.y != point.x:
"""
_IN_A_BLOCK = f"""{OLD.replace("Point, norm", "Point, named, norm")}
    def test_parse(self):
        with self.assertWarns(UserWarning):
            named("a", "31 47")
            self.assertEqual(norm(parse("31 47")) == 78, len("a") == 1)
"""
_BESIDE_A_VALUE = _IN_A_BLOCK.replace(
    "def test_parse(self):", "def test_parse(self):\n        self.assertEqual(norm(parse('-5 -3')), 8)"
)


@pytest.mark.parametrize("tests", [_IN_A_BLOCK, _BESIDE_A_VALUE])
def test_what_copies_alone_would_check_is_not_graded_by_a_merged_run(public_directory: Path, tests: str) -> None:
    warning = f"{_NAMED}{_WARNING}"
    files = {**FILES, "plane/points.py": f"{BUGGY}{warning}", "plane/labels.py": _LABELS}
    name, repaired = f"merged-block-{len(tests)}", (f"{PLACE}.test_parse",)
    task = _task(name, files, f"{GOLD}{warning}", tests, fail_to_pass=repaired)
    always = warning.replace("if point.y != point.x:", "if point:")
    late = warning.replace("if point.y != point.x:", "if fresh() > 1:")
    patches = {
        "honest": f"{REWRITE}{warning}",
        "warns, and parses no better": f"{BUGGY.replace('x + point.y', 'x + abs(point.y)')}{always}",
        "warns from the second call on": f"{REWRITE}{late}",
    }
    store = LayerStore(public_directory / "layers")
    assert grade(task, task.patch, store=store, backend="namespace").resolved
    found = {
        name: grade(task, diff(files, {**files, "plane/points.py": text}), store=store, backend="namespace").resolved
        for name, text in patches.items()
    }
    assert found == {name: name == "honest" for name in patches}


def test_copies_that_leave_something_behind_fail_no_other_test(public_directory: Path) -> None:
    tests = f"""{COMPUTED.replace("norm, parse", "norm, parse, fresh")}
    def test_z(self):
        self.assertLess(fresh(), 9)
"""
    files = {**FILES, "plane/labels.py": _LABELS, "plane/points.py": f"from plane.labels import fresh\n\n{BUGGY}"}
    rewrite, gold = (files["plane/points.py"].replace(BUGGY, text) for text in (REWRITE, GOLD))
    counting = rewrite.replace("words = text.split()", "words, _ = text.split(), fresh()")
    task = _task("merged-behind", files, gold, tests, pass_to_pass=(f"{PLACE}.test_norm", f"{PLACE}.test_z"))
    store = LayerStore(public_directory / "layers")
    assert grade(task, task.patch, store=store, backend="namespace").resolved
    merged, apart = (
        grade(task, diff(files, {**files, "plane/points.py": text}), store=store, backend="namespace")
        for text in (rewrite, counting)
    )
    assert (merged.resolved, _BESIDE in merged.log) == (True, True)
    assert (apart.resolved, _BESIDE in apart.log) == (True, False)


_EQUAL_BY_KEY = """\
from plane.keys import key, split


class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return key(self) == key(other)

    __hash__ = None


def parse(text):
    return Point(*split(text))
"""
_OF_OBJECTS = """\
import unittest

from plane.keys import width
from plane.points import Point, parse


class PointTest(unittest.TestCase):
    def test_kind(self):
        self.assertIsInstance(parse("1 1"), Point)
"""
_DECIDES_INSIDE = f"""{_OF_OBJECTS}
    def test_parse(self):
        self.assertEqual(parse("31 47"), Point(31, 47))
        self.assertEqual(width("31 47"), 162)

    def test_widths(self):
        found = [width("abc"), width("abcde")]
        self.assertTrue(all(one == other for one, other in zip(found, [100, 162])))
"""
_WIDE = POINT_KEYS.replace("* 31", "* 31 + 7")
_SECOND = _WIDE.replace("int(words[0])\n", "int(words[1])\n")
_OWN = "\n\nclass Own:\n    calls = 0\n\n    def get(self):\n        return Own\n"
_WITH_HELPER = (
    _SECOND.replace("int(words[0]), int(words[1])", "numbers(words)")
    + "\n\ndef numbers(words):\n    return int(words[0]), int(words[1])\n"
)
_OPEN = _DECIDES_INSIDE.replace(
    '        self.assertEqual(width("31 47"), 162)\n',
    '        self.assertEqual(width("31 47"), 162)\n'
    '        self.assertTrue(all(one.y > 46 for one in [parse("31 47")]))\n',
)
_WEAKER = _WIDE.replace("return point.x, point.y", "return point.x")
_LATE = (
    _WIDE.replace(
        "    return int(words[0]), int(words[0])\n",
        "    Own().get().calls = Own().get().calls + 1\n"
        "    return int(words[0]), int(words[1 if Own().get().calls > 2 else 0])\n",
    )
    + _OWN
)
# Gold patch, tests, attack. No test fails with the equality, and screening does not see the state of the others.
_HALF_REPAIRS = {
    "an equality that leaves a number out": (_SECOND, _DECIDES_INSIDE, _WEAKER),
    "the same, and the gold patch is no plain edit": (_WITH_HELPER, _DECIDES_INSIDE, _WEAKER),
    "right from the third call on, in copies": (_SECOND, _DECIDES_INSIDE, _LATE),
    "the same, and no run without expected values is possible": (_SECOND, _OPEN, _LATE),
}
_TWIN = _SECOND.replace(
    "    words = text.split()\n", "    words = text.split()\n    Own().get().calls = Own().get().calls + 1\n"
)


def _of_objects(gold: str, tests: str) -> tuple[Task, Callable[[str], str]]:
    """A task whose points compare by a key, and what makes a patch of the text of its file."""
    files = {
        "plane/__init__.py": "",
        "plane/keys.py": POINT_KEYS,
        "plane/points.py": _EQUAL_BY_KEY,
        "tests/__init__.py": "",
        "tests/test_points.py": _OF_OBJECTS,
    }

    def patch(text: str) -> str:
        return diff(files, {**files, "plane/keys.py": text})

    task = replace(
        TASK,
        instance_id="merged-objects",
        patch=patch(gold),
        test_patch=diff(files, {**files, "tests/test_points.py": tests}),
        fail_to_pass=(f"{PLACE}.test_parse", f"{PLACE}.test_widths"),
        pass_to_pass=(f"{PLACE}.test_kind",),
        files=files,
    )
    return task, patch


@pytest.mark.parametrize("attack", _HALF_REPAIRS)
def test_half_a_repair_gains_nothing_by_merged_runs(public_directory: Path, attack: str) -> None:
    gold, tests, forged = _HALF_REPAIRS[attack]
    task, patch = _of_objects(gold, tests)
    store = LayerStore(public_directory / "layers")
    grade(task, task.patch, store=store, backend="namespace")
    twin = grade(task, patch(_TWIN + _OWN), store=store, backend="namespace")
    assert twin.resolved
    assert _BESIDE in twin.log
    assert not grade(task, patch(forged), store=store, backend="namespace").resolved


_APART = """\
        self.assertEqual(parse("31 47"), Point(31, 47))
        self.assertEqual(width("31 47"), 162)
"""
_ALONE_OUTSIDE = '        self.assertEqual((width("31 47"), parse("31 47")), (162, Point(31, 47)))\n'
_NOT_SENT = '        self.assertTrue(all(one > 0 for one in [width("31 47")]))\n'


def test_a_comparison_of_which_only_a_part_is_made_outside_is_copied(public_directory: Path) -> None:
    assert _APART in _DECIDES_INSIDE
    task, patch = _of_objects(_SECOND, _DECIDES_INSIDE.replace(_APART, _ALONE_OUTSIDE + _NOT_SENT))
    store = LayerStore(public_directory / "layers")
    for _ in range(2):  # with the first one it is found out what can be merged
        assert grade(task, task.patch, store=store, backend="namespace").resolved
    assert not grade(task, patch(_WEAKER), store=store, backend="namespace").resolved


def test_a_test_is_not_covered_by_the_one_value_that_is_drawn(
    public_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, patch = _of_objects(_SECOND, _DECIDES_INSIDE)
    store = LayerStore(public_directory / "layers")
    grade(task, task.patch, store=store, backend="namespace")
    assert _BESIDE in grade(task, patch(_TWIN + _OWN), store=store, backend="namespace").log
    monkeypatch.setattr(merged_module, "MOST_COPIES", 4)  # one value of each test: often one that needs no copies
    for _ in range(5):
        assert not grade(task, patch(_WEAKER), store=store, backend="namespace").resolved
