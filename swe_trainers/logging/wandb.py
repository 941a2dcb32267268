"""Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

__all__ = ["WeightsAndBiases"]


class WeightsAndBiases:
    """Logs to a project of Weights & Biases; the run has the name of the directory.

    Args:
        directory: of the run.
        project: the project.
        options: further arguments of `wandb.init`.
    """

    package: ClassVar[str] = "wandb"

    def __init__(self, directory: Path, *, project: str, **options: Any) -> None:
        wandb = importlib.import_module("wandb")
        arguments = {"dir": str(directory), "name": directory.name, "resume": "allow", **options}
        self._run: Any = wandb.init(project=project, **arguments)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics at this step."""
        self._run.log(dict(metrics), step=update)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()
