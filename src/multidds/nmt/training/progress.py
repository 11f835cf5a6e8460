"""The progress of a training: counts, clocks, recent losses, requests to stop; and the protocol of a display."""

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from multidds._base.errors import UserError

from ..batches.batch import Batch
from ..common.processes import Processes
from ..runs import checkpoints

# Where the time of a run goes. "rest" is logging, the display and whatever else the loop does between the others.
CLOCKS = ("data", "steps", "updates", "validation", "saving", "rest")
_COPY_SECONDS = 5.0  # a signal within this time after the first one is the launcher's copy of it


class Display(Protocol):
    """Messages of a training; the command line decides how they look."""

    def progress(self, fraction: float, facts: dict[str, Any]) -> None: ...

    def line(self, text: str) -> None: ...

    def log(self, text: str) -> None:
        """Shows a routine line, which a display with a bar may leave out."""


@dataclass
class Progress:
    """The counts and clocks of a run. Everything in it is saved."""

    step: int = 0
    epoch: int = 0  # finished ones; an epoch is as many sentence pairs as there are training pairs
    sentences: int = 0
    tokens: int = 0  # target tokens
    best: float | None = None  # value of [train] select of the best model
    best_step: int = 0
    waited: int = 0  # validations since the best
    finished: str = ""  # the reason, if it is
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLOCKS, 0.0))

    def __post_init__(self) -> None:
        self._last_lap = time.perf_counter()

    def lap(self, clock: str) -> float:
        """Adds the time since the last lap to a clock, and returns it. The clocks sum to all the time of the loop."""
        now = time.perf_counter()
        spent = now - self._last_lap
        self._last_lap = now
        self.seconds[clock] += spent
        return spent


class RecentLosses:
    """The losses of steps since the last check. Checking waits for an accelerator, so it is done now and then."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._steps: list[tuple[Tensor, list[Batch], int]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, loss: Tensor, batches: list[Batch], tokens: int) -> None:
        """Adds one step.

        loss: the sum over the target tokens of these batches, those of this process.
        tokens: the number of target tokens of all processes.
        """
        self._steps.append((loss, batches, tokens))

    def checked(self, step: int, run: Path) -> float:
        """Returns the loss per token of the newest step; a UserError if a loss was not finite in any process."""
        losses = torch.stack([loss for loss, _, _ in self._steps]).tolist()
        totals = self._processes.summed(losses)
        first = step - len(losses) + 1
        for i, (loss, total, (_, batches, _)) in enumerate(zip(losses, totals, self._steps, strict=True)):
            if not math.isfinite(total):
                here = [] if math.isfinite(loss) else [name for batch in batches for name in batch.pairs]
                pairs = ", ".join(dict.fromkeys(name for names in self._processes.gathered(here) for name in names))
                # The step before may already have spoilt the parameters, though its own loss was finite.
                good = [path for path in checkpoints.listed(run) if checkpoints.step_of(path) < first + i - 1]
                last = f"the last good checkpoint is {good[-1]}" if good else "there is no checkpoint before it"
                raise UserError(f"step {first + i}: the loss or its gradient is not finite on {pairs}; {last}.")
        tokens = self._steps[-1][2]
        self._steps.clear()
        return float(totals[-1]) / tokens


@dataclass
class Stop:
    asked: bool = False


@contextlib.contextmanager
def stop_signals(show: Display, alone: bool = True) -> Iterator[Stop]:
    """Turns Ctrl-C and SIGTERM into a request to stop after the step; a second one stops at once.

    alone: whether this is the only process. If not, all stop after the step in which one of them was asked.
    """
    stop = Stop()
    first = 0.0

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if stop.asked and (alone or now - first > _COPY_SECONDS):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if not stop.asked:
            stop.asked, first = True, now
            if alone:
                show.line("stopping after this step; once more stops at once, without saving")

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone may handle signals
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
