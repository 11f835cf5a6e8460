"""Two ranks under the agent of torchrun, some of which die: the command `train on two` of faults.py.

The agent is torch's own, with its restarts. It forks its workers. Each worker forks its rank and waits for it. So a
rank has no imports to do and may leave by os._exit, and its death is recorded at once. Records are lines of the
common output that begin with MARK.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RANKS = 2
MARK = "fault-world: "


@dataclass(frozen=True)
class Death:
    """A rank ends without a word, `delay` seconds after it comes to a place at a step. "start" is a place, too."""

    start: int  # 0, or how many restarts there were before
    rank: int
    place: str
    step: int
    delay: float


@dataclass
class Note:
    """What a worker noted of its rank: it starts, the group is formed, it has ended (with a code, or by a signal)."""

    what: str
    start: int
    rank: int
    at: float  # by a clock that all processes share
    code: int = 0
    newest: int = 0  # the newest whole checkpoint when it starts


def launch_ranks(main: Callable[[], int], restarts: int, deaths: list[Death], newest: Callable[[], int]) -> int:
    """Run `main` as two ranks under the agent; returns the exit code. newest: the step of the last good checkpoint."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    said = os.dup(2)  # what the agent says of its workers, at length, is not ours
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=RANKS,
        max_restarts=restarts,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid.uuid4().hex,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, worker)(main, deaths, newest, said)
    except (ChildFailedError, SignalException):
        return 1
    return 0


def worker(main: Callable[[], int], deaths: list[Death], newest: Callable[[], int], said: int) -> None:
    """What the agent starts: forks a rank, waits for it, and ends as it did."""
    start, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    note("start", start, rank, newest=newest() if rank == 0 else 0)
    child = os.fork()
    if child == 0:
        os.dup2(said, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        arm([death for death in deaths if (death.start, death.rank) == (start, rank)], start, rank)
        os._exit(main())

    def hand_on(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, hand_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    note("end", start, rank, code=code)
    if code < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if code:
        os._exit(code)


def arm(deaths: list[Death], start: int, rank: int) -> None:
    """In a rank: what it will die of; and a note when the group stands."""
    import faulty_rank

    from multidds.nmt.common import launch

    form_group = launch.form_group

    def formed() -> None:
        form_group()
        note("formed", start, rank)

    launch.form_group = formed
    for death in deaths:
        if death.place == "start":
            faulty_rank.strike(death.delay, None)
        else:
            faulty_rank.inject(rank, death.place, death.step, death.delay)


def note(what: str, start: int, rank: int, **facts: int) -> None:
    line = json.dumps(asdict(Note(what, start, rank, time.monotonic(), **facts)))
    os.write(1, f"{MARK}{line}\n".encode())


# ------------------------------------------------------------------------------------------------ reading the notes


@dataclass
class Start:
    """What one start of all ranks came to."""

    notes: list[Note]
    lines: list[str]  # that the ranks said

    @property
    def deaths(self) -> list[Note]:
        return [note for note in self.notes if note.what == "end" and note.code == -signal.SIGALRM]

    @property
    def message(self) -> list[str]:
        return [line for line in self.lines if line.startswith("multidds: ")]

    @property
    def is_clear(self) -> bool:
        """One message where the ranks had met; else, or where the training was over, one at most."""
        met = sum(note.what == "formed" for note in self.notes) == RANKS
        over = any(note.what == "end" and note.code == 0 for note in self.notes)  # a rank had come to its end
        silent = met and not over and not self.message
        return len(self.message) <= 1 and not silent and "Traceback" not in "".join(self.lines)

    @property
    def seconds(self) -> float:
        """From the first death until all had ended."""
        ends = [note.at for note in self.notes if note.what == "end"]
        return max(ends) - min(note.at for note in self.deaths)

    @property
    def lost(self) -> int:
        """Steps between the last good checkpoint and where it went on."""
        return steps_lost(max(note.newest for note in self.notes), self.lines)


def steps_lost(newest: int, lines: list[str]) -> int:
    """newest: the step of the last good checkpoint. lines: what a training said that should have gone on from it."""
    gone_on = [int(found[1]) for line in lines if (found := re.match(r"going on after step (\d+)", line))]
    from_the_start = any(re.match(r"step \d+  loss", line) for line in lines)
    return max(0, newest - (gone_on[0] if gone_on else 0 if from_the_start else newest))


def starts_of(output: str) -> list[Start]:
    """The starts in an output, in their order."""
    found: dict[int, Start] = {}
    now = 0
    for line in output.splitlines():
        if line.startswith(MARK):
            read = Note(**json.loads(line.removeprefix(MARK)))
            now = read.start if read.what == "start" else now
            found.setdefault(read.start, Start([], [])).notes.append(read)
        else:
            found.setdefault(now, Start([], [])).lines.append(line)
    return [found[number] for number in sorted(found)]


def newest_whole(run: Path) -> int:
    """The step of the newest checkpoint that is whole; 0 where there is none."""
    from multidds._base.errors import UserError
    from multidds.nmt.runs import checkpoints

    for path in reversed(checkpoints.listed(run)):
        with contextlib.suppress(UserError):
            checkpoints.check(path)
            return checkpoints.step_of(path)
    return 0
