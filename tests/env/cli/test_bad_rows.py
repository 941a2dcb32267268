"""A malformed row costs itself, not its dataset: every command skips it, says so, and stops only if asked to."""

from __future__ import annotations

import io
import json
from pathlib import Path

import gymnasium
import pytest

from swegym_env.cli.main import main
from swegym_env.errors import TaskFormatError
from swegym_env.tasks.datasets import load_tasks
from swegym_env.tasks.task import task_to_row
from tests.env.calc import calc_task


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """One good row among five bad ones."""
    good = task_to_row(calc_task())
    bad = [good | {"instance_id": f"bad-{number}", "patch": number} for number in range(5)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (bad[0], good, *bad[1:])))
    return str(path)


def assert_reported(error: str) -> None:
    lines = error.splitlines()
    assert lines[0] == "swegym: skipped 5 malformed rows (--strict-rows stops at them):"
    assert [f"(instance bad-{number}): field 'patch'" in line for number, line in enumerate(lines[1:4])] == [True] * 3
    assert lines[4] == "swegym:   and 2 more"


def test_tasks_and_grade_skip_bad_rows(dataset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "--dataset", dataset]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("calc-1 ") and out.count("\n") == 1
    assert_reported(err)
    assert main(["grade", "--dataset", dataset, "--predictions", "gold"]) == 0
    out, err = capsys.readouterr()
    assert "calc-1" in out and "resolved" in out
    assert_reported(err)


def test_run_skips_bad_rows_as_grade_does(
    dataset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"submit\n")))
    assert main(["run", "--dataset", dataset]) == 0
    out, err = capsys.readouterr()
    assert "resolved: False" in out
    assert_reported(err)


@pytest.mark.parametrize(
    "command", [["tasks"], ["grade", "--predictions", "gold"], ["run"]], ids=lambda words: words[0]
)
def test_strict_rows_stop_at_the_first(dataset: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--dataset", dataset, "--strict-rows"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "row 1 (instance bad-0): field 'patch': expected" in line


@pytest.mark.parametrize("command", [["tasks"], ["grade", "--patch", "gold"], ["run"]], ids=lambda words: words[0])
def test_instance_whose_row_is_bad_is_named_with_its_reason(
    dataset: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--dataset", dataset, "--instance", "bad-4"]) == 2
    assert "row 6 (instance bad-4): field 'patch'" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["mini", "mini-edit"])
def test_shown_task_is_a_row(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = load_tasks(name, select=":1")[0]
    for suffix, options in ((".jsonl", ["--json"]), (".json", [])):
        assert (
            main(["tasks", "--dataset", name, "--select", ":1", "--instance", task.instance_id, "--full", *options])
            == 0
        )
        text = capsys.readouterr().out
        path = tmp_path / f"row{suffix}"
        path.write_text(text if suffix == ".jsonl" else f"[{text}]")
        assert list(load_tasks(str(path))) == [task]


def test_environments_skip_bad_rows_with_one_warning(dataset: str) -> None:
    with pytest.warns(UserWarning, match="skipped 5 malformed rows") as warned:
        env = gymnasium.make("SWEBench-v0", dataset=dataset)
    assert env.get_wrapper_attr("instance_ids") == ("calc-1",)
    (message,) = [str(each.message) for each in warned if "malformed" in str(each.message)]
    options = "on_bad_row='raise', or strict_rows=True of an environment,"
    assert_reported("swegym: " + message.replace(options, "--strict-rows").replace("\n", "\nswegym: "))
    with pytest.raises(TaskFormatError, match="bad-0"):
        gymnasium.make("SWEBench-v0", dataset=dataset, strict_rows=True)


def test_environments_of_answers_skip_bad_rows_too(tmp_path: Path) -> None:
    path = tmp_path / "code.jsonl"
    good = {"instance_id": "a", "code": "x = 1", "vulnerable": 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in (good, good | {"instance_id": "b", "vulnerable": "?"})))
    with pytest.warns(UserWarning, match=r"skipped 1 malformed row \(.*strict_rows=True"):
        env = gymnasium.make("VulnerabilityDetection-v0", dataset=str(path))
    assert env.get_wrapper_attr("instance_ids") == ("a",)
    with pytest.raises(TaskFormatError, match="'vulnerable'"):
        gymnasium.make("VulnerabilityDetection-v0", dataset=str(path), strict_rows=True)
