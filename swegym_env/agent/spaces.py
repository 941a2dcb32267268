"""The space of texts, and how processes share them.

Gymnasium's `AsyncVectorEnv` passes observations through memory of a fixed size, and reads that of texts only once, when
it is made: every observation would be what was there then. Here a text has a file in memory of its own, as long as the
text is, and what `AsyncVectorEnv` reads once is a view of these files.
"""

from __future__ import annotations

import os
import string
from collections.abc import Sequence
from multiprocessing import reduction
from types import ModuleType
from typing import Any, overload

from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory

__all__ = ["AnyText"]


class AnyText(Text):
    """The space of actions and observations: every `str`, of any length. Samples are short and printable."""

    def __init__(self, *, sample_length: int = 64) -> None:
        super().__init__(max_length=sample_length, min_length=1, charset=string.ascii_letters + string.digits + " ./-_")

    def contains(self, x: Any) -> bool:
        """True for every `str`."""
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    def __hash__(self) -> int:
        return hash(AnyText)

    def __repr__(self) -> str:
        return "AnyText()"


class _SharedTexts(Sequence[str]):
    """One text for each environment, written by its process and read by the owner's: always the text as it is now.

    A copy is a tuple of the texts at that moment. The files have no name: nothing is left of them, however the
    processes end.
    """

    def __init__(self, n: int) -> None:
        self._files = [os.memfd_create("swegym-observation", os.MFD_CLOEXEC) for _ in range(n)]

    def write(self, number: int, text: str) -> None:
        content = text.encode("utf-8", "surrogatepass")
        file = self._files[number]
        os.ftruncate(file, len(content))
        at = 0
        while at < len(content):
            at += os.pwrite(file, memoryview(content)[at:], at)

    def read(self, number: int) -> str:
        file, content = self._files[number], bytearray()
        while piece := os.pread(file, 1 << 20, len(content)):
            content += piece
        return content.decode("utf-8", "surrogatepass")

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[str, ...]: ...
    def __getitem__(self, number: int | slice) -> str | tuple[str, ...]:
        if isinstance(number, slice):
            return tuple(self.read(each) for each in range(*number.indices(len(self))))
        return self.read(range(len(self))[number])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __copy__(self) -> tuple[str, ...]:
        return tuple(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        del memo
        return tuple(self)

    def __getstate__(self) -> list[Any]:
        return [reduction.DupFd(file) for file in self._files]  # to a process that is being started, and to no other

    def __setstate__(self, files: list[Any]) -> None:
        self._files = [file.detach() for file in files]

    def __del__(self) -> None:
        for file in self.__dict__.pop("_files", ()):
            os.close(file)


@create_shared_memory.register(AnyText)
def _create(space: AnyText, n: int = 1, ctx: ModuleType | None = None) -> _SharedTexts:
    del space, ctx
    return _SharedTexts(n)


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, shared_memory: _SharedTexts, n: int = 1) -> _SharedTexts:
    del space, n
    return shared_memory


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, values: str, shared_memory: _SharedTexts) -> None:
    del space
    shared_memory.write(index, values)
