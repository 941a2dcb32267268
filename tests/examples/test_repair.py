"""The parts of the repair example: its text, its edits and its scaffold. `test_examples.py` runs the whole."""

import argparse
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import gymnasium
from hypothesis import given
from hypothesis import strategies as st

from swegym_env.env import SWEBenchEnv
from swegym_env.tasks.data import mini
from tests.programs import ROOT


def _loaded():
    if "repair" not in sys.modules:
        spec = importlib.util.spec_from_file_location("repair", ROOT / "examples" / "repair.py")
        sys.modules["repair"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["repair"])
    return sys.modules["repair"]


repair = _loaded()
LINES = st.lists(st.sampled_from("abc"), max_size=6)


def _edited(before, at, text):
    return [*before[:at], *text.split("\n"), *before[at + 1 :]]


@given(before=LINES, at=st.integers(0, 6), old=st.integers(0, 2), new=st.lists(st.sampled_from("abc"), max_size=3))
def test_an_edit_of_one_line_makes_the_change(before, at, old, new):
    at = min(at, len(before))
    after = [*before[:at], *new, *before[at + old :]]
    edits = list(repair.edits_of(before, after))
    for place, text in edits:
        # An empty text removes its line.
        assert (_edited(before, place, text) if text else [*before[:place], *before[place + 1 :]]) == after
    if before != after and len(before[at : at + old]) <= 1 and before:
        assert edits


CODE = st.text(st.sampled_from('ab_1 .:()<=+"\n'), max_size=90)


@given(before=st.lists(CODE, min_size=1, max_size=4), at=st.integers(0, 3), text=CODE)
def test_three_answers_make_an_edit_and_are_among_those_that_may_be_given(before, at, text):
    at = min(at, len(before) - 1)
    assert "".join(repair.pieces_of(text)) == text and len(repair.pieces_of(text)) < repair.SHOWN_LINES
    dialogue = repair.Dialogue(before)
    for answer in repair.answers_of(before, (at, text)):
        assert dialogue.text is None
        assert answer in dialogue.info.get("legal_actions", [answer])
        dialogue.answer(answer)
    assert (dialogue.at, dialogue.text) == (at, text)


def test_the_answers_name_the_shortest_span():
    codes = ["def area(a, b):", "    return a + b"]
    assert repair.answers_of(codes, (1, "    return a * b")) == ["L2:", "L3:L4:", " *"]
    assert repair.answers_of(codes, (1, "    return int(a) + b")) == ["L2:", "L2:L3:", " int(a)"]
    dialogue = repair.Dialogue(codes)
    dialogue.answer("L2:")
    assert dialogue.observation == "L1:    returnL2: aL3: +L4: bL5:"
    assert len(dialogue.info["legal_actions"]) == 5 * 6 // 2 and "L5:L5:" in dialogue.info["legal_actions"]
    dialogue.answer("L3:L4:")
    assert dialogue.observation == " +" and dialogue.info == {}


def test_functions_are_read_without_what_needs_no_repair():
    content = '''"""Module."""
class Shelf:
    @property
    def full(self):
        """Whether nothing fits.

        Really.
        """
        # counted

        return len(self) >= self.size


def empty(): return Shelf()
'''
    found = list(repair.functions_of("shelf.py", content))
    assert [described for described, _ in found] == ["Whether nothing fits.\n\nReally.", ""]
    shelf, empty = (lines for _, lines in found)
    assert [line.function for line in shelf] == [("shelf.py", "Shelf.full")] * 3
    assert [(line.number, line.indent, line.code) for line in shelf] == [
        (3, 4, "@property"),
        (4, 4, "def full(self):"),
        (11, 4, "    return len(self) >= self.size"),
    ]
    assert [(line.number, line.code) for line in empty] == [(14, "def empty(): return Shelf()")]


def test_the_function_that_an_issue_names_is_shown_first():
    functions = [lines for _, lines in repair.functions_of("f.py", "def a(x): return x\n\n\ndef b(y): return y\n")]
    assert repair.chosen("What b returns is wrong", functions)[0].function == ("f.py", "b")
    assert repair.chosen("What a returns is wrong", functions)[0].function == ("f.py", "a")
    long = [lines for _, lines in repair.functions_of("f.py", "def a(x):\n" + "    x += 1\n" * repair.SHOWN_LINES)]
    assert repair.chosen("a", [*functions, *long]) and repair.chosen("a", long) == []


def test_the_scaffold_shows_and_carries_out_the_repairs_of_training_tasks():
    tasks = mini.load("train")
    removed, replaced, slashed = (
        next(task for task in tasks if wanted(task))
        for wanted in (
            lambda task: "\n-" not in task.patch.partition("+++")[2] and _reachable(task),
            lambda task: "\n-" in task.patch.partition("+++")[2] and _reachable(task),
            lambda task: any("\\" in line for line in task.patch.split("\n") if line[:1] == "+") and _reachable(task),
        )
    )
    env = repair.OneEdit(SWEBenchEnv(tasks=[removed, replaced, slashed], sandbox="namespace", **_arguments()))
    for task in (removed, replaced, slashed):
        observation, info = env.reset(options={"instance_id": task.instance_id})
        at, text = repair.gold_edit(env.get_wrapper_attr("task"), env.shown)
        assert observation.startswith(task.problem_statement[:60])
        assert f"\n{repair.LABELS[at]}{env.shown[at].code}" in observation
        assert info["legal_actions"] == repair.LABELS[: len(env.shown)]
        assert repair.play(env, (at, env.shown[at].code))[1]["resolved"] is False  # what was there
        env.reset(options={"instance_id": task.instance_id})
        _, info = repair.play(env, (at, text))
        assert info["resolved"], (task.instance_id, info["patch"])
    env.close()


def _arguments():
    return {name: value for name, value in repair.TASKS.items() if name != "dataset"}


def _reachable(task):
    files = {path: text for path, text in task.files.items() if path.endswith(".py") and not path.startswith("tests/")}
    functions = [lines for path, text in files.items() for _, lines in repair.functions_of(path, text)]
    return repair.gold_edit(task, repair.chosen(task.problem_statement, functions)) is not None


def test_random_edits_change_one_line_and_are_python():
    functions = [lines for _, lines in repair.functions_of("f.py", "def a(x, y):\n    if x < y:\n        return x\n")]
    edits = repair.all_edits(functions[0])
    assert (1, "    if x <= y:") in edits and (1, "    if x > y:") in edits
    for at, text in edits:
        codes = [line.code for line in functions[0]]
        compile("\n".join(_edited(codes, at, text)), "f.py", "exec")
        assert text != codes[at]


def test_what_is_held_out_is_read_nowhere(tmp_path):
    names = [f"package{number}" for number in range(100)]
    held_out = next(name for name in names if repair.is_held_out(name))
    trained = [name for name in names if not repair.is_held_out(name)][:3]
    copied = "def scaled(x, y):\n    if x < y:\n        return x * y\n    return x - y\n"
    for number, name in enumerate([held_out, *trained, "jsonpatch", "swegym_env"]):
        folder = tmp_path / "source" / name
        (folder / "tests").mkdir(parents=True)
        own = f"def own{number}(a, b):\n    total = a + {number}\n    total -= b\n    return total if b else -total\n"
        (folder / "code.py").write_text(f"{copied}\n\n{own}")
        (folder / "tests" / "code.py").write_text(own)
    repair.prepare(argparse.Namespace(source=[tmp_path / "source"], functions=12, seed=3), tmp_path)

    read = sorted(line.split(" ", 2)[:2] for line in (tmp_path / "files.txt").read_text().splitlines())
    assert read == [["test", held_out], *(["train", name] for name in trained)]
    rows = [json.loads(line) for line in (tmp_path / "held_out.jsonl").read_text().splitlines()]
    repaired = ["\n".join(_edited(row["lines"], *row["repair"])) for row in rows]
    assert any(copied.strip() in text for text in repaired) and any("own0" in text for text in repaired)
    for text in repaired:
        compile(text, "f.py", "exec")
    for name in ("reading.jsonl", "repairs.jsonl"):
        text = (tmp_path / name).read_text()
        assert "scaled" not in text and "own0" not in text and "own1" in text


def test_the_source_text_of_this_machine_gives_repairs(tmp_path):
    roots = [Path(os.__file__).parent]
    repair.prepare(argparse.Namespace(source=roots, functions=30, seed=3), tmp_path)
    repairs = [json.loads(line)["messages"] for line in (tmp_path / "repairs.jsonl").read_text().splitlines()]
    assert len(repairs) == 30
    for shown, label, pieces, span, old, new in (tuple(message["content"] for message in each) for each in repairs):
        line = re.split(r"L\d+:", pieces)
        assert f"\n{label}{''.join(line)}" in shown and old != new
        first, last = (int(number) for number in re.findall(r"\d+", span))
        assert "".join(line[first:last]) == old


def test_a_library_repair_is_one_point_for_the_line_and_one_for_the_text(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"issue": "add", "lines": ["def add(a, b):", "    return a - b"], "repair": [1, "y"]}))
    env = gymnasium.make("LibraryRepair-v0", file=str(file))
    observation, info = env.reset(seed=0)
    assert observation == "add\nL1:def add(a, b):\nL2:    return a - b" and info["legal_actions"] == ["L1:", "L2:"]
    assert repair.play(env, (1, "y")) == (2.0, {"resolved": True})
    for edit, score in (((1, "z"), 1.0), ((0, "y"), 0.0)):
        env.reset(seed=0)
        assert repair.play(env, edit) == (score, {"resolved": False})
