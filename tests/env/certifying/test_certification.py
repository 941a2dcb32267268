"""Certification distinguishes sound tasks from flaky, order-dependent, blind and broken ones, and names the tests."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import gymnasium
import pytest

import swegym_env  # noqa: F401 - registers the environment
from swegym_env.certifying.certification import certify
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError
from swegym_env.grading.certificates import Certificate, Record, Trial, find_certificate, trusted
from swegym_env.languages.python.setup import TABLE_VARIABLE
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task, TaskSet, task_to_row
from tests.env.wheels import pytest_files


def with_test(task: Task, body: str, *, name: str = "test_other", before: str = "") -> Task:
    """The task with one more test, which PASS_TO_PASS names."""
    files = dict(task.files)
    files["tests/test_other.py"] = (
        f"import os, random, sys, time, unittest\n\n{before}\n\nclass OtherTest(unittest.TestCase):\n"
        f"    def {name}(self):\n        {body}\n\n    def test_z(self):\n        pass\n"
    )
    passing = (*task.pass_to_pass, f"tests.test_other.OtherTest.{name}", "tests.test_other.OtherTest.test_z")
    return dataclasses.replace(task, files=files, pass_to_pass=passing)


def certified(task: Task, store: LayerStore, tmp_path: Path, trials: int = 2) -> Certificate:
    return certify(task, trials=trials, store=store, place=tmp_path, backend="namespace")


def test_a_sound_task_has_full_trust_and_is_certified_only_once(task: Task, store: LayerStore, tmp_path: Path) -> None:
    assert find_certificate(task, tmp_path) is None
    found = certified(task, store, tmp_path)
    assert (found.status, found.trust, found.reason) == ("sound", 1.0, "")
    assert [(one.patch, one.seed, one.order, one.loaded) for one in found.trials] == [
        ("gold", 0, "own", False),
        ("empty", 0, "own", False),
        ("gold", 1, "own", True),
        ("empty", 1, "own", True),
        ("gold", 2, "reversed", False),
        ("gold", 3, "shuffled", False),
        ("control", 0, "own", False),
        ("control", 1, "own", False),
    ]
    (record,) = tmp_path.iterdir()
    made = record.read_bytes()
    record.write_bytes(made + b'{"patch": "gold", "se')  # the next one was being written when the machine died
    assert certified(task, store, tmp_path) == found == find_certificate(task, tmp_path)
    assert record.read_bytes().startswith(made)
    changed = dataclasses.replace(task, test_command=task.test_command + " ")
    assert find_certificate(changed, tmp_path) is None
    for lines in (2, -1):  # a run that was stopped has no verdict yet, before its last control either
        record.write_bytes(b"".join(made.splitlines(keepends=True)[:lines]))
        assert find_certificate(task, tmp_path) is None


def test_trials_hold_for_one_set_up(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another set-up other tests may pass: nothing is left of what was tried with a table's error."""
    tables = [tmp_path / f"{version}.yaml" for version in ("wrong", "corrected")]
    for table in tables:
        table.write_text(f"own/calc: [{{commands: [make {table.stem}], test_command: pytest}}]\n")
    from_table = dataclasses.replace(task, repo="own/calc", version="1", setup=(), files={})
    monkeypatch.setenv(TABLE_VARIABLE, str(tables[0]))
    Record(from_table, tmp_path).add(Trial("gold", 0))
    assert Record(from_table, tmp_path).trials
    monkeypatch.setenv(TABLE_VARIABLE, str(tables[1]))
    assert not Record(from_table, tmp_path).trials


@pytest.mark.parametrize(
    "body",
    [
        "self.assertNotEqual(hash('b') % 2, COIN)",  # another with each hash seed
        "self.assertLess(random.random(), 0.5)",
        "self.assertEqual(time.time_ns() // 10**6 % 2, 0)",
    ],
    ids=["hash-seed", "random", "time"],
)
def test_a_random_test_makes_a_task_flaky_and_is_named(
    body: str, task: Task, store: LayerStore, tmp_path: Path
) -> None:
    chancy = with_test(task, body, before="COIN = hash('b') % 2 if os.environ['PYTHONHASHSEED'] == '1' else 2")
    found = certified(chancy, store, tmp_path, trials=8)
    assert found.status == "flaky"
    assert found.flaky_tests == ("tests.test_other.OtherTest.test_other",)
    assert 0 < found.trust < 1
    assert "flaky: tests.test_other.OtherTest.test_other" in found.reason


def test_an_order_dependent_test_is_named(task: Task, store: LayerStore, tmp_path: Path) -> None:
    # `test_z` runs after it in the own order, and before it in the reversed one.
    needy = with_test(task, "self.assertFalse(SEEN)", before="SEEN = []")
    files = {
        **needy.files,
        "tests/test_other.py": needy.files["tests/test_other.py"].replace("pass\n", "SEEN.append(1)\n"),
    }
    found = certified(dataclasses.replace(needy, files=files), store, tmp_path)
    assert (found.status, found.flaky_tests) == ("order-dependent", ())
    assert found.order_dependent_tests == ("tests.test_other.OtherTest.test_other",)
    assert any(one.repeat for one in found.trials)


def test_pytest_runs_tests_in_other_orders_too(store: LayerStore, tmp_path: Path) -> None:
    order = "def test_a():\n    SEEN.append('a')\n\ndef test_b():\n    assert 'a' in SEEN\n\n"
    order += "def test_new():\n    import thing\n    assert thing.x\n"
    with_pytest = Task(
        instance_id="thing-1",
        repo="some/thing",
        base_commit="",
        problem_statement="x",
        patch="diff --git a/thing.py b/thing.py\n--- a/thing.py\n+++ b/thing.py\n@@ -1 +1 @@\n-x = 0\n+x = 1\n",
        fail_to_pass=("test_it.py::test_new",),
        pass_to_pass=("test_it.py::test_a", "test_it.py::test_b"),
        files={"thing.py": "x = 0\n", "test_it.py": f"SEEN = []\n\n{order}", **pytest_files("installed")},
        test_command="PYTHONPATH=installed:$PYTHONPATH python3 -m pytest -rA test_it.py",
    )
    found = certified(with_pytest, store, tmp_path, trials=1)
    assert (found.status, found.order_dependent_tests) == ("order-dependent", ("test_it.py::test_b",))


def test_broken_tasks_are_detected(task: Task, store: LayerStore, tmp_path: Path) -> None:
    unsolved = dataclasses.replace(task, patch=task.patch.replace("a + b", "a * b + 5"))
    found = certified(unsolved, store, tmp_path, trials=1)
    assert (found.status, found.broken_tests) == ("broken", task.fail_to_pass + task.pass_to_pass[:1])
    solved = dataclasses.replace(task, fail_to_pass=task.pass_to_pass[:1])
    found = certified(solved, store, tmp_path, trials=1)
    assert found.status == "broken"
    assert "empty resolves in 1 of 1 trials" in found.reason


# What calls a test that fails a success: any patch that makes the import work would do.
SWALLOWING = """
class AddTest(unittest.TestCase):
    def run(self, result=None):
        try:
            getattr(self, self._testMethodName)()
        except AssertionError:
            pass
        result.startTest(self), result.addSuccess(self), result.stopTest(self)
"""


def test_a_task_whose_gold_patch_passes_a_control_is_blind(task: Task, store: LayerStore, tmp_path: Path) -> None:
    swallowing = task.files["tests/test_add.py"].replace("\nclass AddTest(unittest.TestCase):\n", SWALLOWING)
    shown = swallowing.replace("(add(1, 0), 1)", "(add(1, 0), 1)\n\n    def test_new(self):\n        import calc.new")
    gold = (
        task.patch + "diff --git a/calc/new.py b/calc/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/calc/new.py\n"
    )
    blind = dataclasses.replace(
        task,
        patch=f"{gold}@@ -0,0 +1 @@\n+x = 1\n",
        test_patch="",
        files={**task.files, "tests/test_add.py": shown},
        fail_to_pass=("tests.test_add.AddTest.test_new",),
    )
    found = certified(blind, store, tmp_path, trials=1)
    assert (found.status, found.trust) == ("blind", 0.0)
    assert [one.right for one in found.trials] == [True, True, True, True, False, False]
    (first, _) = found.passed_controls
    assert first.reason == "tests.test_add.AddTest.test_new"
    assert first.change.startswith("+++ tests/test_add.py\n")
    assert (
        "gold passes 2 of 2 negative controls: tests.test_add.AddTest.test_new (+++ tests/test_add.py" in found.reason
    )
    assert find_certificate(blind, tmp_path) == found


def test_a_task_without_changeable_tests_has_no_controls(task: Task, store: LayerStore, tmp_path: Path) -> None:
    shell = "python3 -c 'from calc.add import add; exit(add(1, 2) != 3)' && s=PASSED || s=FAILED; echo \"$s sum\""
    other = dataclasses.replace(
        task, test_patch="", fail_to_pass=("sum",), pass_to_pass=(), test_command=shell, log_parser="pytest"
    )
    found = certified(other, store, tmp_path, trials=1)
    assert (found.status, found.trust) == ("sound", 1.0)
    assert {one.reason for one in found.trials if one.patch == "control"} == {"no hidden test can be changed"}


def test_the_command_reports_broken_tasks_and_the_environment_excludes_them(
    task: Task,
    public_directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = public_directory / "certified"
    monkeypatch.setenv("SWEGYM_WORKDIR", str(work))
    broken = dataclasses.replace(task, instance_id="calc-2", patch=task.patch.replace("a + b", "a - 2 * b"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(task_to_row(one)) + "\n" for one in (task, broken)))
    certify_rows = ["certify", "--dataset", str(rows), "-n", "1", "-j", "2", "--sandbox", "namespace"]
    assert main([*certify_rows, "--json"]) == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["instance_id"], first["status"], first["trust"]) == ("calc-1", "sound", 1.0)
    assert (second["status"], second["broken_tests"]) == (
        "broken",
        list(task.fail_to_pass),
    )  # `a - 2 * b` passes the others
    before = {path: os.stat(path).st_mtime_ns for path in (work / "certificates").iterdir()}
    assert main([*certify_rows, "--instance", "calc-1"]) == 0
    assert "calc-1" in capsys.readouterr().out
    assert before == {path: os.stat(path).st_mtime_ns for path in (work / "certificates").iterdir()}

    with gymnasium.make("SWEBench-v0", dataset=str(rows), trust=1.0, sandbox="namespace") as env:
        seen = [env.reset(seed=seed)[1] for seed in range(3)]
    assert {(info["instance_id"], info["trust"]) for info in seen} == {("calc-1", 1.0)}
    tasks = TaskSet([task, broken])
    assert trusted(tasks, 0.0).ids == ("calc-1", "calc-2")
    other = TaskSet([dataclasses.replace(task, problem_statement="another")])
    with pytest.raises(ConfigurationError, match=r"none of the 1 tasks .* Try: swegym certify"):
        trusted(other, 0.5)
    with pytest.raises(ConfigurationError, match="from 0 to 1"):
        trusted(tasks, 2)


def test_invalid_arguments_are_one_line_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["-n", "0"], "--trials: expected at least 1"),
        (["-j", "0"], "--jobs: expected at least 1"),
        (["--timeout", "nan"], "--timeout: expected more than 0"),
        (["--instance", "nobody"], "no instance 'nobody'"),
    ):
        assert main(["certify", "--dataset", "mini", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
