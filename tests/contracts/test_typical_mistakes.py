"""Typical mistakes: the command reports each in one line with advice, and exits with code 2."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swe_trainers.model.tokenizers import HuggingFaceTokenizer, train_sentencepiece
from tests.disk import on_small_disk
from tests.trainers.tiny import tiny_model

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "swegym": "swegym_env.cli.main",
    "swe-train": "swe_trainers.cli.main",
    "swe-serve": "swe_trainers.cli.serve",
}
CONFIG = """\
environment: {id: FrozenLake-v1, adapter: text, parallel: 2, max_turns: 3, max_tokens: 64, max_new_tokens: 2}
model: {architecture: {model_type: llama, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1,
                       num_attention_heads: 2, max_position_embeddings: 128}, tokenizer: words}
trainer: {algorithm: ppo, episodes_per_update: 2, max_updates: 1}
"""
SERVED = "--engine.kind vllm --engine.url http://127.0.0.1:{port} --engine.command [sh,-c,exit]"

Say = Callable[..., str]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command that must be refused, in a folder with a valid configuration; returns its error, one line.

    A command that needs another environment or a prefix runs in its own process; the others run in this one, which
    imports the trainer only once.
    """
    (tmp_path / "run.yaml").write_text(CONFIG)

    def run(program: str, *arguments: str, before: list[str] | None = None, **variables: str) -> str:
        if before or variables:
            command = [*(before or []), sys.executable, "-m", PROGRAMS[program], *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
                env={**environment, **variables},
                timeout=120,
            )
            code, error = done.returncode, done.stderr
        else:
            monkeypatch.chdir(tmp_path)
            capsys.readouterr()
            code = importlib.import_module(PROGRAMS[program]).main(list(arguments))
            error = capsys.readouterr().err
        assert code == 2, error
        assert error.startswith(f"{program}: ") and error.count("\n") == 1, error
        return error

    return run


@pytest.fixture
def used_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def _tokenizer() -> Any:
    return train_sentencepiece(["a b c d e f g"] * 20, 300).to_hugging_face()


@pytest.fixture(scope="module")
def model_without_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    inner = _tokenizer()
    inner.chat_template = None
    folder = tmp_path_factory.mktemp("models") / "base"
    tiny_model("llama", HuggingFaceTokenizer(inner)).save_pretrained(folder)
    return folder


def test_misspelled_dataset_name(say: Say):
    assert "did you mean mini or mini-c?" in say("swegym", "tasks", "--dataset", "minni")
    training = "run.yaml --environment.id swegym_env:SWEBench-v0 --environment.adapter none"
    assert "did you mean mini" in say("swe-train", *training.split(), "--environment.kwargs.dataset", "minni")


def test_missing_gpu(say: Say, tmp_path: Path):
    error = say("swe-train", "run.yaml", "--model.device", "cuda:64")
    assert "cuda:64" in error and "Try: " in error
    assert not (tmp_path / "runs").exists()


def test_missing_extra(say: Say, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.modules['wandb'] = None\n"
    )  # as if it were not installed
    error = say("swe-train", "run.yaml", "--wandb_project", "p", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert error.endswith(
        "needs wandb, which is not installed. Try, in a clone of swegym-env: pip install '.[wandb]'\n"
    )


def test_model_folder_that_is_not_there_is_named_before_a_missing_package(say: Say, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['uvicorn'] = None\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    assert say("swe-serve", "nowhere", PYTHONPATH=path).startswith("swe-serve: nowhere: not in the hub's cache")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "uvicorn is not installed. Try" in say("swe-serve", "model", PYTHONPATH=path)


def test_misspelled_configuration_key(say: Say):
    assert "trainer.learnin_rate: no such setting. Did you mean 'learning_rate'?" in say(
        "swe-train", "run.yaml", "--trainer.learnin_rate", "1e-4"
    )


def test_model_without_chat_template(say: Say, tmp_path: Path, model_without_template: Path):
    text = CONFIG.partition("model:")[0] + f"model: {{path: {model_without_template}}}\ntrainer: {{algorithm: ppo}}\n"
    (tmp_path / "run.yaml").write_text(text)
    assert "has no chat template. Try: an instruction-tuned model" in say("swe-train", "run.yaml")


def test_port_in_use(say: Say, used_port: int, tmp_path: Path):
    port, model = str(used_port), tmp_path / "model"
    tiny_model("llama", HuggingFaceTokenizer(_tokenizer())).save_pretrained(model)
    assert "Try: another --port" in say("swegym", "serve", "--port", port, SWEGYM_TOKEN="0123456789abcdef")
    assert "Try: another --port" in say("swe-serve", str(model), "--port", port)
    assert f"port {port} is in use" in say("swe-train", "run.yaml", *SERVED.format(port=port).split())


def test_full_disk(say: Say, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    error = say("swe-train", "run.yaml", "--output_dir", str(disk / "out"), "--quiet", before=on_small_disk(disk))
    assert f"{disk / 'out'}" in error and "No space left on device. Try: " in error


def test_missing_image(say: Say):
    assert "no such directory, image file or registry address" in say("swegym", "images", "pull", "/no/such.sif")


def test_outdated_apptainer(say: Say, tmp_path: Path):
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.0.3\n")
    (tmp_path / "apptainer").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    error = say("swegym", "run", "--dataset", "mini", "--sandbox", "apptainer", PATH=path)
    assert "is version 1.0.3, expected 1.1 or newer. Try: scripts/install_apptainer.sh" in error


def test_outdated_python(tmp_path: Path):
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n")  # as an interpreter that is too old for the version check
    old.chmod(0o755)
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    # Without the variables of a `make test`, under which make prints that it is nested.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "setup", f"PYTHON={old}"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith(f"setup: no Python >= 3.10 with venv among: {old}.")
    assert first.endswith("make PYTHON=/path/to/python")
    assert second.startswith("make: ")
    assert not (tmp_path / ".venv").exists()
