"""The ranks of a data-parallel training: rank, world size, sums, and errors that are raised on all of them.

Only this file uses torch.distributed. Without an initialised process group there is one rank, and all of this is free.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def rank_and_size(group: Any = None) -> tuple[int, int]:
    """Returns (rank, world size) of this process in a group, by default that of all processes; alone (0, 1)."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def checked_rank(where: str, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns (rank, world size) as given; if neither is, those of torch.distributed."""
    if rank is None and world_size is None:
        return rank_and_size()
    if rank is None or world_size is None:
        raise ValueError(f"{where}: give both rank and world_size, or neither.")
    if not 0 <= rank < world_size:
        raise ValueError(f"{where}: rank must be between 0 and world_size - 1, but it is {rank} of {world_size}.")
    return rank, world_size


class Ranks:
    """The processes that train the same model now; made anew for every update.

    device: where the backend can reduce a number: with NCCL not the CPU.
    group: the process group of a DDP model; None: all processes.
    """

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self.rank, self.size = rank_and_size(group)
        self._device = device
        self._group = group

    @classmethod
    def alone(cls, device: torch.device) -> "Ranks":
        """Returns this process as the only rank, even if there are others."""
        alone = cls(device)
        alone.rank, alone.size = 0, 1
        return alone

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replaces every tensor by its mean over the ranks."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)
                tensor.div_(self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replaces every tensor by its sum over the ranks."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)

    def mean(self, value: float) -> float:
        """Returns the mean of the values of all ranks."""
        return value if self.size == 1 else self.total(value) / self.size

    def total(self, value: float) -> float:
        """Returns the sum of the values of all ranks."""
        if self.size == 1:
            return value
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        total = torch.tensor([value], dtype=dtype, device=self._device)
        self.sum([total])
        return total.item()

    def gather_tensors(self, tensor: Tensor) -> Tensor:
        """Returns the tensors of all ranks, which have one shape, on the CPU. # [rank, ...]"""
        mine = tensor.to(self._device).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self._group)
        return torch.stack(parts).cpu()

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Raises an error of any rank in the block on every rank: one that went on alone would wait for ever."""
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
        message = None
        if error is not None:
            message = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        messages = self.gather(message)
        if error is not None:
            raise error
        rank, message = next((rank, message) for rank, message in enumerate(messages) if message is not None)
        raise RuntimeError(f"the probe failed on rank {rank}: {message}")
