"""The errors of `swe_trainers`, one small tree.

TrainerError              on the command line: one line and exit code 2
├── ConfigurationError    an unknown key, a value out of range, an option that would have no effect
├── ShapeError            tensors disagree in shape, dtype or device
├── TemplateError         a chat template does not keep the prefix: what was sampled could not be trained on
├── CheckpointError       a checkpoint cannot be read or written
│   └── DamagedError      it is not what was written; an older one may be
├── EngineError           generation failed
└── RolloutError          an environment broke its contract: an observation that is no text, a reward that is no number
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DamagedError",
    "EngineError",
    "RolloutError",
    "ShapeError",
    "TemplateError",
    "TrainerError",
    "install_hint",
    "package_hint",
]


class TrainerError(Exception):
    """Anything that this package raises on purpose, in one line."""


class ConfigurationError(TrainerError, ValueError):
    """An unknown key, a value out of range, or an option that would have no effect."""


class ShapeError(TrainerError, ValueError):
    """Tensors disagree in shape, dtype or device."""


class TemplateError(TrainerError):
    """A chat template does not keep the prefix of a conversation."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be read or written."""


class DamagedError(CheckpointError):
    """A checkpoint is not what was written; the text says which file and why."""


class EngineError(TrainerError):
    """Generation failed."""


class RolloutError(TrainerError):
    """An environment broke its contract; the text says which and how."""


_EXTRAS = {"bitsandbytes": "gpu", "peft": "train", "ray": "ray", "tinker": "tinker", "wandb": "wandb"}


def package_hint(package: str) -> str:
    """How to install a package: by the extra of this project that brings it, else by its own name."""
    return install_hint(_EXTRAS[package]) if package in _EXTRAS else f"Try: pip install {package}"


def install_hint(extra: str) -> str:
    """How to install an extra of this project, for the end of an error: from a clone, since it is on no index."""
    return f"Try, in a clone of swegym-env: pip install '.[{extra}]'"
