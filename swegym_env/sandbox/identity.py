"""Which user runs inside a sandbox, who owns its files, and who it is on the host."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from swegym_env.errors import ConfigurationError

__all__ = ["SANDBOX_ID", "check_binds", "own", "own_users", "sandbox_user"]

# The user and group of sandboxes whose owner is root, inside them and on disk; an id that usual systems do not use.
# Running as root would be no boundary, another user is one.
SANDBOX_ID = 61000

# On the host each sandbox of root has an id of its own, see `linux.users`: of this range, which systemd and useradd
# leave to nobody, if no other is configured.
_RANGE = (0x70000000, 1 << 16)
_LARGEST_ID = (1 << 32) - 2
_OLDEST_KERNEL = (5, 19)  # overlays below which ids are mapped


def sandbox_user() -> tuple[int, int]:
    """User and group id of every process in a sandbox of this process, as seen inside: always an ordinary user."""
    if os.geteuid() == 0:
        return SANDBOX_ID, SANDBOX_ID
    return os.geteuid(), os.getegid()


def own(path: str | Path) -> None:
    """Make the sandbox's user the owner of `path`. Links are not followed."""
    if os.geteuid() == 0:
        os.chown(path, *sandbox_user(), follow_symlinks=False)


def check_binds(binds: Mapping[str, str]) -> None:
    """Check that programs inside can read what is bound into a sandbox, host path → path inside.

    Owners of the machine have no id inside. A sandbox of root reads what everybody may read, that of another owner what
    this owner may read.

    Raises:
        ConfigurationError: a source does not exist, or is closed to the sandbox's user.
    """
    for source in binds:
        try:
            status = os.stat(source)
        except OSError as error:
            raise ConfigurationError(f"binds: {source}: {error.strerror}") from error
        needed = 5 if stat.S_ISDIR(status.st_mode) else 4
        if os.geteuid() != 0:
            readable = os.access(source, os.R_OK | (os.X_OK if needed == 5 else 0), effective_ids=True)
        else:
            mine = status.st_uid == SANDBOX_ID and not own_users()
            readable = status.st_mode >> (6 if mine else 0) & needed == needed or _has_access_list(source)
        if not readable:
            what = f"mode {stat.S_IMODE(status.st_mode):04o} of user {status.st_uid}"
            raise ConfigurationError(
                f"binds: {source}: no program in the sandbox could read it ({what}). "
                f"Try: chmod o+{'rx' if needed == 5 else 'r'}, or a copy that is open"
            )


def _has_access_list(path: str) -> bool:
    """Whether more than its mode decides who may read a file."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except OSError:  # a file system without
        return False


def own_users() -> tuple[int, ...]:
    """First id and number of ids that sandboxes have on the host, one each, and the owner of their files on disk.

    Of `$SWEGYM_SUBUID` (`FIRST:COUNT`), else of root's line in `/etc/subuid`, else a range that usual systems do not
    use. Empty where sandboxes share one user: the owner is not root, or the kernel is too old.

    Raises:
        ConfigurationError: the variable is malformed.
    """
    if os.geteuid() != 0 or _kernel() < _OLDEST_KERNEL:
        return ()
    given = os.environ.get("SWEGYM_SUBUID")
    if given:
        return *_range(given), SANDBOX_ID
    with contextlib.suppress(OSError, ConfigurationError):
        for line in Path("/etc/subuid").read_text().splitlines():
            name, _, ids = line.partition(":")
            if name in ("root", "0"):
                return *_range(ids), SANDBOX_ID
    return *_RANGE, SANDBOX_ID


def _range(text: str) -> tuple[int, int]:
    first, _, count = text.partition(":")
    if not (first.isascii() and first.isdigit() and count.isascii() and count.isdigit()):
        raise ConfigurationError(f"SWEGYM_SUBUID: expected FIRST:COUNT, two numbers, got {text!r}")
    if int(first) < 1 or int(count) < 1 or int(first) + int(count) - 1 > _LARGEST_ID:
        raise ConfigurationError(f"SWEGYM_SUBUID: expected ids from 1 to {_LARGEST_ID}, got {text!r}")
    return int(first), int(count)


def _kernel() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2])
