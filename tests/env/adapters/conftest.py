"""Shared by the tests of adapters, but those of `in_*.py`: these run in environments of their own without this file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import own_run_directory


@pytest.fixture
def place() -> Iterator[Path]:
    """A run directory of its own, in which leftovers can be counted."""
    with own_run_directory() as directory:
        yield directory
