"""Projects that are built with the machine's own toolchain, by commands of the task or of a language's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swegym_env.errors import LayerError
from swegym_env.languages import Installation, Toolchain
from swegym_env.languages.debian import PROGRAMS, SYSTEM_PATH, missing_programs, programs_layer, why_missing
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
        unpacked: further programs → the Debian package with each, which is unpacked into a layer where the machine
            lacks the program.
        submodules: paths of the repository's git submodules that the commands need.
        commands: bash commands in `/testbed` that build it, once for the version and again for each base commit.
        env: variables of the commands and of every sandbox of the task.
    """

    name: str
    programs: Mapping[str, str]
    packages: tuple[str, ...] = ()
    unpacked: Mapping[str, str] = field(default_factory=dict)
    submodules: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def toolchain(self) -> Toolchain:
        """See `Recipe.toolchain`."""
        missing = missing_programs(self.programs)
        if not missing:
            return Toolchain(self.name, why_missing(self.unpacked))
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
        programs = programs_layer(self.unpacked, store) if task.image == "host" else None
        layers = (programs,) if programs else ()
        env = {"PATH": f"{PROGRAMS}/bin:{SYSTEM_PATH}"} if programs else {}
        return Installation(
            layers, {**env, **self.env}, (), self.commands, (repr(self.commands), *self.submodules), self.submodules
        )
