"""Peak of living tensor memory, counted at every operation: exact and repeatable, unlike the memory of a process."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakTensorMemory(TorchDispatchMode):
    """`with PeakTensorMemory() as memory:` counts what is allocated inside; `memory.peak` is in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.living = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for item in tree_leaves((args, kwargs)):
            if isinstance(item, torch.Tensor):  # was there before: neither it nor a view of it is counted
                self._seen.add(item.untyped_storage()._cdata)
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(item, torch.Tensor):
                self._count(item.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.living += size
        self.peak = max(self.peak, self.living)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.living -= size
