"""How projects of C and C++ are set up: with the machine's compiler, and commands of the task."""

from __future__ import annotations

from swegym_env.languages.machine import MachineRecipe
from swegym_env.tasks.task import Task

__all__ = ["find_recipe"]

_PROGRAMS = {"cc": "gcc", "make": "make"}


def find_recipe(task: Task) -> MachineRecipe | None:
    """The task's own `setup` commands; for a shipped task, the toolchain alone."""
    if not (task.setup or task.files):
        return None
    return MachineRecipe("a C compiler", _PROGRAMS, packages=("libc6-dev",), commands=task.setup)
