"""What the processes of a training tell each other. Alone, all of it is free.

It goes through main memory (gloo) also where gradients do not, so that no step has to wait for an accelerator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multidds._base.ranks import rank_and_size

from .errors import UserError


class Processes:
    """Those of the group that there is now: all call the same methods in the same order."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()

    def summed(self, numbers: Sequence[float]) -> list[float]:
        """Their sums over all processes."""
        if self.size == 1:
            return list(numbers)
        totals = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(totals)
        found: list[float] = totals.tolist()
        return found

    def any(self, here: bool) -> bool:
        """Whether it is so in any of them: one decision of all."""
        return self.summed([here])[0] > 0

    def replicated(self, model: nn.Module, passed: Callable[[nn.Module], None]) -> nn.Module:
        """The model with gradients that are means over the processes. passed: a pass through it that changes nothing.

        DDP puts gradients into buckets in the order of the first backward pass, and sums of three or more numbers
        depend on their place in a bucket. After that pass, every step has the same ones.
        """
        if self.size == 1:
            return model
        wrapped = DistributedDataParallel(model)
        wrapped.broadcast_buffers = False  # they are constants
        passed(wrapped)
        return wrapped

    def instead_of(self, before: int) -> str:
        """What to say where they go on with a training of another number of processes."""
        if self.size == before:
            return ""
        return (
            f", with {self.size} process{'es' * (self.size > 1)} instead of {before}: mixture, counts and the next "
            "examples are the same; dropout and rounding are not"
        )

    def meet(self) -> None:
        """Go on when all are here."""
        self.summed([0.0])

    def gathered(self, value: Any) -> list[Any]:
        """The values of all, by rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Refuse to train together on different things. values: {what: value}."""
        first, *others = self.gathered(values)
        for rank, found in enumerate(others, start=1):
            if different := [what for what in first if found[what] != first[what]]:
                raise UserError(
                    f"rank {rank} has another {different[0]} than rank 0. All machines need the same recipe, and one "
                    "file system for the data and the run."
                )
