"""Where a training is, how its time is counted, what it tells a display, and how it is asked to stop.

The loop is in train.py; how it looks is the display's.
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

# Where the time of a run goes. "rest" is logging, the display and whatever else the loop does between the others.
CLOCKS = ("data", "steps", "updates", "validation", "saving", "rest")


class Display(Protocol):
    """What the loop tells about itself; the command line decides how it looks."""

    def progress(self, fraction: float, facts: dict[str, Any]) -> None: ...

    def line(self, text: str) -> None: ...

    def log(self, text: str) -> None:
        """A routine line, which a display with a bar may leave out."""


@dataclass
class Progress:
    """Where a run is. Everything in it is saved."""

    step: int = 0
    epoch: int = 0  # finished ones; an epoch is as many sentence pairs as there are training pairs
    sentences: int = 0
    tokens: int = 0  # target tokens
    best: float | None = None  # what [train] select compares, of the best model
    best_step: int = 0
    waited: int = 0  # validations since the best
    validated: int = -1  # the step of the last validation
    finished: str = ""  # why, if it is
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = dict.fromkeys(CLOCKS, 0.0) | self.seconds  # a checkpoint of an older version has fewer
        self._since: float = time.perf_counter()

    def lap(self, clock: str) -> float:
        """Count the time since the last lap under a clock: together they are all the time of the loop."""
        now = time.perf_counter()
        spent = now - self._since
        self._since = now
        self.seconds[clock] += spent
        return spent


_SAME = 5.0  # seconds: what a launcher hands on of a signal that its processes have too comes soon


@dataclass
class Stop:
    asked: bool = False


@contextlib.contextmanager
def stop_signals(show: Display, alone: bool = True) -> Iterator[Stop]:
    """Ctrl-C or SIGTERM asks the loop to stop after the step; a second one stops at once.

    alone: whether this is the only process. If not, all stop after the step where one of them was asked.
    """
    stop = Stop()
    first = 0.0

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        now = time.monotonic()
        if stop.asked and (alone or now - first > _SAME):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        if not stop.asked:
            stop.asked, first = True, now
            if alone:
                show.line("stopping after this step; once more stops at once, without saving")

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are somebody else's
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
