"""One thread for PyTorch, and `swe-train` from a process that has imported it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.warm import warm_python

torch.set_num_threads(1)  # models of these sizes only lose by more, most of all where tests run in parallel


@pytest.fixture(scope="session")
def swe_train_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An executable `swe-train` that starts without the imports' seconds; see `tests.warm` for its limits."""
    folder = tmp_path_factory.mktemp("programs")
    with warm_python(folder, {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}) as warm:
        warm.program(folder / "swe-train", "swe_trainers.cli.main:main")
        yield folder / "swe-train"
