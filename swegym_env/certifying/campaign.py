"""Runs over many tasks in threads, in which a failure of the machine is the result of one task and not the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from swegym_env.errors import InfrastructureError
from swegym_env.tasks.task import Task

__all__ = ["for_each_task"]

_Found = TypeVar("_Found")


def for_each_task(
    tasks: Iterable[Task],
    find: Callable[[Task], _Found],
    *,
    jobs: int = 1,
    on_found: Callable[[_Found | str], None] | None = None,
    name: str,
) -> Iterator[tuple[Task, _Found | str]]:
    """Call `find` for tasks, `jobs` at a time; the results come in the order of the tasks.

    Args:
        on_found: called for each result as soon as it is known, for progress.
        name: of the threads.
    Returns:
        Each task with its result; for an InfrastructureError with its text.
    """

    def one(task: Task) -> tuple[Task, _Found | str]:
        found: _Found | str
        try:
            found = find(task)
        except InfrastructureError as error:
            found = str(error)
        if on_found is not None:
            on_found(found)
        return task, found

    pool = ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix=name)
    try:
        yield from pool.map(one, tasks)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
