"""Files that are written whole or not at all: what is read is the former content or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing", "sync", "write_whole"]


def write_whole(path: str | Path, content: str | bytes, *, mode: int = 0o666) -> Path:
    """Write a file, whole or not at all; its folder is made if it is not there.

    Args:
        path: where; what is there is replaced.
        content: text is written as UTF-8.
        mode: of the file, less the process's mask.
    Returns:
        The path.
    Raises:
        OSError: it cannot be written; what was there stays, and nothing else is left.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=mode) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def replacing(path: str | Path, *, mode: int = 0o666) -> Iterator[Path]:
    """A new file beside `path` that takes its place when the block ends, and vanishes when the block fails.

    It is on the disk before it has the name, so that a machine that dies leaves one of the two. Several may write at
    once: the last to end wins.

    Args:
        path: in a folder that exists.
        mode: as in `write_whole`.
    Yields:
        The new file, empty; it may be opened again under this name.
    Raises:
        OSError: it cannot be written, or not take the place.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield partial
        sync(partial)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def sync(path: Path) -> None:
    """Return when a file, or a folder's list of names, is on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
