"""Sandboxes that nobody refers to any more and nobody has closed: the next start of a sandbox closes them.

Garbage is collected in any thread at any moment, also in one that holds a lock, so a finaliser only notes the sandbox.
"""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING

from swegym_env.errors import SandboxError

if TYPE_CHECKING:
    from swegym_env.sandbox.api import Sandbox

__all__ = ["close_unclosed", "note_unclosed"]

_unclosed: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()  # its `put` may interrupt another one of the same thread

note_unclosed = _unclosed.put
"""Have a sandbox closed later. For finalisers, which keep it: at the end of the process a module has no names left."""


def close_unclosed() -> None:
    """Close the sandboxes that were noted."""
    with contextlib.suppress(queue.Empty):
        while True:
            with contextlib.suppress(SandboxError):  # its supervisor or its server is gone, and the sandbox with it
                _unclosed.get_nowait().close()
