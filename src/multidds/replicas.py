"""What the processes of a data-parallel training do together: averages, and failing as one.

Without an initialised torch.distributed process group there is one replica, and all of this is free.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Replicas:
    """The processes that train the same model now; made anew for every update."""

    def __init__(self, device: torch.device, group: Any = None) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if together else 0
        self.size = dist.get_world_size(group) if together else 1
        self._device = device  # where the backend can reduce a number: with NCCL not the CPU
        self._group = group  # the process group of a DDP model; None is all processes

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace every tensor by its mean over the replicas."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)
                tensor.div_(self.size)

    def mean(self, value: float) -> float:
        if self.size == 1:
            return value
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        total = torch.tensor([value], dtype=dtype, device=self._device)
        self.average([total])
        return total.item()

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """An error inside the block on any rank is raised on every rank: one that went on alone would wait for ever."""
        if self.size == 1:
            yield
            return
        error = None
        try:
            yield
        except Exception as caught:
            error = caught
        failed = torch.tensor([error is not None], dtype=torch.int32, device=self._device)
        dist.all_reduce(failed, group=self._group)
        if not failed.item():
            return
        messages = self.gathered(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        rank, message = next((rank, message) for rank, message in enumerate(messages) if message is not None)
        raise RuntimeError(f"the probe failed on rank {rank}: {message}")
