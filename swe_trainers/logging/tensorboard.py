"""TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes events to the folder `tensorboard` of a run.

    Args:
        directory: of the run.
    """

    package: ClassVar[str] = "tensorboard"

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar for each metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        """Flush and close the files."""
        self._writer.close()
