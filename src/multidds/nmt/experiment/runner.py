"""The commands of an experiment: prepare once per folder of data, then train and evaluate every run.

A bounded number of commands runs at a time, each printed as it begins and ends. The work is theirs, and the files of a
run show whether it is done. Text is always prepared on this machine. Does not import torch.
"""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidds._base.errors import UserError
from multidds._base.terminal import say

from ..evaluation.scores import read_scores
from ..runs.checkpoints import listed
from .job import End, Job, State, remaining_stages
from .local_process import Local, LocalProcess
from .run_list import Planned, Stage

if TYPE_CHECKING:
    from .slurm_job import Slurm, SlurmJob

_STATES: dict[Stage, State] = {"train": "training", "evaluate": "evaluating"}
_PAUSE = 0.1  # seconds between two looks at the commands
_TAIL = 10_000  # bytes of a log in which the reason of a failure is looked for


class Runner:
    """Has commands started and waits for them. `stopped` counts the requests to stop."""

    def __init__(self, runs: Sequence[Planned], parallel: int, place: "Local | Slurm | None" = None) -> None:
        """
        parallel: the number of runs at a time.
        place: where trainings and evaluations run; None: this machine.
        """
        self.jobs = [Job(run) for run in runs]
        self.stopped = 0
        self._parallel, self._place = parallel, place or Local()
        self._commands: list[tuple[Job, LocalProcess | SlurmJob]] = []  # under way

    def run(self) -> None:
        for job in self.jobs:
            try:
                job.stages = remaining_stages(job.run)
            except UserError as error:
                _change(job, "failed", str(error))
            else:
                if not job.stages:
                    _change(job, "skipped")
        with self._stop_signals():
            self._prepare()
            self._work()

    @contextlib.contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Counts requests, also if a shell has started us with SIGINT ignored. Children get the default back."""

        def ask(number: int, frame: Any) -> None:
            self.stopped += 1

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "waiting"]

    def _prepare(self) -> None:
        """Prepares the data of all runs, one folder after another: 'prepare' uses all cores by itself."""
        folders: dict[Path, list[Job]] = {}
        for job in self._waiting():
            folders.setdefault(job.run.config.data.folder.resolve(), []).append(job)
        for jobs in folders.values():
            if self.stopped:
                return
            run = jobs[0].run
            say(f"preparing {run.config.data.folder}")
            log = run.log.with_name(f"prepare.{run.setting}.log")
            _begin(run, "prepare", log)
            process = LocalProcess(run, "prepare", log)
            while (end := process.poll()) is None:
                process.stop(self.stopped)
                time.sleep(_PAUSE)
            if end.code and not self.stopped:
                for job in jobs:
                    _change(job, "failed", _reason(log, end))

    def _work(self) -> None:
        said = False
        while self._commands or (not self.stopped and self._waiting()):
            while not self.stopped and len(self._commands) < self._parallel:
                job = self._place.first_of(self._waiting())
                if job is None:
                    break
                self._start(job)
            if self.stopped and not said and self._commands:
                say(f"stopping: {self._place.stopping}")
                said = True
            for job, process in list(self._commands):
                process.stop(self.stopped)
                if (end := process.poll()) is not None:
                    self._commands.remove((job, process))
                    self._ended(job, end)
            time.sleep(_PAUSE)

    def _start(self, job: Job) -> None:
        """Starts the command of the next stage of a run."""
        run, stage = job.run, job.stages[0]
        try:
            _begin(run, stage, run.log)
            job.saved = _newest(run)
            process = self._place.start(run, stage, run.log)
        except OSError as error:
            _change(job, "failed", f"{error.filename or run.log}: {error.strerror or error}")
        except UserError as error:
            _change(job, "failed", str(error))
        else:
            self._commands.append((job, process))
            _change(job, _STATES[stage])

    def _ended(self, job: Job, end: End) -> None:
        stage = job.stages[0]
        try:
            succeeded = stage not in remaining_stages(job.run)
        except UserError as error:
            _change(job, "failed", str(error))
            return
        if succeeded:
            del job.stages[0]
        if not job.stages:
            _change(job, "done")
        elif self.stopped:
            _change(job, "stopped", end.how)
        elif succeeded or (end.cut and stage == "train" and _newest(job.run) != job.saved):
            self._start(job)
        else:
            _change(job, "failed", _reason(job.run.log, end))


def _newest(run: Planned) -> Path | None:
    """Returns the newest checkpoint of a run."""
    return next(reversed(listed(run.folder)), None)


def _begin(run: Planned, stage: Stage, log: Path) -> None:
    """Writes a command line into its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.write(f"$ {run.command(stage)}\n".encode())


def _reason(log: Path, end: End) -> str:
    """Returns the last line of a log, where errors are, and its place."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("multidds: ")
    return f"{end.how} after: {last} (log: {log})" if end.how else f"{last} (log: {log})"


def _change(job: Job, state: State, reason: str = "") -> None:
    """Sets the state of a run, and prints it."""
    job.state, job.reason = state, reason
    facts = f": {reason}" if reason else ""
    if state in ("done", "skipped") and (scores := read_scores(job.run.folder)) is not None:
        mean = "weighted BLEU" if job.run.config.weighted else "BLEU"
        facts = f"  {mean} {scores['average']['bleu']:.2f}"
    say(f"{job.run.name}: {state}{facts}")
