"""Gold resolves, the empty patch and forgeries do not, and an infrastructure failure is never a verdict on a patch."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from swegym_env.cli.grade import read_predictions
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError, GradingError
from swegym_env.grading.evaluation import evaluation_of
from swegym_env.grading.grading import grade, grade_log, grade_many
from swegym_env.grading.task_tests import Run, TaskTests
from swegym_env.languages import Scrutiny
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox import CommandResult, writable
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests.env.calc import GOLD
from tests.env.languages.test_logs import PYTEST_LOG
from tests.places import empty_store

from .test_excluded_paths import new_file


@pytest.fixture(scope="module")
def store(public_directory: Path) -> LayerStore:
    """One layer store for all tests here: grading never changes a layer."""
    return empty_store(public_directory)


def test_gold_resolves_and_an_empty_patch_does_not(task: Task, store: LayerStore, backend: str) -> None:
    gold = grade(task, GOLD, store=store, backend=backend)
    assert (gold.resolved, gold.valid, gold.fail_to_pass, gold.pass_to_pass) == (True, True, (1, 1), (2, 2))
    assert gold.exit_code == 0
    empty = grade(task, "", store=store, backend=backend)
    assert (empty.resolved, empty.valid, empty.fail_to_pass, empty.pass_to_pass) == (False, True, (0, 1), (2, 2))
    assert empty.tests["tests.test_add.AddTest.test_add"] == "FAILED"


def test_a_test_that_is_a_deep_tree_is_read(task: Task, store: LayerStore) -> None:
    limit = sys.getrecursionlimit()
    deep = " + ".join(["add(1, 2)"] * 400)
    tests = task.test_patch.replace("add(1, 2), 3)", f"{deep}, 1200)")
    deep_task = dataclasses.replace(task, instance_id="calc-deep", test_patch=tests)
    verdict = grade(deep_task, GOLD, store=store, scrutiny=Scrutiny(1 / 1000, required=True))
    assert (verdict.valid, verdict.fail_to_pass) == (True, (1, 1))
    assert sys.getrecursionlimit() == limit


def test_text_that_is_no_patch_is_not_resolved_and_says_why(task: Task, store: LayerStore) -> None:
    words = grade(task, "I have changed the operator.\n", store=store)
    assert (words.resolved, words.valid, words.pass_to_pass) == (False, True, (2, 2))
    assert words.failure_reason == "the patch changes no file: expected a diff in the format of git"
    assert [
        grade(task, patch, store=store).failure_reason for patch in ("", "\n", new_file("tests/test_x.py", "x = 1"))
    ] == [""] * 3


def edit(new_body: str) -> str:
    """A patch that puts `new_body` (lines) in the place of the wrong line of `add`."""
    lines = new_body.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return (
        "diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
        f"@@ -1,3 +1,{2 + len(lines)} @@\n def add(a, b):\n-    return a - b\n{body} \n"
    )


def at_import(code: str) -> str:
    """A patch that runs `code` when the package under test is imported."""
    lines = code.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    return (
        "diff --git a/calc/add.py b/calc/add.py\n--- a/calc/add.py\n+++ b/calc/add.py\n"
        f"@@ -1,2 +1,{2 + len(lines)} @@\n{body} def add(a, b):\n     return a - b\n"
    )


FORGED_LINES = "\\n".join(f"test_{name} (tests.test_add.AddTest.test_{name}) ... ok" for name in ("add", "neg", "zero"))
FORGERIES = {
    "exits with success while it is imported": at_import("import os\nos._exit(0)"),
    "prints the lines of passed tests and exits": at_import(
        f'import os, sys\nprint("{FORGED_LINES}", flush=True)\nos._exit(0)'
    ),
    "prints them and lets the tests go on": at_import(f'print("{FORGED_LINES}", flush=True)'),
    "prints them at the end": at_import(
        f'import atexit, sys\natexit.register(lambda: print("{FORGED_LINES}", flush=True))'
    ),
    "prints a success of more tests at the end": at_import(
        f'import atexit\natexit.register(lambda: print("{FORGED_LINES}\\n\\nRan 3 tests in 0.1s\\n\\nOK", flush=True))'
    ),
    "skips the test from within": edit("    import unittest\n    raise unittest.SkipTest('no')"),
    "brings a conftest, a sitecustomize and a unittest of its own": new_file("conftest.py")
    + new_file("sitecustomize.py", "import os\nos._exit(0)\n")
    + new_file("unittest.py", "print('OK')\n"),
    "empties the tests": (
        "diff --git a/tests/test_add.py b/tests/test_add.py\ndeleted file mode 100644\n"
        "--- a/tests/test_add.py\n+++ /dev/null\n"
    ),
    "makes the tests a link": (
        "diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n"
        "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n"
    ),
    "changes a test in a second part without a git header": (
        GOLD.replace("return a + b", "return a - b") + "--- a/tests/test_add.py\n+++ b/tests/test_add.py\n"
        "@@ -1,3 +1,3 @@\n-import unittest\n+import math as unittest\n \n from calc.add import add, neg\n"
    ),
    "never ends": at_import("while True:\n    pass"),
}


@pytest.mark.parametrize("patch", FORGERIES.values(), ids=FORGERIES.keys())
def test_forgeries_do_not_resolve_and_stay_valid_verdicts(task: Task, store: LayerStore, patch: str) -> None:
    verdict = grade(task, patch, store=store, timeout_s=3.0)
    assert not verdict.resolved
    assert verdict.valid
    assert verdict.fail_to_pass == (0, 1) or verdict.failure_reason.startswith("invalid: forged")


def test_excluded_paths_are_reported_and_the_rest_is_graded(task: Task, store: LayerStore) -> None:
    verdict = grade(
        task, GOLD + new_file("conftest.py") + new_file("tests/test_more.py", "raise SystemExit\n"), store=store
    )
    assert verdict.resolved
    assert verdict.set_aside == ("conftest.py", "tests/test_more.py")


def test_the_official_policy_excludes_nothing(task: Task, store: LayerStore) -> None:
    cheat = (
        "diff --git a/tests/test_add.py b/tests/test_add.py\n--- a/tests/test_add.py\n+++ b/tests/test_add.py\n"
        "@@ -6,4 +6,4 @@\n class AddTest(unittest.TestCase):\n     def test_zero(self):\n"
        "-        self.assertEqual(add(1, 0), 1)\n+        self.fail()\n \n"
    )
    # The test patch's own files are brought back before it is applied, whatever the policy.
    assert grade(task, GOLD + cheat, store=store, policy="official").resolved
    shadow = GOLD + new_file("sitecustomize.py", "import os\nos._exit(3)\n")
    assert grade(task, shadow, store=store, policy="strict").resolved
    env = dataclasses.replace(task, test_command="PYTHONPATH=. python3 -m unittest -v")
    assert not grade(env, shadow, store=store, policy="official").resolved
    assert grade(env, shadow, store=store, policy="strict").resolved


def test_patches_are_applied_as_leniently_as_the_harness_does(task: Task, store: LayerStore) -> None:
    shifted = GOLD.replace("@@ -1,5 +1,5 @@", "@@ -3,5 +3,5 @@")
    assert grade(task, shifted, store=store).resolved
    fuzzy = GOLD.replace(" def neg(a):", " def negated(a):")
    assert grade(task, fuzzy, store=store).resolved
    unfit = grade(task, GOLD.replace("return a - b", "return a % b"), store=store)
    assert (unfit.resolved, unfit.valid, unfit.patch_applied) == (False, True, False)
    assert unfit.failure_reason.startswith("the patch does not apply: ")
    assert grade(task, "this is no patch at all", store=store).fail_to_pass == (0, 1)


def test_a_timeout_of_the_tests_is_a_valid_verdict_with_its_reason(task: Task, store: LayerStore) -> None:
    verdict = grade(task, edit("    import time\n    time.sleep(60)"), store=store, timeout_s=1.5)
    assert (verdict.resolved, verdict.valid) == (False, True)
    assert verdict.failure_reason == "the tests did not end within 1.5 s"


def test_an_error_in_the_task_itself_raises_a_grading_error(task: Task, store: LayerStore) -> None:
    with pytest.raises(GradingError, match="own test patch does not apply"):
        grade(dataclasses.replace(task, test_patch=task.test_patch.replace("test_neg", "test_gone")), "", store=store)
    with pytest.raises(GradingError, match="no-such-runner: command not found"):
        grade(dataclasses.replace(task, test_command="no-such-runner -v"), GOLD, store=store)
    with pytest.raises(GradingError, match="no tests to run"):
        grade(dataclasses.replace(task, test_command=""), GOLD, store=store)


RUNNER = "#!/bin/sh\nexec python3 -m unittest -v\n"
RUNS_OWN_RUNNER = "chmod +x run\n./run"
BREAKING = {
    "deletes the runner": (
        at_import("import os\nos.remove('/testbed/run')\nos._exit(127)"),
        "the tests can be run without the patch, and not with it: calc-1: the tests cannot be run: ./run: command not",
    ),
    "exits as if there were no runner": (at_import("import os\nos._exit(127)"), "the log names no test"),
    "keeps the processors busy": (
        at_import("import os\nos.system('f() { f | f & }; f')\nwhile True: os.getpid()"),
        "the tests did not end within 12 s",
    ),
    "keeps the processors busy with processes that nobody waits for": (
        at_import(
            "import os, signal\nsignal.signal(17, signal.SIG_IGN)\nfor _ in range(40):\n    if os.fork() == 0:\n"
            "        while True:\n            try:\n                os.fork() or os._exit(0)\n"
            "            except OSError:\n                pass\nwhile True:\n    pass"
        ),
        "the tests did not end within 12 s",
    ),
    "deletes the repository": (
        at_import("import os\nos.system('rm -rf /testbed/* 2>/dev/null')\nos._exit(127)"),
        "the tests can be run without the patch, and not with it: ",
    ),
    "kills the shell of a sandbox where no other starts": (
        at_import(
            "import os\nshell = int(os.popen('pgrep -o bash').read())\nos.remove('/bin')\nos.kill(shell, 9)\n"
            "while True:\n    pass"
        ),
        "the log names no test",
    ),
    "stops the shell of a sandbox where no other starts": (
        at_import("import os\nshell = int(os.popen('pgrep -o bash').read())\nos.remove('/bin')\nos.kill(shell, 19)"),
        "the tests did not end within 4 s",
    ),
}


@pytest.mark.parametrize(("patch", "reason"), BREAKING.values(), ids=BREAKING.keys())
def test_a_patch_that_keeps_the_tests_from_running_has_failed(
    task: Task, store: LayerStore, backend: str, patch: str, reason: str
) -> None:
    own_runner = dataclasses.replace(task, files={**task.files, "run": RUNNER}, test_command=RUNS_OWN_RUNNER)
    assert grade(own_runner, GOLD, store=store, backend=backend).resolved
    # On a machine that others keep busy, the share of a processor that a patch gets varies much over a few seconds.
    timeout_s = 12.0 if reason.endswith("12 s") else 4.0
    (verdict,) = grade_many([(own_runner, patch)], store=store, backend=backend, timeout_s=timeout_s)
    assert (verdict.valid, verdict.resolved, verdict.fail_to_pass) == (True, False, (0, 1)), verdict.failure_reason
    assert verdict.failure_reason.startswith(reason)
    assert verdict.patch_applied


def test_a_patch_in_the_way_of_the_tests_files_has_failed(task: Task, store: LayerStore, backend: str) -> None:
    """The tests lie in the repository, where a patch can replace a directory above them by a link to somewhere else."""
    test = task.files["tests/test_add.py"].replace("self.assertEqual(add(1, 0), 1)", "self.assertEqual(add(1, 1), 2)")
    repository = {"calc/add.py": task.files["calc/add.py"], "checks/check_add.py": test}
    odd = dataclasses.replace(
        task,
        files=repository,
        test_patch="",
        test_command="python3 -m unittest -v checks.check_add",
        fail_to_pass=("checks.check_add.AddTest.test_zero",),
        pass_to_pass=("checks.check_add.AddTest.test_neg",),
    )
    assert grade(odd, GOLD, store=store, backend=backend).resolved
    removed = "".join(f"-{line}\n" for line in test.splitlines())
    link = (
        f"diff --git a/checks/check_add.py b/checks/check_add.py\ndeleted file mode 100644\n"
        f"--- a/checks/check_add.py\n+++ /dev/null\n@@ -1,{len(test.splitlines())} +0,0 @@\n{removed}"
        "diff --git a/checks b/checks\nnew file mode 120000\n--- /dev/null\n+++ b/checks\n"
        "@@ -0,0 +1 @@\n+/usr/bin\n\\ No newline at end of file\n"
    )
    tests = TaskTests(odd, prepare_locally(odd, store=store, backend=backend), "strict", backend, 60.0)
    run = tests.run(link, watched=("checks/env",))
    verdict = tests.verdict(run)
    assert (verdict.valid, verdict.resolved, verdict.patch_applied) == (True, False, True)
    assert "checks/env cannot be written: " in verdict.failure_reason


def test_grade_many_keeps_the_order_and_marks_infrastructure_failures_invalid(task: Task, store: LayerStore) -> None:
    broken = dataclasses.replace(task, instance_id="broken", test_command="no-such-runner")
    absent = dataclasses.replace(task, instance_id="absent", files={}, base_commit="a" * 40)
    seen: list[str] = []
    rows = [(task, GOLD), (broken, GOLD), (task, ""), (absent, GOLD), (task, GOLD)] * 2
    verdicts = list(
        grade_many(
            rows,
            jobs=2,
            store=store,
            repos=store.root.parent,
            on_verdict=lambda verdict: seen.append(verdict.instance_id),
        )
    )
    assert [(v.instance_id, v.resolved, v.valid) for v in verdicts] == [
        ("calc-1", True, True),
        ("broken", False, False),
        ("calc-1", False, True),
        ("absent", False, False),
        ("calc-1", True, True),
    ] * 2
    assert "command not found" in verdicts[1].failure_reason
    assert "no clone of some/calc" in verdicts[3].failure_reason
    assert sorted(seen) == sorted(task.instance_id for task, _ in rows)


PYTEST_TASK = Task(
    instance_id="x",
    repo="a/b",
    base_commit="",
    problem_statement="",
    patch="",
    test_command="pytest -rA tests",
    fail_to_pass=("tests/test_x.py::test_a", "tests/test_x.py::test_x"),
    pass_to_pass=("tests/test_x.py::TestE::test_make_error[required-Missing",),
)


@pytest.mark.parametrize(
    ("changes", "official", "strict"),
    [
        ({}, True, True),
        ({"fail_to_pass": ("tests/test_x.py::test_f",)}, False, False),
        ({"fail_to_pass": ("tests/test_x.py::test_absent",)}, False, False),
        ({"fail_to_pass": ("tests/test_x.py::test_forged",)}, True, False),
        ({"pass_to_pass": ("[1]",)}, True, False),  # skipped: no matter to the harness
        ({"pass_to_pass": ("tests/test_x.py::test_e",), "eval_type": "fail_only"}, True, True),
        ({"pass_to_pass": ("tests/test_x.py::test_f",), "eval_type": "fail_only"}, False, False),
        ({"fail_to_pass": (), "pass_to_pass": ()}, True, True),
    ],
)
def test_a_log_gets_the_harnesses_verdict_under_official_and_a_stricter_one_under_strict(
    changes: dict[str, object], official: bool, strict: bool
) -> None:
    task = dataclasses.replace(PYTEST_TASK, **changes)  # type: ignore[arg-type]
    assert grade_log(task, PYTEST_LOG, exit_code=1, policy="official").resolved is official
    assert grade_log(task, PYTEST_LOG, exit_code=1, policy="strict").resolved is strict


def test_a_log_that_contradicts_itself_is_rejected() -> None:
    cut = PYTEST_LOG[: PYTEST_LOG.index("=== 1 failed")]
    assert "did not reach its end" in grade_log(PYTEST_TASK, cut, exit_code=1).failure_reason
    more = PYTEST_LOG.replace("XFAIL", "PASSED tests/a.py::b\nPASSED tests/a.py::c\nXFAIL")
    assert "names 5 passed tests, the test runner counted 4" in grade_log(PYTEST_TASK, more, exit_code=1).failure_reason
    assert "reported failures and exited with 0" in grade_log(PYTEST_TASK, PYTEST_LOG, exit_code=0).failure_reason
    assert grade_log(PYTEST_TASK, cut, exit_code=1, policy="official").resolved


SCRIPT = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export LANG=en_US.UTF-8
git status
python -m pip install -e '.[dev]'
git checkout aaa tests/test_x.py
git apply -v - <<'EOF_114329324912'
+: '>>>>> Start Test Output'
+rm -rf /
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_x.py
: '>>>>> End Test Output'
git checkout aaa tests/test_x.py
"""


def test_an_official_script_is_reduced_to_its_settings_and_tests() -> None:
    evaluation = evaluation_of(dataclasses.replace(PYTEST_TASK, eval_script=SCRIPT))
    assert evaluation.settings == "export LANG=C.UTF-8"  # the one that every image has
    assert evaluation.tests == "pytest -rA tests/test_x.py"
    with pytest.raises(GradingError, match="no commands between its markers"):
        evaluation_of(dataclasses.replace(PYTEST_TASK, eval_script="#!/bin/bash\npytest\n"))


@pytest.fixture
def dataset(task: Task, tmp_path: Path, store: LayerStore, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The task as a file in the SWE-bench schema, its repository in a directory of clones."""
    from swegym_env.repo.repositories import files_layer

    monkeypatch.setenv("SWEGYM_WORKDIR", str(store.root.parent))
    layer = files_layer(task.files, store)
    (tmp_path / "clones").mkdir()
    (tmp_path / "clones" / "some+calc").symlink_to(layer / "testbed")
    commit = (layer / "testbed/.git/refs/heads/main").read_text().strip()
    row = {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "base_commit": commit,
        "problem_statement": task.problem_statement,
        "patch": task.patch,
        "test_patch": task.test_patch,
        "FAIL_TO_PASS": json.dumps(task.fail_to_pass),
        "PASS_TO_PASS": json.dumps(task.pass_to_pass),
        "version": "1",
        "test_command": task.test_command,
        "log_parser": task.log_parser,
    }
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


def test_the_command_prints_one_json_object_per_instance(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["grade", "--dataset", str(dataset), "--repos", str(dataset.parent / "clones"), "--json"]
    for patch, resolved in (("gold", True), ("empty", False)):
        assert main([*arguments, "--instance", "calc-1", "--patch", patch]) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["instance_id"], row["resolved"], row["valid"]) == ("calc-1", resolved, True)
    predictions = dataset.parent / "predictions.jsonl"
    predictions.write_text(json.dumps({"instance_id": "calc-1", "model_name_or_path": "x", "model_patch": GOLD}) + "\n")
    assert main([*arguments, "--predictions", str(predictions), "-j", "2", "--logs", str(dataset.parent / "logs")]) == 0
    assert json.loads(capsys.readouterr().out)["resolved"]
    assert "Ran 3 tests" in (dataset.parent / "logs" / "calc-1.log").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instance", "calc-2", "--patch", "gold"], "calc-2"),
        (["--instance", "calc-1", "--patch", "/no/such/file"], "cannot be read"),
        (["--predictions", "/no/such/file.jsonl"], "cannot be read"),
        (["--patch", "gold", "-j", "0"], "--jobs: expected at least 1"),
        (["--patch", "gold", "--timeout", "-1"], "--timeout: expected more than 0"),
    ],
)
def test_invalid_input_is_a_one_line_error_with_exit_code_2(
    dataset: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["grade", "--dataset", str(dataset), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.json", "{", "not JSON"),
        ("p.json", "{}", "has no predictions"),
        ("p.jsonl", "\n", "has no predictions"),
        ("p.json", "3", "expected a list"),
        ("p.jsonl", '{"model_patch": "x"}', "line 1: field 'instance_id'"),
        (
            "p.jsonl",
            '{"instance_id": "a", "model_patch": 3}',
            r"line 1 \(a\): field 'model_patch': expected text, got int",
        ),
        ("p.jsonl", '{"instance_id": "a", "model_patch": ""}\n' * 2, "line 2: .*twice"),
        ("p.jsonl", '{"instance_id": "a"}', "field 'model_patch'"),
    ],
)
def test_errors_in_predictions_name_the_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_predictions(tmp_path / name)


def test_predictions_are_read_from_json_lines_lists_and_objects(tmp_path: Path) -> None:
    forms = {
        "a.jsonl": '{"instance_id": "a", "model_patch": "x"}\n\n{"instance_id": "b", "model_patch": null}\n',
        "a.json": '[{"instance_id": "a", "model_patch": "x"}, {"instance_id": "b", "model_patch": ""}]',
        "b.json": '{"a": {"model_patch": "x"}, "b": ""}',
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
        assert read_predictions(tmp_path / name) == {"a": "x", "b": ""}


def test_a_patch_that_changes_a_protected_file_in_disguise_is_forged(task: Task, store: LayerStore) -> None:
    # git rejects the second part, and `patch`, which is tried last, takes the file's name from "Index:".
    disguised = GOLD + "Index: b/sitecustomize.py\n@@ -0,0 +1 @@\n+import this\n"
    verdict = grade(task, disguised, store=store)
    assert not verdict.resolved
    assert verdict.failure_reason == "invalid: forged: the patch changes sitecustomize.py in disguise"


def test_a_full_disk_of_the_host_is_invalid_and_a_full_sandbox_is_a_verdict(
    task: Task, store: LayerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = TaskTests(task, prepare_locally(task, store=store, backend="namespace"), "strict", "namespace", 60.0)
    verdict = tests.verdict(Run(result=CommandResult("OSError: No space left on device\n", 1, limit="disk")))
    assert (verdict.valid, verdict.resolved) == (True, False)
    assert verdict.failure_reason == "the log names no test: the tests filled the sandbox's disk"
    monkeypatch.setattr(writable, "_is_tmpfs", lambda _: False)  # a layer in memory has room of its own
    monkeypatch.setattr(writable, "_LITTLE_BYTES", 1 << 60)
    monkeypatch.setattr(writable, "_PATIENCE_S", 0.2)  # nobody else is at fault
    for patch in (GOLD, ""):
        (verdict,) = grade_many([(task, patch)], store=store, backend="namespace")
        assert (verdict.valid, verdict.resolved) == (False, False)
        assert "No space left on device" in verdict.failure_reason


def test_scrutiny_can_be_set_by_the_caller(task: Task, store: LayerStore) -> None:
    plain = grade(task, GOLD, store=store, backend="namespace")
    assert (plain.resolved, plain.proof, plain.controls, plain.forgery_chance) == (True, "none", 0, None)
    usual = grade(task, GOLD, store=store, backend="namespace", scrutiny=Scrutiny(1 / 1000))
    assert (usual.resolved, usual.proof) == (True, "controls")
    assert usual.forgery_chance == 0.75 and usual.controls >= 9, (
        "of three decoys around it and itself one is next to it"
    )
    reading = grade(task, GOLD, store=store, backend="namespace", scrutiny=Scrutiny(1 / 1000, True, True))
    assert (reading.resolved, reading.failure_reason, reading.forgery_chance) == (False, "unproven", 0.8)
