"""The demo at a small size: its demonstrations match the sandbox, and a killed run resumes."""

import dataclasses
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swe_trainers.logging import read_metrics
from swe_trainers.provenance import read_provenance
from swegym_env.env import SWEBenchEnv
from swegym_env.recording.record import find_records, read_record
from swegym_env.tasks.data import mini_edit

ROOT = Path(__file__).parents[2]
SMALL = """
import dataclasses, pathlib, sys
sys.path.insert(0, "examples")
import demo

settings = demo.Demo()
small = dataclasses.replace(
    settings,
    sandbox="namespace",
    demonstrations=64,
    vocab_size=500,
    model=settings.model | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1},
    n_parallel=4,
    max_tokens=64,  # so that some episodes are truncated
    held_out_episodes=8,
    curve_episodes=4,
    curve_every=2,
    cloning=dataclasses.replace(settings.cloning, epochs=1),
    ppo=dataclasses.replace(settings.ppo, max_updates=3, episodes_per_update=8, epochs=1),
)
demo.play(small, pathlib.Path(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


def test_written_demonstrations_equal_the_observations_of_a_sandbox(demo):
    rng = random.Random(0)
    for number in range(5):
        task = mini_edit.generate(number)
        written = demo._demonstration(number, rng, 0.5)
        env = SWEBenchEnv(tasks=[task], action_format="raw", prompt="terse")
        seen, ended = [env.reset(seed=0)[0]], False
        for action in written.actions:
            assert not ended
            observation, _, ended, _, _ = env.step(action)
            seen.append(observation)
        env.close()
        assert ended
        assert seen[:-1] == list(written.observations)


def _start(directory):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SMALL, str(directory)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _updates(directory):
    path = directory / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row["update"] for row in rows if row["stage"] == "ppo"]


@pytest.mark.parametrize(
    "updates",
    [
        pytest.param((1,), id="once", marks=pytest.mark.sample),
        pytest.param((1, 2), id="twice", marks=pytest.mark.campaign),
    ],
)
def test_killed_demo_resumes_from_its_last_checkpoint(tmp_path, updates):
    killed = 0
    for update in updates:
        process = _start(tmp_path)
        while process.poll() is None and update not in _updates(tmp_path):
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
    assert killed
    process = _start(tmp_path)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert _updates(tmp_path) == [0, 1, 2, 3]  # no update twice, none missing

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["format"] == 1 and summary["episodes"] == 24 and summary["held_out_episodes"] == 8
    assert summary["invalid_episodes"] == 0 and summary["sandbox"] == "namespace"
    assert 0 <= summary["resolve_rate_before"] <= 1 and 0 <= summary["resolve_rate_after"] <= 1
    for name in ("config.yaml", "training.log", "metrics.jsonl", "curves.png", "report.md", "report.html"):
        assert (tmp_path / name).stat().st_size > 0
    assert (tmp_path / "model" / "config.json").exists()
    trained = read_provenance(tmp_path)  # what swe-eval plays it with
    assert trained is not None and trained.environment.kwargs["prompt"] == "terse"
    log = (tmp_path / "training.log").read_text()
    assert f"swe-eval {tmp_path} --episodes 20" in log and f"swegym view {tmp_path / 'evaluation'}" in log

    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["stage"] == "ppo"]
    assert [row.get("eval/episodes") for row in rows] == [8, None, 4, 8]  # before, after two updates, at the end
    for row in rows[1:]:
        shares = [row[f"episode_time/{station}"] for station in ("model", "environment", "tests")]
        assert row["episodes_per_second"] > 0 and min(shares[:2]) > 0 and sum(shares) == pytest.approx(1.0)
    played = [read_record(folder) for folder in find_records(tmp_path / "episodes")]
    played.sort(key=lambda record: record.meta["recorded_at"])
    tasks = [f"mini-edit__test-{number}" for number in range(3)]
    assert sorted(record.instance_id for record in played[:3]) == tasks == sorted(r.instance_id for r in played[3:])
    assert [record.meta["notes"]["policy"] for record in played] == ["before PPO"] * 3 + ["after PPO"] * 3
    page = tmp_path / "episodes" / "view.html"
    assert all(page.read_text().count(record.place.name) for record in played)
    for shown in (tmp_path / "report.html", page):
        assert f"python -m webbrowser {shown}" in log


def test_run_with_other_settings_is_refused(demo, tmp_path):
    demo._keep_settings(_Directory(tmp_path), demo.Demo())
    demo._keep_settings(_Directory(tmp_path), demo.Demo())
    with pytest.raises(demo.ConfigurationError, match="other settings"):
        demo._keep_settings(_Directory(tmp_path), dataclasses.replace(demo.Demo(), seed=1))


def test_errors_of_the_demo_are_one_line(demo, tmp_path, capsys, monkeypatch):
    output = tmp_path / "run"
    assert demo.main(["--sandbox", "dcoker", "--output", str(output)]) == 2
    assert "no sandbox back end 'dcoker'" in capsys.readouterr().err and not output.exists()

    def interrupted(_demo, _output):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "play", interrupted)
    assert demo.main(["--sandbox", "namespace", "--output", str(output)]) == 130
    assert capsys.readouterr().err == f"demo.py: interrupted; the same command goes on with {output}\n"


@dataclasses.dataclass
class _Directory:
    directory: Path
