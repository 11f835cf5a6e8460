"""What the processes of a data-parallel training do together: knowing their place, averaging, failing as one.

Only this file asks torch.distributed. Without an initialised process group there is one replica, and all of this is
free.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def ranks(group: Any = None) -> tuple[int, int]:
    """(rank, world size) of this process in a group, by default in that of all processes; alone it is 0 of 1."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def place_among_ranks(where: str, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size) as given, or as torch.distributed says where neither is."""
    if rank is None and world_size is None:
        return ranks()
    if rank is None or world_size is None:
        raise ValueError(f"{where}: give both rank and world_size, or neither.")
    if not 0 <= rank < world_size:
        raise ValueError(f"{where}: rank must be between 0 and world_size - 1, but it is {rank} of {world_size}.")
    return rank, world_size


class Ranks:
    """The processes that train the same model now; made anew for every update."""

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self.rank, self.size = ranks(group)
        self._device = device  # where the backend can reduce a number: with NCCL not the CPU
        self._group = group  # the process group of a DDP model; None is all processes

    @classmethod
    def alone(cls, device: torch.device) -> "Ranks":
        """This process, whatever others there are."""
        replicas = cls(device)
        replicas.rank, replicas.size = 0, 1
        return replicas

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace every tensor by its mean over the replicas."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)
                tensor.div_(self.size)

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace every tensor by its sum over the replicas."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor, group=self._group)

    def mean(self, value: float) -> float:
        return value if self.size == 1 else self.total(value) / self.size

    def total(self, value: float) -> float:
        """The sum of the values of all ranks."""
        if self.size == 1:
            return value
        dtype = torch.float32 if self._device.type == "mps" else torch.float64
        total = torch.tensor([value], dtype=dtype, device=self._device)
        self.sum([total])
        return total.item()

    def stacked(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, which have one shape, on the CPU. # [rank, ...]"""
        mine = tensor.to(self._device).contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(parts, mine, group=self._group)
        return torch.stack(parts).cpu()

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
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
        told = (
            None if error is None else " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        )
        messages = self.gathered(told)
        if error is not None:
            raise error
        rank, message = next((rank, message) for rank, message in enumerate(messages) if message is not None)
        raise RuntimeError(f"the probe failed on rank {rank}: {message}")
