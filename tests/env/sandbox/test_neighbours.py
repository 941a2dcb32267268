"""A hostile sandbox harms no other episode of its process, raises nothing, and cannot make its own episode invalid."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.neighbours import HOSTILE, measure

QUICK = ("fork bomb", "deep tree")


@pytest.mark.parametrize(
    "attack", [name if name in QUICK else pytest.param(name, marks=pytest.mark.campaign) for name in HOSTILE]
)
def test_a_hostile_sandbox_harms_no_neighbour(backend: str, attack: str, public_path: Path) -> None:
    """How long the steps of neighbours take is what `make bench-neighbours` measures."""
    [found] = measure(backend, [attack], public_path / "repos", seconds=1.0, neighbours=4)
    assert found["exception_from_step"] == ""
    assert found["honest_failures"] == 0
    assert found["honest_steps"] >= 4
    assert found["hostile_steps"] >= 1
    assert [end for end in found["hostile_episodes_ended"] if "invalid" in end] == []
