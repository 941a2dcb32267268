"""The value head: a linear layer of one output on the trunk's hidden states."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from swe_trainers.errors import CheckpointError

__all__ = ["VALUE_HEAD_FILE", "ValueHead"]

VALUE_HEAD_FILE = "value_head.safetensors"
"""Where a model's folder keeps it."""


class ValueHead(nn.Module):
    """From hidden states to the values of states, computed in float32 whatever the trunk is in.

    Its weights are zero at first: the first values are then unbiased guesses, and making them draws nothing from the
    global random state.

    Args:
        width: D of the hidden states.
        device: where they are.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width, device=device))
        self.bias = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, D) to (N, 1) float32; no view, on which FSDP's hooks could be lost."""
        return nn.functional.linear(hidden.float(), self.weight.float(), self.bias.float())

    def read(self, path: Path) -> None:
        """Take the weights in a file.

        Raises:
            CheckpointError: they are of another shape.
        """
        from safetensors.torch import load_file

        weights = load_file(path)
        expected = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        got = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if got != expected:
            raise CheckpointError(f"{path}: holds {got}, expected {expected}")
        self.load_state_dict(weights)
