"""The commands that run a task's tests: its own test command, or its official evaluation script, reduced.

An official script activates conda, shows git's state, installs the repository again, checks out the tests, applies the
test patch and runs the tests between two markers. Grading applies the patches itself and needs no markers. In the image
that the script was written for, the rest runs as it is. Elsewhere there is no conda and the repository is installed
already, so only the settings and the commands between the markers remain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from swegym_env.errors import GradingError
from swegym_env.languages import language_of
from swegym_env.tasks.task import Task

__all__ = ["Evaluation", "evaluation_of"]

_START, _END = ">>>>> Start Test Output", ">>>>> End Test Output"
_DONE_BY_GRADING = re.compile(r"git |#!|set -|: ")
_OF_THE_IMAGE = re.compile(r"source (?!\./)|cd /testbed$|apt-get |.*locale-gen")
_HEREDOC = re.compile(r"<<-?\s*'?(\w+)'?")


@dataclass(frozen=True)
class Evaluation:
    """The commands that run the tests of a task, in `/testbed` after the patches are applied.

    Attributes:
        settings: commands before the tests (`export LANG=…`); their output is not in the log.
        tests: the tests themselves, one bash script.
    """

    settings: str
    tests: str


def evaluation_of(task: Task, table_command: str = "") -> Evaluation:
    """The commands of `task`: from its `eval_script`, else its test command, else `table_command`.

    Args:
        table_command: the test command of the table of set-up commands.

    Raises:
        GradingError: the task has none of these, or its script has no command between the markers.
    """
    if not task.eval_script:
        if task.test_command or table_command:
            return Evaluation("", task.test_command or table_command)
        raise GradingError(
            f"{task.instance_id}: no tests to run: neither eval_script nor test_command is given, "
            f"and the table of set-up commands has none for {task.repo} {task.version}"
        )
    elsewhere = task.image == "host"
    installing = language_of(task).installing_lines
    settings: list[str] = []
    tests: list[str] = []
    section = settings
    heredoc_end = ""
    for line in task.eval_script.splitlines():
        if heredoc_end:  # inside the test patch
            heredoc_end = "" if line.strip() == heredoc_end else heredoc_end
            continue
        heredoc = _HEREDOC.search(line)
        if heredoc and line.startswith("git apply"):
            heredoc_end = heredoc[1]
        elif _START in line:
            section = tests
        elif _END in line:
            section = []
        elif section is tests and line.strip():
            tests.append(line)
        elif line.strip() and not _DONE_BY_GRADING.match(line):
            if not elsewhere:
                section.append(line)
            elif not _OF_THE_IMAGE.match(line) and not installing.match(line):
                section.append(line.replace("en_US.UTF-8", "C.UTF-8"))  # the one UTF-8 locale of every image
    if not tests:
        raise GradingError(
            f"{task.instance_id}: eval_script has no commands between its markers {_START!r} and {_END!r}"
        )
    if elsewhere and table_command and _program(tests[-1]) != _program(table_command):
        tests = [table_command]  # the image's program does not work here: tox, or a server on the internet
    return Evaluation("\n".join(settings), "\n".join(tests))


def _program(command: str) -> str:
    """The program that a command line runs, without the variables before it."""
    return next((word for word in command.split() if "=" not in word), "")
