"""Sums and decisions over the processes of a training. In a single process they are free.

They go through main memory (gloo), also if gradients do not, so that no step has to wait for an accelerator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multidds._base.errors import UserError
from multidds._base.ranks import rank_and_size


class Processes:
    """The processes of the present group: all call the same methods in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()

    def summed(self, numbers: Sequence[float]) -> list[float]:
        """Returns the sums of numbers over all processes."""
        if self.size == 1:
            return list(numbers)
        totals = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(totals)
        sums: list[float] = totals.tolist()
        return sums

    def any(self, here: bool) -> bool:
        """Whether it is so in any process: one decision of all."""
        return self.summed([here])[0] > 0

    def replicated(self, model: nn.Module, warm_up: Callable[[nn.Module], None]) -> nn.Module:
        """Returns the model with gradients that are means over the processes.

        DDP puts gradients into buckets in the order of the first backward pass, and sums of three or more numbers
        depend on their place in a bucket. After the warm-up, every step has the same buckets.

        model: the model.
        warm_up: runs a forward and a backward pass that change nothing.
        """
        if self.size == 1:
            return model
        wrapped = DistributedDataParallel(model)
        wrapped.broadcast_buffers = False  # they are constants
        warm_up(wrapped)
        return wrapped

    def instead_of(self, before: int) -> str:
        """Returns the end of a message about a training that is resumed with another number of processes."""
        if self.size == before:
            return ""
        return (
            f", with {self.size} process{'es' * (self.size > 1)} instead of {before}: mixture, counts and the next "
            "examples are the same; dropout and rounding are not"
        )

    def meet(self) -> None:
        """Waits until all processes are here."""
        self.summed([0.0])

    def gathered(self, value: Any) -> list[Any]:
        """Returns the values of all processes, by rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Raises a UserError if a process has another value than rank 0. values: {what: value}."""
        first, *others = self.gathered(values)
        for rank, theirs in enumerate(others, start=1):
            if different := [what for what in first if theirs[what] != first[what]]:
                raise UserError(
                    f"rank {rank} has another {different[0]} than rank 0. All machines need the same recipe, and one "
                    "file system for the data and the run."
                )
