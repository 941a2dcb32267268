"""How projects of C and C++ are set up: with the machine's compiler, and commands of the task."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from swegym_env.errors import LayerError
from swegym_env.languages import Installation, Toolchain
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["CRecipe", "find_recipe"]

# Program → Debian's package.
_TOOLCHAIN = {"cc": "gcc", "make": "make"}
_HEADER_PACKAGE = "libc6-dev"


@dataclass(frozen=True)
class CRecipe:
    """How one repository is built.

    Attributes:
        commands: bash commands in `/testbed` that build it, once for the version and again for each base commit.
        env: variables of the commands and of every sandbox of the task.
    """

    commands: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def toolchain(self) -> Toolchain:
        """See `Recipe.toolchain`."""
        missing = [
            package for program, package in _TOOLCHAIN.items() if not shutil.which(program, path="/usr/bin:/bin")
        ]
        if not missing:
            return Toolchain("a C compiler")
        packages = " ".join([*missing, _HEADER_PACKAGE])
        problem = f"this machine lacks {' and '.join(missing)} below /usr. Try: apt-get install {packages}"
        return Toolchain("a C compiler", f"{problem}, or an image that has them")

    def tests_of(self, task: Task) -> str:
        """Tests of C have no command that all projects share."""
        return ""

    def installation(self, task: Task, store: LayerStore) -> Installation:
        """Plan the installation. Raises LayerError: the machine lacks the compiler or make."""
        if task.image == "host" and (problem := self.toolchain().problem):
            raise LayerError(f"{task.instance_id}: {problem}")
        return Installation((), dict(self.env), (), self.commands, (repr(self.commands),))


def find_recipe(task: Task) -> CRecipe | None:
    """The task's own `setup` commands; for a shipped task, the toolchain alone."""
    return CRecipe(task.setup) if task.setup or task.files else None
