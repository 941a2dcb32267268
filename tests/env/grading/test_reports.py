"""`swegym grade --output`: the reports of the harness, and runs that resume."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from swegym_env.cli.main import main
from swegym_env.grading.reports import RunDirectory, instance_report, run_report
from swegym_env.grading.verdict import grade_log
from swegym_env.languages.official import official_module
from swegym_env.tasks.task import Task, task_to_row
from tests.env.calc import GOLD
from tests.env.languages.test_logs import PYTEST_LOG

from .test_grading import at_import

FORGED = at_import(
    "import os\nos.write(2, b'"
    + "".join(f"test_{name} (tests.test_add.AddTest.test_{name}) ... ok\\n" for name in ("add", "neg", "zero"))
    + "\\nRan 3 tests in 0.1s\\n\\nOK\\n')\nos._exit(0)"
)


def test_the_report_of_an_instance_equals_the_harnesses(tmp_path: Path) -> None:
    task = Task(
        "x-1", "psf/requests", "", "p", "p",
        fail_to_pass=("tests/test_x.py::test_a", "tests/test_x.py::test_f", "absent"),
        pass_to_pass=("tests/test_x.py::test_path[/file.txt]", "[1]", "tests/test_x.py::test_x"),
    )  # fmt: skip
    grading = official_module("grading")
    assert grading is not None
    log = tmp_path / "test_output.txt"
    log.write_text(f">>>>> Start Test Output\n{PYTEST_LOG}\n>>>>> End Test Output\n")
    spec = SimpleNamespace(
        repo=task.repo, version="2.0", instance_id="x-1",
        FAIL_TO_PASS=list(task.fail_to_pass), PASS_TO_PASS=list(task.pass_to_pass),
    )  # fmt: skip
    prediction = {"instance_id": "x-1", "model_name_or_path": "m", "model_patch": GOLD}
    expected = grading.get_eval_report(spec, prediction, str(log), include_tests_status=True)
    verdict = grade_log(task, PYTEST_LOG, policy="official")
    assert instance_report(task, GOLD, verdict, "official") == expected


def row(name: str, resolved: bool, valid: bool = True) -> dict[str, object]:
    return {"instance_id": name, "resolved": resolved, "valid": valid}


def test_the_report_of_a_run_counts_everything_once() -> None:
    patches = {"a": "x", "b": "x", "c": "x", "d": ""}
    report = run_report(["a", "b", "c", "d", "e"], patches, [row("a", True), row("b", False), row("c", False, False)])
    assert {key: value for key, value in report.items() if not key.endswith("_ids")} == {
        "total_instances": 5,
        "submitted_instances": 4,
        "completed_instances": 2,
        "resolved_instances": 1,
        "unresolved_instances": 1,
        "empty_patch_instances": 1,
        "error_instances": 1,
        "schema_version": 2,
        "format": 1,
    }
    assert report["incomplete_ids"] == ["e"]
    assert (report["resolved_ids"], report["unresolved_ids"], report["error_ids"]) == (["a"], ["b"], ["c"])


@pytest.fixture
def graded(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_directory: Path) -> list[str]:
    """`swegym grade` on a dataset of two tasks: a repair, and a forged log."""
    import dataclasses

    monkeypatch.setenv("SWEGYM_WORKDIR", str(public_directory / "reports"))
    tasks = [task, dataclasses.replace(task, instance_id="calc-2")]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(task_to_row(task))}\n" for task in tasks))
    patches = [{"instance_id": "calc-1", "model_patch": GOLD}, {"instance_id": "calc-2", "model_patch": FORGED}]
    (tmp_path / "predictions.json").write_text(json.dumps(patches))
    return ["grade", "--dataset", f"{tmp_path}/rows.jsonl", "--predictions", f"{tmp_path}/predictions.json",
            "--sandbox", "namespace"]  # fmt: skip


def test_a_run_writes_reports_and_resumes(
    graded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    command = [*graded, "-j", "2", "--output", str(output)]
    assert main(command) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[0].split()[:2] == ["instance", "verdict"]
    assert "resolved 1 of 2 (1 forged, policy strict)" in table
    report = json.loads((output / "report.json").read_text())
    assert (report["resolved_ids"], report["unresolved_ids"]) == (["calc-1"], ["calc-2"])
    one = json.loads((output / "calc-1" / "report.json").read_text())["calc-1"]
    assert one["tests_status"]["FAIL_TO_PASS"] == {"success": ["tests.test_add.AddTest.test_add"], "failure": []}
    assert "Ran 3 tests" in (output / "calc-1" / "test_output.txt").read_text()
    assert (output / "calc-1" / "patch.diff").read_text() == GOLD

    results = output / "results.jsonl"
    first, second = results.read_text().splitlines(keepends=True)
    results.write_text(first + second[:40])  # as a run that was killed leaves it
    assert main(command) == 0
    assert "resolved 1 of 2 (1 forged, 1 known from before, policy strict)" in capsys.readouterr().out
    assert [line[:1] + line[-1:] for line in results.read_text().splitlines()][-1] == "{}"
    assert main(command) == 0
    assert "2 known from before" in capsys.readouterr().out


def test_a_change_of_patch_or_setting_is_graded_again(task: Task) -> None:
    keys = {
        RunDirectory.key(task, patch, policy, timeout, chance)  # type: ignore[arg-type]
        for patch in ("a", "b") for policy in ("strict", "official") for timeout in (None, 3.0)
        for chance in (None, 0.1, 3.0)
    }  # fmt: skip
    assert len(keys) == 24


def test_the_largest_chance_of_forgery_is_an_option(graded: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*graded, "--max-forgery-chance", "0.0001", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["resolved"] for row in rows] == [True, False]
    assert main([*graded, "--max-forgery-chance", "1"]) == 2
    assert "--max-forgery-chance: expected more than 0 and less than 1, got 1" in capsys.readouterr().err
    assert main([*graded, "--max-forgery-chance", "0.1", "--policy", "official"]) == 2
    assert "has no effect with --policy official" in capsys.readouterr().err


def test_policy_both_reports_where_the_policies_differ(
    graded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*graded, "--policy", "both", "--output", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "the policies differ on 1 of the instances" in output
    (found,) = json.loads((tmp_path / "out" / "differences.json").read_text())
    assert (found["instance_id"], found["strict"], found["official"]) == ("calc-2", False, True)
    assert found["reason"].startswith("invalid: forged")
    official = json.loads((tmp_path / "out" / "report.official.json").read_text())
    assert official["resolved_ids"] == ["calc-1", "calc-2"]


def test_options_without_effect_and_unwritable_outputs_are_errors(
    graded: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*graded, "--repos", str(tmp_path)]) == 2
    assert "--repos" in (message := capsys.readouterr().err)
    assert "has no effect" in message
    (tmp_path / "file").write_text("")
    assert main([*graded, "--output", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.jsonl").write_text("{}\n")
    assert main([*graded, "--output", str(tmp_path / "other")]) == 2
    assert "no results of swegym grade" in capsys.readouterr().err
