"""`swe-eval` on cheap environments, against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.cli.main import main_eval

GUESS = "tests.trainers.evaluation.guessing:Guess-v0"


@pytest.fixture
def evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `swe-eval` on `Guess-v0`, into `tmp_path / "out"`; returns the exit code and both streams."""

    def run(url: str, *arguments: str, env: str = GUESS, output: str = "out") -> tuple[int, str, str]:
        command = ["--model", "scripted", "--base-url", url, "--env", env, "--output", str(tmp_path / output)]
        try:
            code = main_eval([*command, "--n-parallel", "2", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def results(tmp_path: Path) -> Callable[..., tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The rows and the summary of an evaluation."""

    def read(output: str = "out") -> tuple[list[dict[str, Any]], dict[str, Any]]:
        rows = [json.loads(line) for line in (tmp_path / output / "results.jsonl").read_text().splitlines()]
        return rows, json.loads((tmp_path / output / "summary.json").read_text())

    return read
