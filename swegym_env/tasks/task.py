"""`Task`: a repository at a commit, an issue, and the tests that decide whether it is solved; `TaskSet`: many tasks."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from swegym_env.arguments import nearest, nearest_and_all, nearest_or_all
from swegym_env.errors import ConfigurationError, TaskFormatError, UnknownTaskError

__all__ = ["PARTS", "Identified", "Task", "TaskSet", "nearest", "task_to_row"]

_COLUMNS = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS"}


@dataclass(frozen=True)
class Task:
    """A row of a dataset in the SWE-bench schema, with the source of its files.

    Attributes:
        instance_id: unique within the dataset.
        repo: `owner/name`.
        base_commit: the commit that the agent starts from, complete or shortened, with `~1` for its parent; empty if
            `files` is the repository.
        base_patch: a git diff that is applied to that commit before the agent starts.
        problem_statement: the issue, as the agent reads it.
        patch: the gold patch (git diff).
        test_patch: the tests that belong to the fix (git diff); may be empty.
        fail_to_pass: names of the tests, as the log parser returns them, that fail before the fix and pass after it.
        pass_to_pass: names of the tests that must still pass.
        version: the repository's version, as in the table of set-up commands.
        image: image of the sandboxes: "host", a directory, `.sif`, `.def` or `docker://…`.
        official_image: the Docker image that the dataset names, as `docker://…`; used only on request.
        image_repository: absolute path of the repository in that image.
        eval_script: the official script, if the row has one.
        test_command: runs the tests if there is no `eval_script`.
        log_parser: name of the parser of the test log.
        eval_type: "pass_and_fail" or "fail_only".
        repository: path or URL to fetch the repository from, unless the user gives a directory of clones; empty:
            `https://github.com/OWNER/NAME`. In the file of a dataset, a path is relative to that file.
        python: Python version that `setup` needs, such as "3.9"; empty: any.
        setup: commands that install the task once, with network, into a cached layer.
        files: path → text of a small inline repository (the shipped sets); empty for a git repository.
        test_timeout_s: timeout of the tests in seconds.
    """

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    version: str = ""
    environment_setup_commit: str = ""
    hints_text: str = ""
    created_at: str = ""
    image: str = "host"
    official_image: str = ""
    image_repository: str = "/testbed"
    eval_script: str = ""
    test_command: str = ""
    log_parser: str = ""
    eval_type: str = "pass_and_fail"
    repository: str = ""
    base_patch: str = ""
    python: str = ""
    setup: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    test_timeout_s: float = 300.0

    def as_task(self) -> Task:
        """The task itself: it already is in repository form."""
        return self

    @cached_property
    def digest(self) -> str:
        """A hash of all fields except `repository`: where the clone is does not change the task."""
        row = {column: value for column, value in task_to_row(self).items() if column != "repository"}
        if row["image_repository"] == Task.image_repository:  # digests of earlier versions stay valid
            del row["image_repository"]
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:32]


def task_to_row(task: Task) -> dict[str, Any]:
    """The row from which `adapters.task_from_row` makes an equal task. Its values can be written as JSON."""
    row: dict[str, Any] = {}
    for each in dataclasses.fields(task):
        value = getattr(task, each.name)
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        row[_COLUMNS.get(each.name, each.name)] = value
    return row


class Identified(Protocol):
    """An element of a `TaskSet`: a frozen dataclass with an id."""

    @property
    def instance_id(self) -> str:
        """Unique within the set."""
        ...


T = TypeVar("T", bound=Identified)

PARTS: Mapping[str, float] = MappingProxyType({"train": 0.8, "validation": 0.1, "test": 0.1})
"""The parts of a dataset for splits such as "hash:train": name → fraction."""


class TaskSet(Sequence[T]):
    """Tasks in order, with unique ids.

    `tasks[3]` and `tasks[:10]` select by position, `tasks["django__django-11001"]` by id.

    Attributes:
        name: of the dataset, for messages.
        skipped: the errors of skipped rows, one line each.
    """

    def __init__(self, tasks: Iterable[T], *, name: str = "tasks", skipped: Iterable[str] = ()) -> None:
        """Make a set of these tasks.

        Raises:
            TaskFormatError: two of them have the same id.
        """
        self._tasks = tuple(tasks)
        self._positions = {task.instance_id: position for position, task in enumerate(self._tasks)}
        self.name = name
        self.skipped = tuple(skipped)
        if len(self._positions) != len(self._tasks):
            twice = next(i for i, n in Counter(task.instance_id for task in self._tasks).items() if n > 1)
            raise TaskFormatError(f"{name}: field 'instance_id': {twice!r} is used twice, expected unique ids")

    @property
    def ids(self) -> tuple[str, ...]:
        """The instance ids, in order."""
        return tuple(self._positions)

    @overload
    def __getitem__(self, key: int | str) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> TaskSet[T]: ...
    def __getitem__(self, key: int | str | slice) -> T | TaskSet[T]:
        """One task by position or id, or some by a slice.

        Raises:
            IndexError: there is no such position.
            UnknownTaskError: there is no such id; the message names the most similar ones.
        """
        if isinstance(key, slice):
            return self._with(self._tasks[key])
        if isinstance(key, str):
            if key not in self._positions:
                raise UnknownTaskError(f"{self.name}: no instance {key!r} among {len(self)}{nearest(key, self.ids)}")
            return self._tasks[self._positions[key]]
        return self._tasks[key]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[T]:
        return iter(self._tasks)

    def __contains__(self, item: object) -> bool:
        """Whether an id, or a task, is in the set."""
        return item in self._positions if isinstance(item, str) else item in self._tasks

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, {len(self)} tasks)"

    def subset(self, ids: Iterable[str]) -> TaskSet[T]:
        """The tasks with these ids, in their order.

        Raises:
            UnknownTaskError: one of them does not exist.
        """
        return self._with(self[instance_id] for instance_id in ids)

    def shuffled(self, seed: int) -> TaskSet[T]:
        """The same tasks in an order that depends only on `seed` and the ids, not on the current order."""
        ids = sorted(self.ids)
        random.Random(seed).shuffle(ids)
        return self.subset(ids)

    def where(self, **patterns: str) -> TaskSet[T]:
        """The tasks whose fields match shell patterns: `where(repo="django/*", version="4.*")`.

        Raises:
            ConfigurationError: the tasks have no such text field.
        """
        if not self._tasks:
            return self
        first: Any = self._tasks[0]
        values = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
        known = [name for name, value in values.items() if isinstance(value, str)]
        unknown = next((name for name in patterns if name not in known), None)
        if unknown is not None:
            hint = nearest_or_all(unknown, known)
            raise ConfigurationError(f"{self.name}: no text field {unknown!r} to filter by{hint}")
        return self.filtered(
            lambda task: all(fnmatch.fnmatchcase(getattr(task, name), pattern) for name, pattern in patterns.items())
        )

    def filtered(self, keep: Callable[[T], bool]) -> TaskSet[T]:
        """The tasks for which `keep` returns True, in the same order."""
        return self._with(task for task in self._tasks if keep(task))

    def part(self, name: str, parts: Mapping[str, float] = PARTS) -> TaskSet[T]:
        """The tasks of one part, assigned by the digest of their ids.

        The part of a task depends only on its id (that of its pair, if it has one), so it does not change when tasks
        are added, removed or reordered.

        Args:
            name: of the part.
            parts: name → fraction; the fractions add up to 1.

        Raises:
            ConfigurationError: there is no such part, or the fractions do not add up to 1.
        """
        if name not in parts:
            raise ConfigurationError(f"{self.name}: no part {name!r}{nearest_and_all(name, tuple(parts))}")
        if not math.isclose(sum(parts.values()), 1.0) or min(parts.values()) < 0:
            raise ConfigurationError(
                f"{self.name}: the fractions of {', '.join(parts)} must add up to 1, got {sum(parts.values()):g}"
            )
        bounds = [0.0, *accumulate(parts.values())]
        bounds[-1] = 1.0  # the sum of floating-point fractions may differ
        number = list(parts).index(name)
        return self.filtered(lambda task: bounds[number] <= _position(task) < bounds[number + 1])

    def _with(self, tasks: Iterable[T]) -> TaskSet[T]:
        return TaskSet(tasks, name=self.name, skipped=self.skipped)


def _position(task: Identified) -> float:
    """A number in [0, 1) from the SHA-256 digest of a task's id."""
    name = getattr(task, "pair", "") or task.instance_id
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48
