"""A repository with the shipped tools in a real Apptainer sandbox, one for each file of tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swegym_env.agent.tools import tool_set
from swegym_env.prepare import prepare_locally
from swegym_env.sandbox.api import CommandResult, Sandbox
from swegym_env.tasks.datasets import load_tasks
from tests.places import own_run_directory

Run = Callable[..., CommandResult]


@pytest.fixture(scope="package", autouse=True)
def run_directory() -> Iterator[Path]:
    """A run directory of these tests only."""
    with own_run_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """The first task of `mini` (calends), with all shipped tools."""
    if shutil.which("apptainer") is None:
        pytest.skip("Apptainer is not installed (scripts/install_apptainer.sh)")
    task = load_tasks("mini")["mini__calends-001"]
    sandbox = prepare_locally(task, tools=tool_set("debug"), turn_timeout_s=20, backend="apptainer").start()
    sandbox.run("git config user.name a && git config user.email a@b")
    yield sandbox
    sandbox.close()


@pytest.fixture
def run(box: Sandbox) -> Iterator[Run]:
    """Runs a command; what it changed in the repository is undone after the test."""
    yield lambda command, timeout_s=30.0: box.run(command, timeout_s=timeout_s)
    box.run("cd /testbed && git checkout -q . && git clean -qfdx && rm -rf /.swegym/edits")
