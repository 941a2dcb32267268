"""With `--json-logs` every line on standard error is a JSON object with the same fields, whichever the program."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from loguru import logger

from swe_trainers.cli.main import main as swe_train
from swe_trainers.cli.main import main_eval as swe_eval
from swe_trainers.logging import start_json_logs
from swegym_env.cli.options import start_json_logs as start_swegym_logs
from tests.places import public_directory
from tests.programs import ROOT
from tests.trainers.tiny import lake_run


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a program sets up for itself ends with the test."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [*root.handlers])
    monkeypatch.setattr(root, "level", root.level)
    yield
    logger.remove()
    logging.captureWarnings(capture=False)


def levels_and_messages(text: str) -> list[tuple[str, str]]:
    """Of log lines, each of which is a JSON object with the fields that all programs write."""
    found = []
    for line in text.splitlines():
        fields = json.loads(line)
        assert {"time", "level", "message"} <= set(fields) <= {"time", "level", "message", "exception"}
        assert datetime.fromisoformat(fields["time"]).tzinfo is not None
        found.append((fields["level"], fields["message"]))
    return found


def serve(*arguments: str, rundir: Path) -> tuple[int, str]:
    """Start a server, end it by SIGTERM once it listens; its exit code and standard error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SWEGYM_TOKEN": "t" * 32, "SWEGYM_RUNDIR": str(rundir)}
    command = [sys.executable, "-m", "swegym_env.cli.main", *arguments, "--port", "0", "--json-logs"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline():
            process.send_signal(signal.SIGTERM)
        return process.wait(120), process.communicate()[1]


@pytest.mark.parametrize("arguments", [("serve",), ("pool", "--nodes", "http://127.0.0.1:9")])
def test_servers_log_their_beginning_and_their_end(arguments: Sequence[str], tmp_path: Path) -> None:
    more = ("--state", str(tmp_path / "leases")) if arguments[0] == "pool" else ()
    with public_directory("rundir") as rundir:
        code, errors = serve(*arguments, *more, rundir=rundir)
        lines = levels_and_messages(errors)
        assert code == 0
        assert [level for level, _ in lines] == ["INFO"] * 3
        assert lines[0][1].startswith("listening at http://127.0.0.1:")
        assert [text for _, text in lines[1:]] == ["draining for at most 600 s", "ended"]
        code, errors = serve(*arguments, *more, "--lease", "0", rundir=rundir)
        assert (code, levels_and_messages(errors)) == (2, [("ERROR", "--lease, --drain: expected seconds, got 0, 600")])


def test_training_and_evaluation_log_the_same_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(lake_run(tmp_path)))
    assert swe_train(["run.yaml", "--json-logs"]) == 0
    trained = capsys.readouterr()
    assert trained.out == "" and any(text.startswith("done: 2 updates") for _, text in levels_and_messages(trained.err))

    assert swe_eval(["run", "--episodes", "2", "--json-logs"]) == 0
    shown = capsys.readouterr()
    assert [text[:5] for _, text in levels_and_messages(shown.err)] == ["[1/2]", "[2/2]"]
    assert shown.out.splitlines()[-1] == "look at the report: python -m webbrowser run/evaluation/report.html"

    options = ["--model", "run", "--episodes", "1", "--max-turns", "3", "--json", "--json-logs"]
    assert swe_eval(options) == 0
    shown = capsys.readouterr()
    lines = levels_and_messages(shown.err)
    assert [level for level, _ in lines] == ["INFO", "WARNING"]
    assert lines[1][1] == "--max-turns 3: the model was trained with 4"
    assert [set(json.loads(line)) >= {"instance_id"} for line in shown.out.splitlines()] == [True, False]

    for program, arguments in ((swe_train, ["none.yaml"]), (swe_eval, ["none"])):
        assert program([*arguments, "--json-logs"]) == 2
        ((level, text),) = levels_and_messages(capsys.readouterr().err)
        assert level == "ERROR" and "none" in text


def test_libraries_are_logged_alike_with_their_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    start_json_logs()
    logging.getLogger("a.library").info("too much")
    logging.getLogger("a.library").warning('%s of "two"\nlines', 1)
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("a.library").exception("failed")
        logger.exception("failed {}", "again")
    text = capsys.readouterr().err
    expected = [("WARNING", '1 of "two"\nlines'), ("ERROR", "failed"), ("ERROR", "failed again")]
    assert levels_and_messages(text) == expected
    raised = [json.loads(line).get("exception") for line in text.splitlines()]
    assert raised[0] is None and all(each.endswith("ValueError: wrong\n") for each in raised[1:])


@pytest.mark.parametrize("start", [start_json_logs, lambda: start_swegym_logs(Namespace(json_logs=True))])
def test_warnings_of_python_are_log_lines_too(start: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    start()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)  # pytest collects warnings itself, so begin anew inside of it
        start()
        warnings.warn("old\nfashioned", DeprecationWarning, stacklevel=1)
    ((level, text),) = levels_and_messages(capsys.readouterr().err)
    assert level == "WARNING" and "DeprecationWarning: old\nfashioned" in text


def test_own_levels_of_a_library_are_logged_by_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    start_json_logs()
    logging.addLevelName(35, "NOTICE")
    for level in (35, 33):
        logging.getLogger("a.library").log(level, "of level %d", level)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("Level 35", "of level 35"),
        ("Level 33", "of level 33"),
    ]
