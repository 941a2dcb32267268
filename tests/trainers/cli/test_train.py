"""`swe-train` and `swe-eval` from the command line: errors are one line with exit code 2, and runs resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.cli.main import main, main_eval
from tests.disk import left_on, on_small_disk
from tests.trainers.ranks import Forked

ROOT = Path(__file__).parents[3]
SWE_TRAIN = (sys.executable, "-m", "swe_trainers.cli.main")
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
    """Runs the command in an empty directory with a valid `config.yaml`."""
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
    """The exit code is 2, and stderr is one line that contains these."""
    assert code == 2, stderr
    assert stderr.startswith("swe-train: ") and stderr.count("\n") == 1 and stderr.endswith("\n"), stderr
    for name in named:
        assert name in stderr, stderr


def test_missing_argument_is_a_one_line_error(swe_train: Run, tmp_path: Path):
    done = swe_train()
    assert_refused(done.returncode, done.stderr, "config", "swe-train --help")
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("given", "hint"),
    [("config", "; did you mean config.yaml?"), ("chekc-env", "; did you mean check-env?"), ("x/y.yaml", "")],
)
def test_a_configuration_that_is_not_there_names_the_nearest(tmp_path, monkeypatch, capsys, given, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert main([given]) == 2
    assert capsys.readouterr().err == f"swe-train: {given}: no such file{hint}\n"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("--trainer.learning_rat 1", ("trainer.learning_rat", "no such setting", "'learning_rate'")),
        ("--learning_rate 1", ("learning_rate", "no such setting", "'trainer.learning_rate'")),
        ("--episods 4", ("episods", "no such setting", "'evaluation.episodes'")),
        ("--model.max_turns 4", ("model.max_turns", "no such setting", "'environment.max_turns'")),
        ("--resume", ("resume: no such setting", "by itself", "same output_dir")),
        ("--trainer.gamma 2", ("trainer.gamma", "2.0", "from 0 to 1")),
        ("--environment.id FrozenLaki-v1", ("environment FrozenLaki-v1", "FrozenLake")),
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
def test_wrong_settings_are_one_line_errors_and_create_no_files(tmp_path, monkeypatch, capsys, overrides, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG)
    code = main(["config.yaml", *overrides.split()])
    output = capsys.readouterr()
    assert_refused(code, output.err, *named)
    assert output.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("content", "named"), [(None, "No such file"), ("{}\n", "line 1"), ("no JSON\n", "line 1")], ids=str
)
def test_unreadable_demonstrations_are_named(tmp_path, monkeypatch, capsys, content, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("ppo, episodes_per_update: 2, max_updates: 2", "cloning"))
    if content is not None:
        (tmp_path / "shown.jsonl").write_text(content)
    code = main(["config.yaml", "--demonstrations", "shown.jsonl"])
    assert_refused(code, capsys.readouterr().err, "shown.jsonl", named)
    assert not (tmp_path / "out").exists()


def test_configuration_error_raised_by_an_environment_is_one_line(tmp_path, monkeypatch, capsys):
    # The environment is in another package: its errors are recognised by their class names.
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


@pytest.fixture(scope="module")
def outcomes_on_full_disks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Exit code, stderr and files of a run on each of these small disks, by free KiB."""
    folder = tmp_path_factory.mktemp("full")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "disk").mkdir()
    command = [*on_small_disk(folder / "disk"), sys.executable, "-m", "tests.trainers.cli.full_disks", folder / "disk"]
    done = subprocess.run(
        [*command, "0", "20", "220", "270"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(),
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"disk": folder / "disk", **json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("free_kib", "written", "missing"),
    [
        (0, "out/.lock", "out/config.yaml"),
        (20, "out/training.log", "out/checkpoints"),  # the metrics cannot be written
        (220, "out/checkpoints/ppo/00000002/manifest.json", "out/model"),
        (270, "out/model/model.safetensors", "out/curves.png"),
    ],
)
def test_full_disk_is_a_one_line_error_and_leaves_no_partial_file(
    outcomes_on_full_disks, free_kib: int, written: str, missing: str
):
    outcome = outcomes_on_full_disks[str(free_kib)]
    assert_refused(
        outcome["code"], outcome["stderr"], str(outcomes_on_full_disks["disk"] / "out"), "No space left on device"
    )
    assert written in outcome["left"] and missing not in outcome["left"]
    assert not [name for name in outcome["left"] if "partial" in name]


def test_read_only_output_directory_is_named(swe_train: Run, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    done = swe_train("config.yaml", "--output_dir", str(disk / "out"), before=on_small_disk(disk, read_only=True))
    assert_refused(done.returncode, done.stderr, str(disk / "out"), "Read-only file system")
    assert left_on(disk) == []


def _training(folder: Path, updates: int, *arguments: str) -> Forked:
    """A run of so many updates in a process of its own."""
    (folder / "config.yaml").write_text(CONFIG)
    changed = ["--trainer.max_updates", str(updates), "--resume-with-changes", *arguments]
    return Forked(main, ["config.yaml", "--quiet", *changed], folder=folder)


def _interrupted(run: Forked, folder: Path, written: str, by: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """The exit code and the output of a run that gets Ctrl-C, or another signal, when it has written such a file."""
    deadline = time.monotonic() + 60
    while run.running and time.monotonic() < deadline and not list(folder.glob(written)):
        time.sleep(0.02)
    run.signal(by)
    return run.wait(60)


def test_interrupted_run_resumes(tmp_path: Path):
    code, output = _interrupted(_training(tmp_path, 100_000), tmp_path, "out/checkpoints/ppo/0*")
    newest = max(int(path.name) for path in (tmp_path / "out/checkpoints/ppo").iterdir())
    interrupted = f"swe-train: interrupted; started again, it goes on from update {newest}\n"
    assert (code, output) == (130, interrupted)
    assert _training(tmp_path, 1).wait() == (0, "")
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert not list((tmp_path / "out").rglob("*partial*"))


def test_sigterm_ends_a_run_after_its_update_with_a_checkpoint(tmp_path: Path):
    run = _training(tmp_path, 100_000, "--checkpoint_every", "100_000")
    code, output = _interrupted(run, tmp_path, "out/metrics.jsonl", signal.SIGTERM)
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    (saved,) = (tmp_path / "out/checkpoints/ppo").iterdir()
    assert int(saved.name) == rows[-1]["update"]
    assert (code, output) == (
        143, f"swe-train: interrupted; started again, it goes on from update {int(saved.name)}\n"
    )  # fmt: skip
    assert not (tmp_path / "out" / "model").exists()
    assert _training(tmp_path, int(saved.name) + 1).wait() == (0, "")
    resumed = (tmp_path / "out" / "training.log").read_text()
    assert f"resumed from {saved.name}" in resumed and (tmp_path / "out" / "model").is_dir()


def test_a_run_that_is_interrupted_before_its_first_checkpoint_says_so(tmp_path: Path):
    run = _training(tmp_path, 100_000, "--checkpoint_every", "100_000")
    nothing = "swe-train: interrupted; nothing was saved yet: started again, it begins anew\n"
    assert _interrupted(run, tmp_path, "out/metrics.jsonl") == (130, nothing)


def _with_modules_here(arguments: list[str]) -> int:
    sys.path.insert(0, ".")
    return main(arguments)


def test_a_warning_is_one_plain_line(tmp_path: Path):
    (tmp_path / "telling.py").write_text(
        "import gymnasium\n"
        "class Telling(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Text(99)\n"
        "    def reset(self, **kwargs): return 'sideways', {}\n"
        "    def step(self, action): return 'sideways', 1.0, True, False, {}\n"
        "gymnasium.register(id='Telling-v0', entry_point=Telling)\n"
    )
    settings = CONFIG.replace("FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text", "'telling:Telling-v0'")
    (tmp_path / "config.yaml").write_text(settings.replace("tokenizer: words", "tokenizer: words, words: [a]"))
    code, output = Forked(_with_modules_here, ["config.yaml", "--quiet"], folder=tmp_path).wait()
    assert (code, output.count("\n")) == (0, 1), output
    assert output.startswith("swe-train: warning: WordTokenizer: 'sideways' is not in the vocabulary of 1 words")


def test_debug_option_shows_the_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([".", "--debug"]) == 2
    error = capsys.readouterr().err
    assert "Traceback (most recent call last)" in error and "read_config" in error
    assert error.splitlines()[-1].startswith("swe-train: .: cannot be read")


def test_a_run_begins_with_what_it_does_and_ends_with_the_commands_that_show_its_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    next_ones = [
        "look at the curves: python -m webbrowser out/report.html",
        "evaluate the model: swe-eval out --episodes 20",
    ]
    assert main(["config.yaml"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(" INFO    ppo on FrozenLake-v1: 2 updates, into out")
    assert lines[-2:] == next_ones
    assert main(["config.yaml", "--restart", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_evaluation_of_a_finished_run_uses_its_last_weights(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(CONFIG)
    training = ["--evaluation.episodes", "6", "--evaluation.temperature", "0", "--environment.lockstep", "true"]
    assert main(["config.yaml", "--quiet", *training]) == 0
    last = [json.loads(line) for line in Path("out/metrics.jsonl").read_text().splitlines()][-1]

    assert "evaluation/report.html" not in Path("out/report.html").read_text()
    assert main_eval(["out", "--episodes", "5"]) == 0
    assert 'href="evaluation/report.html"' in Path("out/report.html").read_text()
    rows = [json.loads(line) for line in Path("out/evaluation/results.jsonl").read_text().splitlines()]
    summary = json.loads(Path("out/evaluation/summary.json").read_text())
    assert len(rows) == summary["episodes"] == 5
    assert summary["mean_return"] == pytest.approx(sum(row["return"] for row in rows) / 5)
    assert summary["mean_turns"] == sum(row["turns"] for row in rows) / 5
    assert "over 5 episodes" in capsys.readouterr().out
    # The format of results is the same as for a model behind a URL; an evaluation can be resumed, else it is replaced.
    names = {"episodes", "report.html", "results.jsonl", "settings.json", "summary.json", ".lock"}
    assert {path.name for path in Path("out/evaluation").iterdir()} == names
    record = json.loads(Path("out/evaluation", rows[0]["episode"], "traj.json").read_text())
    assert len(record["turns"]) == rows[0]["turns"]
    before = Path("out/evaluation/results.jsonl").read_bytes()
    assert main_eval(["out", "--episodes", "5", "--resume"]) == 0
    assert Path("out/evaluation/results.jsonl").read_bytes() == before
    assert main_eval(["out", "--episodes", "2"]) == 0
    assert json.loads(Path("out/evaluation/summary.json").read_text())["episodes"] == 2
    # Greedy actions on this lake depend on the weights alone, not on the seeds of the episodes.
    assert [row["return"] for row in rows] == pytest.approx([last["eval/return"]] * 5)
    assert not list(Path("out").rglob("*.partial"))


def test_evaluation_of_a_run_with_invalid_episodes_has_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    faulty = CONFIG.replace(
        "FrozenLake-v1, kwargs: {is_slippery: false}, adapter: text",
        "'tests.trainers.faulty:Faulty-v0', kwargs: {fault: step}",
    )
    Path("config.yaml").write_text(faulty.replace("tokenizer: words", "tokenizer: words, words: [a]"))
    command = ["config.yaml", "--rollout.max_invalid_fraction", "1"]
    assert main_eval([*command, "--episodes", "12"]) == 1
    assert 0 < json.loads(Path("evaluation/summary.json").read_text())["invalid"] < 12
    assert "invalid: excluded, repeated by --resume" in capsys.readouterr().out
    assert main_eval([*command, "--episodes", "2", "--environment.kwargs.every=1000000007"]) == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], ("nowhere", "No such file")),
        (["config.yaml", "--episodes", "0"], ("--episodes", "positive")),
        (["config.yaml", "--evaluation.temperature", "-1"], ("temperature", "0 or more")),
        (["config.yaml", "--temprature", "0"], ("temprature", "Did you mean 'evaluation.temperature'?")),
        (["config.yaml", "--dataset", "mini"], ("--dataset", "Try: swe-eval --model FOLDER --dataset mini")),
        (["empty", "--slice", ":3"], ("--slice", "Try: swe-eval --model empty --slice :3")),
        (["empty", "--n-parallel", "2"], ("--n-parallel", "Try: swe-eval --model empty --n-parallel 2")),
        (["empty"], ("empty: neither a run of swe-train nor the folder of a model. Try: the output_dir of a run",)),
    ],
)
def test_wrong_evaluation_arguments_are_one_line_errors(tmp_path, monkeypatch, capsys, arguments, named):
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
