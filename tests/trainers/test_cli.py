"""`swe-train` as it is used: in a process of its own. What is wrong is told in one line, with exit code 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_trainers.cli import main, main_eval
from tests.disk import left_on, on_small_disk

ROOT = Path(__file__).parents[2]
SWE_TRAIN = (sys.executable, "-m", "swe_trainers.cli")
CONFIG = """\
environment: {id: FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text, parallel: 2, max_turns: 3,
              max_tokens: 64, max_new_tokens: 2}
model: {architecture: {model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
                       num_attention_heads: 2, max_position_embeddings: 128}, tokenizer: words}
trainer: {algorithm: ppo, episodes_per_update: 2, max_updates: 2}
checkpoint_every: 1
threads: 1
output_dir: out
"""

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


@pytest.fixture
def swe_train(tmp_path: Path) -> Run:
    """Runs the command in a fresh directory that holds a whole configuration, `config.yaml`."""
    (tmp_path / "config.yaml").write_text(CONFIG)

    def run(*arguments: str, before: list[str] | None = None) -> Done:
        command = [*(before or []), *SWE_TRAIN, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment(), timeout=120
        )

    return run


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def assert_refused(code: int, stderr: str, *named: str) -> None:
    """The command said in one line what is wrong, naming these, and ended with 2."""
    assert code == 2, stderr
    assert stderr.startswith("swe-train: ") and stderr.count("\n") == 1 and stderr.endswith("\n"), stderr
    for name in named:
        assert name in stderr, stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", ("config", "swe-train --help")),
        ("config.yaml --trainer.learning_rat 1", ("trainer.learning_rat", "no such setting", "'learning_rate'")),
        ("config.yaml --trainer.gamma 2", ("trainer.gamma", "2.0", "from 0 to 1")),
        ("config.yaml --environment.id FrozenLaki-v1", ("environment FrozenLaki-v1", "FrozenLake")),
    ],
)
def test_what_cannot_be_had_is_one_line_and_leaves_nothing(swe_train: Run, tmp_path: Path, arguments, named):
    done = swe_train(*arguments.split())
    assert_refused(done.returncode, done.stderr, *named)
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("loose", ("'loose'", "--section.key value")),
        ("--max_seconds -1", ("max_seconds", "-1.0", "positive")),
        ("--seed 9223372036854775808", ("seed", "9223372036854775808", "less than")),
        ("--environment.id nomodule:X-v0", ("environment nomodule:X-v0", "nomodule")),
        ("--environment.kwargs.size 9", ("environment FrozenLake-v1", "'size'")),
        ("--environment.kwargs.map_name 9x9", ("environment FrozenLake-v1", "9x9")),
        ("--environment.adapter none", ("FrozenLake-v1", "--environment.adapter text")),
        ("--environment.adapter_kwargs.word go", ("environment FrozenLake-v1", "'word'")),
        ("--model.architecture.model_type lama", ("'lama'", "no such model")),
        ("--model.architecture.num_attention_heads 3", ("hidden size", "3")),
        ("--model.device tpu", ("model.device", "'tpu'")),
        ("--model.tokenizer /no/where", ("/no/where", "no tokenizer")),
    ],
)
def test_a_wrong_environment_or_model_leaves_no_output_directory(tmp_path, monkeypatch, capsys, overrides, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    code = main(["config.yaml", *overrides.split()])
    assert_refused(code, capsys.readouterr().err, *named)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("content", "named"), [(None, "No such file"), ("{}\n", "line 1"), ("no JSON\n", "line 1")], ids=str
)
def test_demonstrations_that_cannot_be_read_are_named(tmp_path, monkeypatch, capsys, content, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("ppo, episodes_per_update: 2, max_updates: 2", "cloning"))
    if content is not None:
        (tmp_path / "shown.jsonl").write_text(content)
    code = main(["config.yaml", "--demonstrations", "shown.jsonl"])
    assert_refused(code, capsys.readouterr().err, "shown.jsonl", named)
    assert not (tmp_path / "out").exists()


def test_an_environment_that_refuses_in_the_middle_is_one_line(tmp_path, monkeypatch, capsys):
    # An environment of another package: its errors are known by their names alone.
    (tmp_path / "refusing.py").write_text(
        "import gymnasium\n"
        "class ConfigurationError(ValueError): pass\n"
        "class Refusing(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Text(99)\n"
        "    def reset(self, **kwargs): raise ConfigurationError('no such back end')\n"
        "gymnasium.register(id='Refusing-v0', entry_point=Refusing)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = CONFIG.replace("FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text", "'refusing:Refusing-v0'")
    (tmp_path / "config.yaml").write_text(settings.replace("tokenizer: words", "tokenizer: words, words: [a]"))
    code = main(["config.yaml", "--quiet"])
    assert_refused(code, capsys.readouterr().err, "environment: no such back end")


@pytest.mark.parametrize(
    ("free_kib", "written", "missing"),
    [
        (0, "out/.lock", "out/config.yaml"),
        (20, "out/metrics.jsonl", "out/checkpoints"),  # the log cannot be written
        (220, "out/checkpoints/ppo/00000002/manifest.json", "out/model"),
        (270, "out/model/model.safetensors", "out/curves.png"),
    ],
)
def test_a_full_disk_is_named_and_what_is_on_it_is_whole(
    swe_train: Run, tmp_path: Path, free_kib: int, written: str, missing: str
):
    disk = tmp_path / "disk"
    disk.mkdir()
    before = on_small_disk(disk, free_kib=free_kib)
    done = swe_train("config.yaml", "--output_dir", str(disk / "out"), "--quiet", before=before)
    assert_refused(done.returncode, done.stderr, str(disk / "out"), "No space left on device")
    left = left_on(disk)
    assert written in left and missing not in left
    assert not [name for name in left if "partial" in name]


def test_a_directory_that_cannot_be_written_is_named(swe_train: Run, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = swe_train("config.yaml", "--output_dir", str(disk / "out"), before=on_small_disk(disk, read_only=True))
    assert_refused(done.returncode, done.stderr, str(disk / "out"), "Read-only file system")
    assert left_on(disk) == []


def test_an_interrupted_run_goes_on(swe_train: Run, tmp_path: Path):
    command = [*SWE_TRAIN, "config.yaml", "--quiet", "--trainer.max_updates"]
    process = subprocess.Popen([*command, "100000"], cwd=tmp_path, env=_environment(), stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "out" / "checkpoints").glob("ppo/0*")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.decode() == "swe-train: interrupted; started again, it goes on from its last checkpoint\n"
    done = swe_train("config.yaml", "--quiet", "--trainer.max_updates", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert not list((tmp_path / "out").rglob("*partial*"))


def test_a_traceback_is_shown_to_who_asks_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["nothing.yaml", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said and "read_config" in said
    assert said.splitlines()[-1].startswith("swe-train: nothing.yaml: cannot be read")


def test_a_finished_run_is_measured_with_the_weights_it_ended_with(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    training = ["--evaluation.episodes", "6", "--evaluation.temperature", "0", "--environment.lockstep", "true"]
    assert main(["config.yaml", "--quiet", *training]) == 0
    last = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()][-1]

    assert main_eval(["out", "--episodes", "5"]) == 0
    rows = [json.loads(line) for line in Path("out/evaluation/results.jsonl").read_text().splitlines()]
    summary = json.loads(Path("out/evaluation/summary.json").read_text())
    assert len(rows) == summary["episodes"] == 5
    assert summary["return"] == pytest.approx(sum(row["return"] for row in rows) / 5)
    assert summary["turns"] == sum(row["turns"] for row in rows) / 5
    assert "episodes 5" in capsys.readouterr().out
    # Greedy play on this lake is a function of the weights alone, whatever the seeds of the episodes.
    assert [row["return"] for row in rows] == pytest.approx([last["eval/return"]] * 5)
    assert not list(Path("out").rglob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], ("nowhere", "No such file")),
        (["config.yaml", "--episodes", "0"], ("--episodes", "positive")),
        (["config.yaml", "--evaluation.temperature", "-1"], ("temperature", "0 or more")),
        (["empty"], ("config.yaml", "No such file")),
    ],
)
def test_what_cannot_be_measured_is_one_line(tmp_path, monkeypatch, capsys, arguments, named):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    Path("empty").mkdir()
    try:
        code = main_eval(arguments)
    except SystemExit as ended:
        code = ended.code
    stderr = capsys.readouterr().err
    assert (code, stderr.count("\n")) == (2, 1)
    assert stderr.startswith("swe-eval: ")
    for name in named:
        assert name in stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "empty"]
