"""Files that are written whole or not at all: what is read is the former content or the new one, never a part."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> Path:
    """Write a file whole or not at all, in UTF-8, where half a surrogate pair is escaped; its folder must be there.

    Returns:
        The path.
    Raises:
        OSError: it cannot be written; what was there stays, and nothing else is left.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        return partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
