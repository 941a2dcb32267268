"""Checks before a run: problems that would otherwise stop it much later, each in one line with a remedy."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from swe_trainers.config import named
from swe_trainers.errors import ConfigurationError, install_hint, package_hint
from swe_trainers.logging import logger_class
from swe_trainers.planning.architecture import architecture_of, find_config, weights_are_here
from swe_trainers.planning.memory import disk_bytes
from swe_trainers.run_config import ModelConfig, RunConfig

__all__ = ["check_run", "existing_parent", "problems"]

_GAMES = {"minigrid": "MiniGrid", "textarena": "textarena", "textworld": "TextWorld"}
"""Modules of `swe_trainers.games`, which are the packages that they need, and what these are called."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_run(config: RunConfig) -> None:
    """Raise if the run cannot start or finish on this machine.

    Raises:
        ConfigurationError: the first problem, with the number of further ones.
    """
    found = list(problems(config))
    if found:
        more = f" (and {len(found) - 1} more: swe-train CONFIG --dry-run lists them)" if len(found) > 1 else ""
        raise ConfigurationError(f"{found[0]}{more}")


def problems(config: RunConfig) -> Iterator[str]:
    """All problems that can be found without an environment or a model, each in one line with a remedy.

    Args:
        config: of a run that is to start now on this machine.
    """
    yield from _missing_packages(config)
    yield from _device(config)
    yield from _model(config.model)
    yield from _fit(config)
    yield from _server(config)
    yield from _inputs(config)
    yield from _output(config)


def existing_parent(path: Path) -> Path:
    """The nearest existing folder."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_dir())


def _missing_packages(config: RunConfig) -> Iterator[str]:
    wanted = {
        "peft": (config.model.lora is not None, "model.lora"),
        "bitsandbytes": (config.model.bits is not None, "model.bits"),
        "ray": (config.scale.ray is not None, "scale.ray"),
        "tinker": (config.model.tinker is not None, "model.tinker"),
    }
    for name in config.metrics_loggers:
        try:
            package = logger_class(name).package
        except ConfigurationError as error:
            yield str(error)
        else:
            short = {"tensorboard": "tensorboard", "wandb": "wandb_project"}
            wanted[package] = (True, f"loggers.{name}" if name in config.loggers else short[name])
    for package, name in _GAMES.items():
        if config.environment.id.startswith(f"swe_trainers.games.{package}:") and find_spec(package) is None:
            yield f"{name} is not installed. {install_hint('games')}"
    for package, (asked, setting) in wanted.items():
        if asked and find_spec(package) is None:
            yield f"{setting}: needs {package}, which is not installed. {package_hint(package)}"


def _device(config: RunConfig) -> Iterator[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for setting, asked in (("model.device", config.model.device), ("engine.device", config.engine.device or "")):
        index = asked.partition(":")[2]
        if asked.startswith("cuda") and not count:
            yield f"{setting}: {asked} needs a GPU, and PyTorch finds none. Try: --{setting} cpu"
        elif asked.startswith("cuda") and index.isdigit() and int(index) >= count:
            yield f"{setting}: {asked} does not exist, PyTorch finds {count} GPUs. Try: cuda:{count - 1}"


def _model(config: ModelConfig) -> Iterator[str]:
    if config.tinker is not None and not os.environ.get("TINKER_API_KEY"):
        yield "model.tinker: the variable TINKER_API_KEY is not set. Try: export TINKER_API_KEY=tml-…"
    if config.path is None or weights_are_here(config.path):
        return
    found = find_config(config.path)
    if isinstance(found, str):
        yield f"model.path: {found}. Try: the path of a model folder"
    elif found[1] == "a local folder":
        yield f"model.path: {config.path}: it has a config.json but no weights"


def _fit(config: RunConfig) -> Iterator[str]:
    """What the model's own sizes do not allow."""
    path, keys = config.model.path, config.model.architecture
    if path is not None and not weights_are_here(path):  # the hub is asked once, by `_model`
        return
    try:  # the vocabulary may not be known yet, and is of no account here
        model = architecture_of(path, keys, vocabulary=None if "vocab_size" in keys else 8)
    except ConfigurationError:  # reported by `_model`, or when the model is made
        return
    if model is None:
        return
    longest, ranks = config.environment.max_tokens, config.scale.sequence_parallel
    if config.engine.in_process and model.positions is not None and longest > model.positions:
        yield f"environment.max_tokens: {longest} is more than the model's {model.positions} positions"
    if model.heads is not None and model.heads % ranks:
        yield f"scale.sequence_parallel: {ranks} does not divide the model's {model.heads} attention heads"


def _server(config: RunConfig) -> Iterator[str]:
    engine = config.engine
    if engine.url is None:
        return
    address = urlsplit(engine.url)
    if engine.command:
        if shutil.which(engine.command[0]) is None:
            yield f"engine.command: no program {engine.command[0]!r} on PATH. Try: its absolute path, or install it"
        if address.hostname in _LOOPBACK and _listens(address.hostname, address.port or 80):
            yield (
                f"engine.url: port {address.port or 80} is in use, so the server cannot start. "
                "Try: another port in engine.url"
            )
    if engine.api_key_env is not None and not os.environ.get(engine.api_key_env):
        yield f"engine.api_key_env: the variable {engine.api_key_env} is not set. Try: export {engine.api_key_env}=…"


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _inputs(config: RunConfig) -> Iterator[str]:
    pieces = config.model.sentencepiece
    if pieces is not None and not pieces.corpus.exists():
        yield f"model.sentencepiece.corpus: {pieces.corpus.absolute()}: no such file or folder"
    if config.demonstrations is not None:
        yield from _demonstrations(config.demonstrations)
    reward = config.reward
    if reward is not None and reward.model is not None and not (reward.model / "config.json").is_file():
        yield f"reward.model: {reward.model}: not a model folder. Try: the folder RUN/model of a reward_model run"
    if reward is not None and reward.judge is not None:
        try:
            named(reward.judge, "judge")
        except ConfigurationError as error:
            yield f"reward.judge: {error}"


def _demonstrations(path: Path) -> Iterator[str]:
    """The first line that is no JSON object of the right form; contents are checked when they are read."""
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                if not isinstance(row, dict) or not ({"messages", "token_ids"} & set(row)):
                    yield f'demonstrations: {path}, line {number}: expected {{"messages": […]}} or a recorded episode'
                    return
    except OSError as error:
        yield f"demonstrations: {path}: {error.strerror}. Try: --demonstrations FILE.jsonl"
    except ValueError as error:  # not UTF-8, or not JSON
        yield f"demonstrations: {path}, line {max(1, number)}: {str(error).splitlines()[0]}"
    else:
        if not number:
            yield f"demonstrations: {path}: the file is empty"


def _output(config: RunConfig) -> Iterator[str]:
    place = existing_parent(config.output_dir)
    if config.output_dir.exists() and not config.output_dir.is_dir():
        yield f"output_dir: {config.output_dir} is a file. Try: another output_dir"
        return
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        yield f"output_dir: {config.output_dir}: cannot be written: {error.strerror}. Try: another output_dir"
        return
    if config.model.path is None and "vocab_size" not in config.model.architecture:
        return
    try:
        model = architecture_of(config.model.path, config.model.architecture)
    except ConfigurationError:  # reported by `_model`
        return
    if model is None or not model.exact:
        return
    needed = disk_bytes(config, model)
    free = shutil.disk_usage(place).free + _held(config.output_dir)
    if needed > free:
        yield (
            f"output_dir: {config.output_dir}: the run needs {needed / 1e9:.2g} GB (checkpoints and models), "
            f"{free / 1e9:.2g} GB are free. Try: another output_dir, or a smaller keep_checkpoints"
        )


def _held(directory: Path) -> int:
    """Bytes of existing checkpoints and models, which new ones replace."""
    folders = [directory / name for name in ("checkpoints", "model", "serving")]
    files = [file for folder in folders for file in folder.rglob("*")]
    return sum(file.stat().st_size for file in files if file.is_file())
