"""The losses of recent steps, over all processes: looked at now and then, since that waits for an accelerator."""

import math
from pathlib import Path

import torch
from torch import Tensor

from ..batches.batch import Batch
from ..common.errors import UserError
from ..common.processes import Processes
from ..runs import checkpoints


class RecentLosses:
    """Of steps that nobody has looked at yet."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._steps: list[tuple[Tensor, list[Batch], int]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, loss: Tensor, batches: list[Batch], tokens: int) -> None:
        """Of one step. loss: the sum over the target tokens of these batches. tokens: of those of all processes."""
        self._steps.append((loss, batches, tokens))

    def checked(self, step: int, run: Path) -> float:
        """The loss per token of the newest one, `step`; a UserError if one of them was not finite in any process."""
        values = torch.stack([loss for loss, _, _ in self._steps]).tolist()
        totals = self._processes.summed(values)
        first = step - len(values) + 1
        for i, (value, total, (_, batches, _)) in enumerate(zip(values, totals, self._steps, strict=True)):
            if not math.isfinite(total):
                here = [] if math.isfinite(value) else [name for batch in batches for name in batch.pairs]
                pairs = ", ".join(dict.fromkeys(name for names in self._processes.gathered(here) for name in names))
                # The step before may already have spoilt the parameters, though its own loss was finite.
                good = [path for path in checkpoints.listed(run) if checkpoints.step_of(path) < first + i - 1]
                last = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint before it"
                raise UserError(f"step {first + i}: the loss or its gradient is not finite on {pairs}; {last}.")
        tokens = self._steps[-1][2]
        self._steps.clear()
        return float(totals[-1]) / tokens
