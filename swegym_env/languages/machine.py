"""Projects that are built with the machine's own toolchain, and by commands of the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swegym_env.errors import LayerError
from swegym_env.languages import Installation, Toolchain
from swegym_env.languages.debian import missing_programs
from swegym_env.sandbox.layers import LayerStore
from swegym_env.tasks.task import Task

__all__ = ["MachineRecipe"]


@dataclass(frozen=True)
class MachineRecipe:
    """How one repository is built.

    Attributes:
        name: of the toolchain.
        programs: each that it has → the Debian package with it.
        packages: further Debian packages that it needs.
        commands: bash commands in `/testbed` that build it, once for the version and again for each base commit.
        env: variables of the commands and of every sandbox of the task.
    """

    name: str
    programs: Mapping[str, str]
    packages: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def toolchain(self) -> Toolchain:
        """See `Recipe.toolchain`."""
        missing = missing_programs(self.programs)
        if not missing:
            return Toolchain(self.name)
        wanted = " ".join([*missing.values(), *self.packages])
        problem = f"this machine lacks {' and '.join(missing.values())} below /usr. Try: apt-get install {wanted}"
        return Toolchain(self.name, f"{problem}, or an image that has them")

    def tests_of(self, task: Task) -> str:
        """No command is shared by all projects."""
        return ""

    def installation(self, task: Task, store: LayerStore) -> Installation:
        """Plan the installation. Raises LayerError: the machine lacks a program."""
        if task.image == "host" and (problem := self.toolchain().problem):
            raise LayerError(f"{task.instance_id}: {problem}")
        return Installation((), dict(self.env), (), self.commands, (repr(self.commands),))
