"""Processes of a sandbox as the host sees them: their tree in `/proc`, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from . import kernel

__all__ = ["become_user", "descendants", "kill_one", "start_child"]

_NICENESS = 5  # of work that nobody waits for


def become_user(uid: int, gid: int) -> None:
    """Become an ordinary user for good; does nothing where this process is that user already."""
    if os.getresuid() != (uid, uid, uid):
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def kill_one(pid: int) -> None:
    """Send SIGKILL to one process, which may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def start_child(work: Callable[[], bytes], output: int | None = None) -> int:
    """Do something that takes long in a child, which dies with this process.

    The child keeps none of this process's descriptors but standard error, where it reports a failure.

    Args:
        work: what to do.
        output: a descriptor that its result is written to.
    Returns:
        The child's process id; its exit code is 0 if `work` returned.
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        kernel.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            if output is not None:
                os.dup2(output, 1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.nice(_NICENESS)
            result = work()
            if output is not None:
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(1, result)
            code = 0
    except Exception as error:  # noqa: BLE001 - the parent sees the exit code only
        os.write(2, f"swegym: {type(error).__name__}: {error}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(code)


def descendants(ancestor: int) -> list[int]:
    """Every process below `ancestor`, parents first. An orphan counts as a child of the process that adopted it."""
    found = _children(ancestor)
    for parent in found:  # grows during the iteration
        found += _children(parent)
    return found


def _children(parent: int) -> list[int]:
    """The current children of all threads of a process; none where it is gone."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{parent}/task"):
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),  # one thread may end meanwhile
                open(f"/proc/{parent}/task/{thread}/children") as file,
            ):
                found += [int(word) for word in file.read().split()]
    return found
