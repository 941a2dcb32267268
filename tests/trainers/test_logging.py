"""A run's directory: metrics, log lines, progress bars and the other logging back ends."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from loguru import logger

from swe_trainers.errors import ConfigurationError
from swe_trainers.logging import Run, read_metrics
from swe_trainers.report.curves import plot_metrics
from swe_trainers.rollout.rate import pace


def test_metrics_are_one_json_object_per_line_and_non_finite_numbers_are_null(tmp_path):
    with Run(tmp_path, console=False) as run:
        run.record(1, {"stage": "ppo", "loss": math.nan, "nested": {"inf": -math.inf}, "list": [1.5, math.nan]})
        run.record(2, {"stage": "ppo", "loss": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert (first["update"], first["loss"], first["nested"], first["list"]) == (1, None, {"inf": None}, [1.5, None])
    assert second["loss"] == 0.5


def test_rewinding_removes_the_rows_of_a_stage_after_the_checkpoint(tmp_path):
    with Run(tmp_path, console=False) as run:
        for update in (1, 2, 3):
            run.record(update, {"stage": "cloning"})
            run.record(update, {"stage": "ppo"})
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"update": 4, "stage": "pp')  # interrupted in the middle of a line
        run.rewind("ppo", 1)
        run.record(2, {"stage": "ppo", "again": True})
    rows = [(row["stage"], row["update"]) for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert rows == [("cloning", 1), ("ppo", 1), ("cloning", 2), ("cloning", 3), ("ppo", 2)]


def test_a_log_has_only_the_lines_of_its_run(tmp_path):
    with Run(tmp_path / "a", console=False) as first, Run(tmp_path / "b", console=False) as second:
        first.info("to the first {braces}")
        second.warning("to the second")
        logger.info("without a run")
    assert "to the first {braces}" in (tmp_path / "a" / "training.log").read_text()
    assert (tmp_path / "b" / "training.log").read_text().count("\n") == 1
    assert "without a run" not in (tmp_path / "a" / "training.log").read_text()


@pytest.mark.parametrize("name", ["lr={1e-3}", "{time}", "{{x}}"])
def test_the_log_is_in_the_directory_also_where_that_has_braces(name, tmp_path):
    with Run(tmp_path / name, console=False) as run:
        run.info("a line")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert "a line" in (tmp_path / name / "training.log").read_text()


def test_frequent_lines_are_left_out_on_the_console_but_not_in_the_log(tmp_path, capsys):
    lines = [f"line {number}" for number in range(9)]
    with Run(tmp_path) as run:
        for line in lines:
            run.info(line, frequent=line not in {"line 4", "line 8"})
    shown = [line.split("  ")[-1].strip() for line in capsys.readouterr().err.splitlines()]
    assert [line[-6:] for line in shown] == ["line 0", "line 4", "line 8"]
    logged = (tmp_path / "training.log").read_text().splitlines()
    assert [line[-6:] for line in logged] == lines and all(" INFO " in line for line in logged)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_progress_bar_shortens_its_description_and_nothing_else(tmp_path, monkeypatch, capsys, columns):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal to rich
    monkeypatch.setenv("COLUMNS", str(columns))
    shares = {"episode_time/model": 0.24, "episode_time/environment": 0.61, "episode_time/tests": 0.15}
    described = f"ppo {pace({'episodes_per_second': 14.2, **shares})}"
    with Run(tmp_path) as run, run.progress(described, 120, done=43):
        pass
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).splitlines()
    line = next(line for line in reversed(shown) if "43/120" in line)
    assert re.fullmatch(r"ppo 14\.2 episodes/s.*… ━[━╸╺]+ +43/120 0:00:0\d remaining \S*:\S*:\S* *", line)
    assert len(line) <= columns


def test_only_one_process_can_write_to_a_run(tmp_path):
    with Run(tmp_path, console=False), pytest.raises(ConfigurationError, match="another process is writing this run"):
        Run(tmp_path, console=False)
    Run(tmp_path, console=False).close()


def test_a_directory_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write a run here"):
        Run(tmp_path / "file" / "run", console=False)


def test_log_lines_are_written_to_the_console(tmp_path, capsys):
    with Run(tmp_path) as run, run.progress("outer", 2) as bar, run.progress("inner", 3):
        run.info("half [bold]way[/bold]")
        bar.advance()
    assert "half [bold]way[/bold]" in capsys.readouterr().err


def test_log_lines_can_be_json_objects(tmp_path, capsys):
    with Run(tmp_path, json_logs=True) as run:
        run.info('update 1 {of} "2"')
        run.detail("two\nlines")
    shown = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    kept = [json.loads(line) for line in (tmp_path / "training.log").read_text().splitlines()]
    assert shown == kept[:1] and [line["message"] for line in kept] == ['update 1 {of} "2"', "two\nlines"]
    assert [line["level"] for line in kept] == ["INFO", "DEBUG"] and all("T" in line["time"] for line in kept)


@pytest.mark.parametrize("json_logs", [False, True])
def test_text_that_utf8_cannot_represent_is_logged_with_an_escape(tmp_path, json_logs):
    with Run(tmp_path, console=False, json_logs=json_logs) as run:
        run.warning("1 of 4 episodes is invalid: OSError: no file naïve\udce9")
    (line,) = (tmp_path / "training.log").read_text(encoding="utf-8").splitlines()
    assert r"no file naïve\udce9" in line
    assert not json_logs or json.loads(line)["message"].endswith("naïve\udce9")


def test_tensorboard_gets_the_finite_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Run(tmp_path, console=False, loggers={"tensorboard": {}}) as run:
        run.record(5, {"stage": "ppo", "loss": 0.25, "bad": math.nan})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(5, 0.25)]


def test_a_back_end_whose_package_is_missing_is_an_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match=r"Try, in a clone of swegym-env: pip install '\.\[wandb\]'"):
        Run(tmp_path, console=False, loggers={"wandb": {"project": "p"}})
    Run(tmp_path, console=False).close()


class Collected:
    """A custom logging back end."""

    package = "pytest"
    rows: ClassVar[list[tuple[int, dict[str, float]]]] = []

    def __init__(self, directory: Path, *, prefix: str) -> None:
        self._prefix = prefix

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((update, {self._prefix + name: value for name, value in metrics.items()}))

    def close(self) -> None:
        self.rows.append((-1, {}))


def test_a_custom_back_end_is_named_by_module_and_class(tmp_path):
    with Run(tmp_path, console=False, loggers={f"{__name__}:Collected": {"prefix": "a/"}}) as run:
        run.record(3, {"stage": "ppo", "loss": 0.5})
    assert Collected.rows == [(3, {"a/loss": 0.5}), (-1, {})]
    for loggers, message in (
        ({"tensorbord": {}}, "Did you mean 'tensorboard'"),
        ({"tensorboard": {"project": "p"}}, "loggers.tensorboard: .*project"),
        ({"no_such_module:Logger": {}}, "no_such_module"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Run(tmp_path, console=False, loggers=loggers)
    Run(tmp_path, console=False).close()


def test_curves_are_drawn_for_the_metrics_that_exist(tmp_path):
    with Run(tmp_path, console=False) as run:
        run.record(0, {"stage": "ppo", "eval/success": 0.1})
        for update in range(1, 4):
            run.record(update, {"stage": "ppo", "loss": 1 / update, "explained_variance": math.nan})
    plot_metrics(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    from PIL import Image

    with Image.open(tmp_path / "curves.png") as image:
        assert image.width > 800 and image.height > 200
    assert not list(tmp_path.glob("*partial*"))
