"""The settings of a `make-tasks` run."""

from __future__ import annotations

from dataclasses import dataclass, field

from swegym_env.arguments import CheckedArguments
from swegym_env.making.validation import Limits

__all__ = ["MakeSettings"]


@dataclass(frozen=True)
class MakeSettings(CheckedArguments):
    """Which tasks to make, and how many.

    Attributes:
        count: number of tasks; fewer are made if the project gives no more.
        seed: decides which bugs are tried, and in which order.
        kinds: kinds of mistakes; empty: all.
        tests: paths of the tests to use; empty: those that pytest finds.
        requires: what pip installs for the tests, besides the project's own requirements.
        install: commands that install the project, instead of `pip install -e .`, or `npm install` in JavaScript.
        test_command: runs all tests of a project in another language than Python; empty: what its files name.
        per_function: largest number of tasks in one function.
        tries: largest number of candidates for each task.
        limits: limits of the tests of one task.
    """

    count: int = 50
    seed: int = 0
    kinds: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    test_command: str = ""
    per_function: int = 4
    tries: int = 40
    limits: Limits = field(default_factory=Limits)
