"""What an agent may know of a test command: how tests are run, and not which files hold the hidden ones.

Rows of many datasets have a command that runs the hidden tests alone and so names their files: SWE-smith, SWE-rebench
and SWE-Flow append them to pytest. Without these words such a command runs all tests.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from swegym_env.repo.patches import runnable_test_files, touched_paths
from swegym_env.tasks.task import Task

__all__ = ["command_without_hidden_tests"]

# A word of a shell command, as it is written: bare characters, quoted parts, escaped characters.
_WORD = re.compile(r"""(?:[^\s'"\\;&|<>()]|'[^']*'|"(?:\\.|[^"\\])*"|\\.)+""", re.DOTALL)
_RUNS_ALL = re.compile(  # runs all tests where it is given none
    r"(?:^|[\s/])(?:pytest|py\.test|unittest|runtests\.py|nosetests|tox|jest|vitest|mocha|mvnw?|gradlew?)(?:\s|$)"
)
_TAKES_A_TEST = frozenset({"--deselect", "--ignore", "--ignore-glob", "--tests", "--testPathPattern", "-k", "-t"})
_TEST_FILE = re.compile(r"test|spec", re.IGNORECASE)
_COMMON = frozenset({"test", "tests", "spec", "conftest", "__init__"})  # names that reveal nothing


def command_without_hidden_tests(task: Task, repository: Path) -> str:
    """The task's own test command without the words that name files of its hidden tests.

    Hidden are the files of its test patch and of its two lists of tests. A command that names none stays as it is.

    Args:
        repository: the files at the base commit, on this machine.

    Returns:
        The command; empty if the task has none, if a runner that is not known to run all tests was given a hidden file,
        or if the rest still names one.
    """
    if not task.test_command:
        return ""
    return _reduced(task.test_command, task.test_patch, (*task.fail_to_pass, *task.pass_to_pass), repository)


@functools.lru_cache(maxsize=256)
def _reduced(command: str, test_patch: str, tests: tuple[str, ...], repository: Path) -> str:
    hidden = _HiddenTests(test_patch, tests, repository)
    joined = command.replace("\\\n", " ")
    kept, place, program, option = "", 0, 0, ""
    for word in _WORD.finditer(joined):
        between, place = joined[place : word.start()], word.end()
        if set(between) & set(";&|\n()"):
            program = len(kept) + len(between)
        if not hidden.are_named_by(_unquoted(word[0])):
            kept, option = kept + between + word[0], word[0]
            continue
        if not _RUNS_ALL.search(kept[program:]):
            return ""
        if option in _TAKES_A_TEST:
            kept = kept.removesuffix(option)
        kept, option = kept.rstrip(" \t") + between.strip(" \t"), ""
    kept += joined[place:]
    if hidden.are_mentioned_in(kept):
        return ""
    return kept.strip() if kept != joined else command


class _HiddenTests:
    """The files of hidden tests, under all the names that a command may have for them."""

    def __init__(self, test_patch: str, tests: tuple[str, ...], repository: Path) -> None:
        changed = touched_paths(test_patch)
        given = {place for name in tests if (place := _place_of(name))}
        files = {place for place in given if "/" in place or place.endswith(".py")}
        files |= {path for path in runnable_test_files(test_patch) if _TEST_FILE.search(path)}
        folders = {os.fspath(parent) for path in changed for parent in Path(path).parents}
        modules = {path.rpartition(".")[0].replace("/", ".") for path in files} | (given - files)
        self._words = {
            *tests,
            *(end for path in {*changed, *files} for end in _ends(path, "/")),
            *(folder for folder in folders if not (repository / folder).exists()),
            *(end for module in modules for end in _ends(module, ".")),
            *(end for module in given - files for start in _starts(module) for end in _ends(start, ".")),
        } - _COMMON
        stems = {path.rpartition("/")[2].partition(".")[0] for path in files}
        inner = {part for module in given - files for part in module.split(".")[1:]}
        self._mentioned = (stems | inner) - _COMMON

    def are_named_by(self, word: str) -> bool:
        """Whether a word is such a file or what is in it, or an option with such a value."""
        if word in self._words:
            return True
        if word.startswith("-"):
            value = word.partition("=")[2]
            return bool(value) and any(map(self.are_named_by, value.split(",")))
        file = word.removeprefix("./").partition("::")[0].rstrip("/")
        parts = file.partition("#")[0].replace("/", ".").split(".")
        return file in self._words or any(".".join(parts[:length]) in self._words for length in range(1, len(parts)))

    def are_mentioned_in(self, text: str) -> bool:
        """Whether the name of such a file is anywhere in a text."""
        return not self._mentioned.isdisjoint([*re.findall(r"[\w-]+", text), *re.findall(r"\w+", text)])


def _place_of(test: str) -> str:
    """The path, or the dotted name of a module and maybe a class, in the name of a test; empty if it has neither."""
    inner = re.search(r"\(([\w.]+)\)$", test)  # unittest: test_x (tests.test_module.TestX)
    place = inner[1] if inner else re.split(r"::| \| |:", test, maxsplit=1)[0].strip()
    return place if "/" in place or re.fullmatch(r"\w+(\.\w+)+", place) else ""


def _ends(path: str, joint: str) -> Iterator[str]:
    """The path or module name relative to each directory or package above it: a command may run in any of them."""
    parts = path.split(joint)
    return (joint.join(parts[number:]) for number in range(len(parts)))


def _starts(module: str) -> Iterator[str]:
    """The modules and classes that a dotted name is in, without the package at the top."""
    parts = module.split(".")
    return (".".join(parts[:number]) for number in range(2, len(parts)))


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
