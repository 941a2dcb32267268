"""What version 0.1 wrote is read: a run with its checkpoint, model and batch, recordings, evaluations, verdicts.

The files under `formats/0.1` were written by that version, and are never written anew. A later format gets a folder
beside it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from swe_trainers.cli.main import main_eval
from swe_trainers.config import read_config
from swe_trainers.experiment import run_experiment
from swe_trainers.logging import read_metrics
from swe_trainers.model.language_model import LanguageModel
from swe_trainers.provenance import read_provenance
from swe_trainers.report.page import write_report
from swe_trainers.rollout.trajectory import read_trajectories
from swe_trainers.run_config import run_config
from swegym_env.cli.main import main
from swegym_env.errors import ConfigurationError
from swegym_env.grading.reports import RunDirectory, run_report
from swegym_env.recording.record import read_record

WRITTEN = Path(__file__).parent / "formats" / "0.1"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, in the working directory."""
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_is_resumed_from_its_checkpoint(written: Path) -> None:
    learner = run_experiment(run_config(read_config("run/config.yaml")), console=False)
    assert learner.updates == 1  # it was finished, with the settings that it has
    longer = run_config(read_config("run/config.yaml", ["--trainer.max_updates", "2"]))
    assert run_experiment(longer, console=False, resume="changed").updates == 2
    assert [row["update"] for row in read_metrics("run/metrics.jsonl")] == [0, 1, 2]
    assert "resumed from 00000001 (1 updates" in Path("run/training.log").read_text()


def test_model_batch_and_report_are_read(written: Path) -> None:
    assert LanguageModel.load("run/model").max_positions == 128
    trained = read_provenance(written / "run")
    assert trained is not None and trained.environment.id == "FrozenLake-v1"
    episodes = read_trajectories(written / "run" / "batches" / "00000000.jsonl")
    assert len(episodes) == 2 and all(len(each.token_ids) > 0 for each in episodes)
    assert "FrozenLake-v1" in write_report(["run"]).read_text()
    assert main_eval(["run", "--episodes", "1"]) == 0


def test_evaluation_is_compared(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_eval(["compare", "evaluation", "evaluation", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in Path("evaluation/results.jsonl").read_text().splitlines()]
    assert read_record(written / "evaluation" / rows[0]["episode"]).turns


def test_recording_is_read_and_viewed(written: Path) -> None:
    assert [turn.action for turn in read_record(written / "episode").turns] == ["ls", "submit"]
    assert main(["view", "episode", "--output", "page.html"]) == 0
    assert "submit" in Path("page.html").read_text()


def test_verdicts_are_not_graded_again(written: Path) -> None:
    (row,) = RunDirectory(written / "graded").finished().values()
    assert (row["instance_id"], row["resolved"]) == ("mini-edit__train-0", True)
    report = json.loads(Path("graded/report.json").read_text())
    again = run_report(["mini-edit__train-0"] * report["total_instances"], {row["instance_id"]: "x"}, [row])
    assert again == {**report, "format": 1}  # version 0.1 wrote none


def test_grading_goes_on_beside_a_report_of_version_01_and_gives_it_a_format(written: Path) -> None:
    rows = ["--dataset", "mini-edit", "--instance", "mini-edit__train-0", "--patch", "gold", "--sandbox", "namespace"]
    before = json.loads(Path("graded/report.json").read_text())
    assert "format" not in before
    assert main(["grade", *rows, "--output", "graded"]) == 0
    after = json.loads(Path("graded/report.json").read_text())
    assert (after["format"], after["resolved_ids"]) == (1, before["resolved_ids"])
    Path("graded/report.json").write_text(json.dumps({**after, "format": 2}))
    assert main(["grade", *rows, "--output", "graded"]) == 2
    assert json.loads(Path("graded/report.json").read_text())["format"] == 2  # not replaced
    Path("graded/report.json").write_text("[]")
    with pytest.raises(ConfigurationError, match="no report of swegym grade"):
        RunDirectory(written / "graded")


def test_formats_of_a_later_version_are_refused(written: Path) -> None:
    results = written / "graded" / "results.jsonl"
    results.write_text(json.dumps({**json.loads(results.read_text()), "format": 2}) + "\n")
    with pytest.raises(ConfigurationError, match="of format 2, this version reads 1"):
        RunDirectory(written / "graded").finished()
    meta = written / "episode" / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 2}))
    with pytest.raises(ConfigurationError, match="format"):
        read_record(written / "episode")


def test_evaluation_of_this_version_has_its_format_and_a_later_one_is_refused(written: Path) -> None:
    folder = Path("new")
    assert main_eval(["run", "--episodes", "1", "--output", str(folder)]) == 0
    for name in ("settings.json", "summary.json", "results.jsonl"):
        assert json.loads((folder / name).read_text())["format"] == 1
    assert main_eval(["run", "--episodes", "1", "--output", str(folder), "--resume"]) == 0
    assert main_eval(["compare", "evaluation", str(folder)]) == 0  # of version 0.1, which wrote no format
    for name in ("settings.json", "results.jsonl"):
        before = (folder / name).read_text()
        (folder / name).write_text(before.replace('"format": 1', '"format": 2'))
        assert main_eval(["run", "--episodes", "1", "--output", str(folder), "--resume"]) == 2
        (folder / name).write_text(before)
