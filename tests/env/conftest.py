"""Fixtures: each back end that works here, a small task, and a separate layer store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swegym_env.sandbox.backends import LOCAL_BACKENDS, make_backend
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task
from tests import places
from tests.env.calc import calc_task


@pytest.fixture(scope="session")
def public_directory() -> Iterator[Path]:
    """A directory that any user may enter; pytest's own is closed to others."""
    with places.public_directory("layers") as directory:
        yield directory


@pytest.fixture
def public_tmp_path(public_directory: Path) -> Path:
    """A directory of one test, as `tmp_path`, that any user may enter."""
    return places.empty_directory(public_directory)


@pytest.fixture
def store(public_directory: Path) -> LayerStore:
    """An empty layer store."""
    return places.empty_store(public_directory)


@pytest.fixture(scope="session")
def broken_backends() -> dict[str, str]:
    """Back end → why it does not work here; "" if it works."""
    return {name: make_backend(name).problem(fresh=True) for name in LOCAL_BACKENDS}


@pytest.fixture(params=LOCAL_BACKENDS)
def backend(request: pytest.FixtureRequest, broken_backends: dict[str, str]) -> str:
    """The name of each back end that works."""
    name = str(request.param)
    if broken_backends[name]:
        pytest.skip(f"{name} does not work here: {broken_backends[name]} (scripts/install_apptainer.sh, swegym doctor)")
    return name


@pytest.fixture
def task() -> Task:
    """A function with a bug, its tests, and the test that shows the bug."""
    return calc_task()
