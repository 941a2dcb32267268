"""A base image of this machine's own programs, in place of Debian's packages, and tasks that are made of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.root_file_system import make_root
from swegym_env.sandbox.images.store import settle
from tests import places

PROGRAMS = (
    "bash",
    "sh",
    "cat",
    "chmod",
    "cp",
    "echo",
    "env",
    "grep",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sleep",
    "tar",
    "touch",
    "true",
)

Make = Callable[..., Path]
NO_NETWORK = '[environment]\nnetwork_mode = "no-network"'
TEST = """\
if grep -qx 42 /app/answer; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="session")
def bases() -> Iterator[Path]:
    with places.public_directory("bases") as folder:
        root = folder / "debian:12"
        make_root(root, PROGRAMS, more=("root", "app"))
        (root / "usr").unlink()  # as Debian has it: programs in /usr/bin, and a link to it
        (root / "usr/local").mkdir(parents=True)
        (root / "bin").rename(root / "usr/bin")
        (root / "bin").symlink_to("usr/bin")
        settle(root)
        flat = folder / "flat:1"  # as BusyBox has it: /usr is the root
        make_root(flat, PROGRAMS, more=("root", "app"))
        settle(flat)
        yield folder


@pytest.fixture(scope="session")
def harbor_place(bases: Path) -> Iterator[Path]:
    """A working directory for layers, shared by these tests."""
    with places.public_directory("harbor") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEGYM_WORKDIR", str(folder))
        yield folder


@pytest.fixture
def make_task(tmp_path: Path, bases: Path, harbor_place: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Write a task folder: the answer to everything has to stand in /app/answer."""
    monkeypatch.setenv("SWEGYM_BASE_IMAGES", str(bases))

    def make(
        name: str = "answer",
        *,
        dockerfile: str = "FROM debian:12\nWORKDIR /app\n",
        test: str = TEST,
        toml: str = NO_NETWORK,
        files: dict[str, str] | None = None,
    ) -> Path:
        folder = tmp_path / "tasks" / name
        texts = {
            "task.toml": f'schema_version = "1.4"\n{toml}\n',
            "instruction.md": "Write 42 into /app/answer.\n",
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": f"#!/bin/bash\n{test}",
            "solution/solve.sh": "#!/bin/bash\necho 42 > /app/answer\n",
            **(files or {}),
        }
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        os.chmod(folder / "tests/test.sh", 0o755)
        return folder

    return make
