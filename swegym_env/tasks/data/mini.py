"""The shipped set `mini`: small packages with validated bugs, and issues as a user would report them.

    mini/PACKAGE/repo/         the correct package: sources, tests, README
    mini/PACKAGE/bugs.md       its bugs, each an edit of one file and an issue (format: `read_bugs`)
    mini/PACKAGE/results.json  test results, written by `scripts/validate_mini.py --write`

The repository of a task contains the bug, and lacks the tests that reveal it: those are in the test patch, as in
SWE-bench. The packages of the split "test" share no file with those of "train".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from swegym_env.errors import TaskFormatError, UnknownTaskError
from swegym_env.repo.patches import LineEdit, apply_edits, git_diff
from swegym_env.tasks.task import Task

__all__ = [
    "DATA",
    "HELD_OUT",
    "SPLITS",
    "Bug",
    "drop_tests",
    "edit_and_revert",
    "load",
    "make_task",
    "packages",
    "read_bugs",
    "read_repository",
    "repair_task",
]

DATA = Path(__file__).parent / "mini"
SPLITS = ("train", "test")
HELD_OUT = frozenset({"exprcalc", "intervals", "jsonpatch"})
"""The packages of the split "test"; all others are "train"."""

TEST_COMMAND = "python3 -m unittest -v"
TEST_TIMEOUT_S = 60.0

_ENTRY = re.compile(r"^## (?P<number>\d{3}) (?P<kind>[a-z-]+) (?P<path>\S+)$", re.MULTILINE)
_EDIT = re.compile(r"\n+<{7} fixed\n(?P<fixed>.*?)={7}\n(?P<bugged>.*?)>{7} bugged\n+(?P<issue>.*)", re.DOTALL)


@dataclass(frozen=True)
class Bug:
    """One way to break a package.

    Attributes:
        package: its package.
        number: three digits, unique in the package.
        kind: type of the bug ("off-by-one", "lost-guard", …).
        path: the edited file.
        fixed: whole lines of that file, which occur in it once.
        bugged: the lines that replace them; empty to remove them.
        issue: the report; its first line is the title.
        dataset: that the package belongs to.
    """

    package: str
    number: str
    kind: str
    path: str
    fixed: str
    bugged: str
    issue: str
    dataset: str = "mini"

    @property
    def instance_id(self) -> str:
        """The id of the task made from this bug."""
        return f"{self.dataset}__{self.package}-{self.number}"

    def edit(self, files: Mapping[str, str]) -> LineEdit:
        """The edit that introduces the bug into `files`.

        Raises:
            TaskFormatError: the lines to replace do not occur exactly once.
        """
        text = "\n" + files.get(self.path, "")
        wanted = "\n" + self.fixed
        start = text.find(wanted)
        # Adjacent occurrences share a newline, which `str.count` would count only once.
        if start < 0 or not self.fixed or text.find(wanted, start + 1) >= 0:
            how_often = "more than once" if start >= 0 else "nowhere"
            raise TaskFormatError(
                f"{self.instance_id}: the lines to replace occur {how_often} in {self.path!r}, expected once"
            )
        first = text.count("\n", 0, start)
        return LineEdit(first, first + self.fixed.count("\n"), tuple(self.bugged.splitlines(keepends=True)))

    def break_files(self, files: Mapping[str, str]) -> dict[str, str]:
        """`files` with this bug in them."""
        lines = files.get(self.path, "").splitlines(keepends=True)
        return {**files, self.path: "".join(apply_edits(lines, [self.edit(files)]))}


def packages(split: str | None = None) -> tuple[str, ...]:
    """The names of the packages, sorted: of one split, or all.

    Raises:
        UnknownTaskError: there is no such split.
    """
    if split is not None and split not in SPLITS:
        raise UnknownTaskError(f"mini: no split {split!r}; there are {', '.join(SPLITS)}")
    names = sorted(entry.name for entry in os.scandir(DATA) if entry.is_dir() and entry.name[0] not in "._")
    return tuple(name for name in names if split is None or (name in HELD_OUT) == (split == "test"))


def read_repository(package: str, data: Path | None = None) -> dict[str, str]:
    """The files of a package without bugs: path → text. `data`: the folder of the dataset; None: of `mini`."""
    root = str((data or DATA) / package / "repo")
    files: dict[str, str] = {}
    for folder, folders, names in os.walk(root):
        # Installers compile .py files; the result is not part of the repository.
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8", newline="") as file:
                files[os.path.relpath(path, root).replace(os.sep, "/")] = file.read()
    return files


def read_bugs(package: str, data: Path | None = None, dataset: str = "mini") -> list[Bug]:
    """The bugs of a package, from its `bugs.md` in the folder `data` (None: of `mini`).

    An entry is a heading, the edit, and the issue::

        ## 007 off-by-one shelf/cache.py

        <<<<<<< fixed
                if len(self) > self.capacity:
        =======
                if len(self) >= self.capacity:
        >>>>>>> bugged

        The cache never fills up

        With room for three entries …

    Raises:
        TaskFormatError: an entry has another form, or a number occurs twice.
    """
    text = ((data or DATA) / package / "bugs.md").read_text(encoding="utf-8")
    headings = list(_ENTRY.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    bugs: list[Bug] = []
    for heading, end in zip(headings, ends, strict=True):
        where = f"{dataset}/{package}/bugs.md entry {heading['number']}"
        body = _EDIT.fullmatch(text, heading.end(), end)
        if body is None or not body["issue"].strip():
            raise TaskFormatError(f"{where}: expected '<<<<<<< fixed', '=======', '>>>>>>> bugged' and an issue")
        if any(bug.number == heading["number"] for bug in bugs):
            raise TaskFormatError(f"{where}: the number is used twice")
        bugs.append(
            Bug(
                package=package,
                number=heading["number"],
                kind=heading["kind"],
                path=heading["path"],
                fixed=body["fixed"],
                bugged=body["bugged"],
                issue=body["issue"].strip() + "\n",
                dataset=dataset,
            )
        )
    return bugs


def drop_tests(text: str, module: str, names: Collection[str]) -> list[LineEdit]:
    """The edits that remove test methods from a test file.

    A class that would have no tests left is removed as a whole. The file is parsed by its indentation alone: that is
    enough for the tests of this set, and a hundred times faster than a syntax tree.

    Args:
        text: the test file, of `unittest` classes at the top level.
        module: its dotted name, as in `names`.
        names: dotted ids, `module.Class.method`; those of other modules are ignored.
    """
    lines = text.splitlines(keepends=True)
    edits: list[LineEdit] = []
    for class_name, start, stop, methods in _test_classes(text):
        chosen = [span for name, *span in methods if f"{module}.{class_name}.{name}" in names]
        spans = [[start, stop]] if chosen and len(chosen) == len(methods) else chosen
        for first, last in spans:
            while first and not lines[first - 1].strip():
                first -= 1
            edits.append(LineEdit(first, last, ()))
    return edits


@lru_cache(maxsize=64)
def _test_classes(text: str) -> tuple[tuple[str, int, int, tuple[tuple[str, int, int], ...]], ...]:
    """(class, first line, line after, its tests) of each class, and (test, first line, line after) of each test."""
    lines = text.splitlines(keepends=True)
    classes = []
    at = 0
    while at < len(lines):
        heading = re.match(r"class (\w+)", lines[at])
        if heading is None:
            at += 1
            continue
        start, stop = at, _block_end(lines, at, indent=0)
        methods = []
        decorated_from = None
        at += 1
        while at < stop:
            if lines[at].startswith("    @") and decorated_from is None:
                decorated_from = at
            method = re.match(r"    def (\w+)", lines[at])
            end = _block_end(lines, at, indent=4) if method else at + 1
            if method:
                if method[1].startswith("test"):
                    methods.append((method[1], at if decorated_from is None else decorated_from, end))
                decorated_from = None
            at = end
        classes.append((heading[1], start, stop, tuple(methods)))
    return tuple(classes)


def _block_end(lines: list[str], at: int, *, indent: int) -> int:
    """The line after the block that begins at line `at`, without blank lines after it."""
    end = last = at + 1
    while end < len(lines):
        line = lines[end]
        if line.strip():
            if len(line) - len(line.lstrip(" ")) <= indent and not line.lstrip().startswith(")"):
                break
            last = end + 1
        end += 1
    return last


def load(split: str | None = None) -> list[Task]:
    """The tasks of a split ("train" or "test"), or of both.

    Raises:
        UnknownTaskError: there is no such split.
        TaskFormatError: the shipped files are damaged.
    """
    return [task for package in packages(split) for task in _tasks_of(package, DATA)]


@lru_cache(maxsize=64)
def _tasks_of(package: str, data: Path) -> tuple[Task, ...]:
    """Cached: parallel environments use the same tasks, and many tasks share the same files."""
    files = read_repository(package)
    results = json.loads((data / package / "results.json").read_text(encoding="utf-8"))
    tests: list[str] = results["tests"]
    tasks = []
    for bug in read_bugs(package):
        failing: list[str] | None = results["fail_to_pass"].get(bug.number)
        if failing is None:
            raise TaskFormatError(f"{bug.instance_id}: not validated; run scripts/validate_mini.py --write")
        tasks.append(make_task(bug, files, tests, failing))
    return tuple(tasks)


def make_task(bug: Bug, files: Mapping[str, str], tests: Collection[str], failing: Collection[str]) -> Task:
    """The task of one bug.

    Args:
        bug: the bug.
        files: the repository without the bug.
        tests: the dotted ids of all its tests, which pass without the bug.
        failing: the tests that fail with the bug.
    """
    base = dict(files)
    patch = edit_and_revert(base, bug.path, [bug.edit(files)])
    test_patch = ""
    for path in sorted({test.rsplit(".", 2)[0].replace(".", "/") + ".py" for test in failing}):
        test_patch += edit_and_revert(base, path, drop_tests(files[path], path[:-3].replace("/", "."), failing))
    return repair_task(
        bug, base, patch, test_patch, tests, failing, repo="mini", test_command=TEST_COMMAND, log_parser="unittest"
    )


def repair_task(
    bug: Bug,
    base: dict[str, str],
    patch: str,
    test_patch: str,
    tests: Collection[str],
    failing: Collection[str],
    *,
    repo: str,
    test_command: str,
    log_parser: str,
) -> Task:
    """The task of repairing one bug of a shipped set.

    Args:
        bug: the bug.
        base: the repository with the bug and without the tests that reveal it.
        patch: removes the bug.
        test_patch: adds those tests.
        tests: the names of all tests, which pass without the bug.
        failing: the tests that fail with the bug.
        repo: the name of the set.
        test_command, log_parser: as of `Task`.
    """
    return Task(
        instance_id=bug.instance_id,
        repo=f"{repo}/{bug.package}",
        base_commit="",
        problem_statement=bug.issue,
        patch=patch,
        test_patch=test_patch,
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(test for test in tests if test not in failing),
        version="1.0",
        test_command=test_command,
        log_parser=log_parser,
        files=base,
        test_timeout_s=TEST_TIMEOUT_S,
    )


def edit_and_revert(files: dict[str, str], path: str, edits: list[LineEdit]) -> str:
    """Apply `edits` to `files[path]`, and return the git diff that reverts them."""
    lines = files[path].splitlines(keepends=True)
    edited = apply_edits(lines, edits)
    files[path] = "".join(edited)
    back: list[LineEdit] = []
    grown = 0
    for edit in edits:
        back.append(
            LineEdit(edit.start + grown, edit.start + grown + len(edit.lines), tuple(lines[edit.start : edit.stop]))
        )
        grown += len(edit.lines) - (edit.stop - edit.start)
    return git_diff(path, edited, back)
