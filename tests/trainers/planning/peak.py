"""The peak of PyTorch's memory on the CPU, counted by storage."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class Peak(TorchDispatchMode):
    """Counts the bytes of every storage that operations create, until it is freed."""

    def __init__(self, held: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._sizes = WeakIdKeyDictionary()
        self._now = 0
        self.bytes = 0
        for tensor in held:
            self._count(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return made

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._sizes:
            self._sizes[storage] = storage.nbytes()
            weakref.finalize(storage, self._let_go, storage.nbytes())
            self._now += storage.nbytes()
            self.bytes = max(self.bytes, self._now)

    def _let_go(self, size: int) -> None:
        self._now -= size
