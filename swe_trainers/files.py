"""Files that are written whole or not at all: what is read is the former content or the new one, never a part.

And their checksums, which tell whether the disk gives back what was written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

__all__ = ["ChecksummedFile", "checksum", "replacing", "sync", "write_whole"]

_PIECE_BYTES = 1 << 20
"""Smaller pieces are hashed at once: to hand one to a thread costs as much as to hash it."""


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


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Raises OSError, also for what is no regular file or a link to one."""
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", 0) as file:
        piece = memoryview(bytearray(_PIECE_BYTES))
        while size := file.readinto(piece):
            digest.update(piece[:size])
    return digest.hexdigest()


class ChecksummedFile:
    """A binary file for writing whose checksum is computed beside the writes, on a thread; a context manager.

    A large piece is hashed while the system takes it: writing waits for the slower of the two and not for both.

    Args:
        file: open for writing; it is not closed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checksum")

    def write(self, piece: bytes | memoryview) -> int:
        """Append a piece. Raises OSError."""
        if memoryview(piece).nbytes < _PIECE_BYTES:
            self._digest.update(piece)
            return self._file.write(piece)
        hashed = self._thread.submit(self._digest.update, piece)
        try:
            return self._file.write(piece)
        finally:
            hashed.result()  # the piece is the caller's again, who may change it

    def flush(self) -> None:
        """Write Python's buffer to the operating system. Raises OSError."""
        self._file.flush()

    def hexdigest(self) -> str:
        """The SHA-256 of what was written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def __enter__(self) -> ChecksummedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.shutdown()
