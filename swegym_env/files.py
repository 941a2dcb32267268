"""Files that stay whole: written atomically, or appended to line by line; directories that others can enter; YAML."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["append_json_line", "is_full", "make_directory", "read_json_lines", "read_yaml", "write_atomically"]


def is_full(error: OSError) -> bool:
    """Whether it says that a disk, or somebody's quota of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_directory(path: str | os.PathLike[str], mode: int = 0o755) -> None:
    """Make a directory, and those above it that are missing, with these permissions whatever the umask is.

    One that exists is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    if os.path.isdir(path):
        return
    if above := os.path.dirname(path):
        make_directory(above, mode)
    try:
        os.mkdir(path)
    except FileExistsError:  # another process was faster, or it is a file
        if not os.path.isdir(path):
            raise
        return
    os.chmod(path, mode)


def write_atomically(path: Path, text: str) -> Path:
    """Write a file in UTF-8, so that a reader finds the former content or the new one, never a part of it.

    Several processes may write it at once. A lone surrogate is escaped. The parent directory must exist.

    Returns:
        The path.
    Raises:
        OSError: it cannot be written. Then, and after an interrupt, the former content stays, and nothing else is left.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        return partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def append_json_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines. Processes and threads may append at once; lines are never mixed.

    Raises:
        OSError: it cannot be written.
    """
    line = (json.dumps(row) + "\n").encode()
    with path.open("ab+") as file:
        with contextlib.suppress(OSError):  # refused by some shared file systems
            fcntl.flock(file, fcntl.LOCK_EX)
        if (size := os.fstat(file.fileno()).st_size) and os.pread(file.fileno(), 1, size - 1) != b"\n":
            line = b"\n" + line  # keep a line that a crash cut off apart from this one
        file.write(line)


def read_json_lines(path: Path) -> list[Any]:
    """The rows of a file of JSON lines; [] if there is no file. A line that a crash cut off is skipped.

    Raises:
        OSError: it cannot be read.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def read_yaml(path: Path) -> Any:
    """What a YAML file contains, by libyaml where PyYAML has it: ten times as fast.

    Raises:
        OSError: it cannot be read.
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), loader)
