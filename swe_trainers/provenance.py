"""How a model was trained to play, in its folder: the environment, its arguments, its action format and its prompt.

`environment.yaml` is a part of a run's configuration: the section `environment`, `model.chat`, what its evaluations
count as a success, and of `rollout` what the policy reads and may write. When the model is evaluated elsewhere, these
settings are used in place of the environment's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swe_trainers.config import build, plain, read_config, to_yaml
from swe_trainers.errors import ConfigurationError
from swe_trainers.files import write_whole
from swe_trainers.run_config import EnvironmentConfig, RolloutConfig

__all__ = ["ENVIRONMENT", "OF_THE_MACHINE", "Provenance", "read_provenance", "write_provenance"]

ENVIRONMENT = "environment.yaml"
OF_THE_MACHINE = frozenset({"sandbox", "repos", "pool", "limits"})
"""Arguments of an environment that say where it runs, not what a model meets in it."""
_OF_PLAYING = ("stop_strings", "history", "constrained", "grammar")
"""Settings of `rollout` that hold in evaluations too: the others are of training, or of the machine."""
_FORMAT = 1


@dataclass(frozen=True)
class Provenance:
    """How a model was trained to play.

    Attributes:
        source: the file that says so.
        environment: with the wrappers that are also in evaluations.
        chat: of the model's configuration.
        success_above: of the evaluation's.
        rollout: what the policy reads and may write.
    """

    source: Path
    environment: EnvironmentConfig
    chat: str | None = None
    success_above: float | None = None
    rollout: RolloutConfig = RolloutConfig()

    @property
    def playing(self) -> dict[str, Any]:
        """The settings of `rollout` that hold in evaluations and are not the defaults, as plain values."""
        return _playing(self.rollout)


def write_provenance(
    folder: Path,
    environment: EnvironmentConfig,
    chat: str | None,
    success_above: float | None = None,
    rollout: RolloutConfig | None = None,
) -> None:
    """Write `environment.yaml` beside a model.

    Raises:
        OSError: it cannot be written.
    """
    content: dict[str, Any] = {
        "format": _FORMAT,
        "environment": plain(replace(environment, training_wrappers=())),
        "model": {"chat": chat},
    }
    if success_above is not None:
        content["evaluation"] = {"success_above": success_above}
    if playing := _playing(rollout or RolloutConfig()):
        content["rollout"] = playing
    head = "# How this model was trained to play. swe-eval uses the same settings, unless its options say otherwise.\n"
    write_whole(folder / ENVIRONMENT, head + to_yaml(content))


def read_provenance(folder: Path) -> Provenance | None:
    """How the model in a folder, or in `model` of the folder of a run, was trained to play; None if nothing says so.

    Models of older versions have no `environment.yaml`: the `config.yaml` of their run says the same.

    Raises:
        ConfigurationError: what says so cannot be read, or was written by a newer version.
    """
    parent = folder if (folder / "model").is_dir() else folder.parent if folder.name == "model" else None
    candidates = [folder / ENVIRONMENT, folder / "model" / ENVIRONMENT, *([parent / "config.yaml"] if parent else [])]
    for path in candidates:
        if not path.is_file():
            continue
        values = read_config(path)
        if path.name == ENVIRONMENT and values.get("format") != _FORMAT:
            raise ConfigurationError(f"{path}: of format {values.get('format')!r}, this version reads {_FORMAT}")
        section: Any = values.get("environment")
        if not isinstance(section, dict):
            continue  # the configuration of something else, such as the demo
        model, evaluation = values.get("model"), values.get("evaluation")
        chat = model.get("chat") if isinstance(model, dict) else None
        success_above = evaluation.get("success_above") if isinstance(evaluation, dict) else None
        environment = replace(build(EnvironmentConfig, section, f"{path}: environment"), training_wrappers=())
        written = values.get("rollout")
        playing = {name: written[name] for name in _OF_PLAYING if name in written} if isinstance(written, dict) else {}
        rollout = build(RolloutConfig, playing, f"{path}: rollout")
        return Provenance(path, environment, chat, success_above, rollout)
    return None


def _playing(rollout: RolloutConfig) -> dict[str, Any]:
    default = RolloutConfig()
    found = {name: getattr(rollout, name) for name in _OF_PLAYING if getattr(rollout, name) != getattr(default, name)}
    return {name: plain(value) for name, value in found.items()}
