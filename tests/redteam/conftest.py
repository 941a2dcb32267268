"""Shared by all attacks: one layer store, and one verdict for equal honest patches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from swegym_env.grading.grading import Verdict, grade
from swegym_env.sandbox.layers import LayerStore
from tests.places import public_directory

from .cases import Attack


@pytest.fixture(scope="session")
def store() -> Iterator[LayerStore]:
    """Layers that every user can read; pytest's own temporary directories are closed to others."""
    with public_directory("redteam") as place:
        yield LayerStore(place / "layers")


@pytest.fixture(scope="session")
def rejected(store: LayerStore) -> Callable[..., Verdict]:
    """Assert that the harness says `naive`, that `strict` rejects the attack, and that its honest twin resolves.

    The twins of many attacks are the same patch: each is graded once.
    """
    honest: dict[tuple[str, str], Verdict] = {}

    def check(attack: Attack, timeout_s: float | None = None) -> Verdict:
        task, backend = attack.task, "namespace"
        naive = grade(task, attack.patch, store=store, backend=backend, policy="official", timeout_s=timeout_s)
        assert attack.naive is None or naive.resolved is attack.naive
        verdict = grade(task, attack.patch, store=store, backend=backend, timeout_s=timeout_s)
        assert (verdict.resolved, verdict.valid) == (False, True)
        key = task.instance_id, attack.honest
        if key not in honest:
            honest[key] = grade(task, attack.honest, store=store, backend=backend)
        assert honest[key].resolved, honest[key].failure_reason
        return verdict

    return check
