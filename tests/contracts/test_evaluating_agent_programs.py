"""`swe-eval --agent`: an agent program in real sandboxes, whose model is an endpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swe_trainers.cli.main import main_eval
from tests.trainers.evaluation.scripted import say, serving

SMALL = Path(__file__).parents[1] / "env" / "programs" / "small"
REPAIR = "sed -i s/x/x/ README.md; ls"


def test_an_agent_is_measured_with_an_endpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda body: say(REPAIR if len(body["messages"]) == 2 else "submit")) as served:
        code = main_eval(
            ["--model", "scripted", "--base-url", served.url, "--agent", str(SMALL), "--dataset", "mini",
             "--slice", ":2", "--n-parallel", "1", "--output", str(tmp_path / "out")]
        )  # fmt: skip
    assert code == 0, capsys.readouterr()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["valid"] == 2 and summary["mean_turns"] == 2
    asked = [body["messages"] for body in served.asked if len(body["messages"]) > 1]
    assert asked[0][0] == {"role": "system", "content": "You are an agent."}
    assert [message["role"] for message in asked[1]] == ["system", "user", "assistant", "user"]
    assert asked[1][2]["content"] == REPAIR and asked[1][3]["content"].endswith("[0]")
    assert "small with scripted on mini" in (tmp_path / "out" / "report.html").read_text()
