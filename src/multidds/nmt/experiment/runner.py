"""The commands of an experiment: prepare once per folder of data, then train and evaluate every run.

Has commands started and stopped and reports failures; the work is theirs, and a `Place` decides where they run. Text is
always prepared on this machine. Does not import torch.
"""

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from multidds._base.errors import UserError

from ..runs.checkpoints import listed
from ..runs.record_files import FILE
from .local_process import LocalProcesses
from .place import End, Place, Process
from .progress import Job, State, remaining_stages
from .run_list import Stage

_STATES: dict[Stage, State] = {"prepare": "preparing", "train": "training", "evaluate": "evaluating"}
_PAUSE = 0.1  # seconds between two looks at the processes
_GRACE = 15.0  # seconds in which the processes of a call that was killed may still save


class Show(Protocol):
    """Messages about the runs; the command line decides how they look."""

    def line(self, text: str) -> None: ...

    def changed(self, job: Job) -> None:
        """Shows that a run has another state."""

    def tick(self, jobs: Sequence[Job]) -> None:
        """Is called several times a second."""


@dataclass
class Task:
    """Commands one after another, for one run, or for all runs that share a folder of data."""

    jobs: list[Job]
    stages: list[Stage]
    log: Path
    process: Process | None = None
    offset: int = 0  # where the output of this process begins in the log
    checkpoint: Path | None = None  # the newest one when it started

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, place: Place) -> None:
        """Starts the command of the first stage."""
        stage, run = self.stages[0], self.jobs[0].run
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as file:
            file.write(f"$ {run.command(stage)}\n".encode())
            self.offset = file.tell()
        self.checkpoint = self._newest()
        self.process = place.start(run, stage, self.log)

    def _newest(self) -> Path | None:
        return next(reversed(listed(self.jobs[0].run.folder)), None)

    def goes_on(self, end: End) -> bool:
        """Returns whether a training was cut off that has saved something since its start."""
        return end.cut and self.stages[0] == "train" and self._newest() != self.checkpoint

    def reason(self, end: End) -> str:
        """Returns the last line of the process, where errors are, and the place of the rest."""
        with self.log.open("rb") as file:
            file.seek(max(self.offset, file.seek(0, 2) - 10_000))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("multidds: ") if lines else "it has said nothing"
        return f"{end.how} after: {last} (log: {self.log})" if end.how else f"{last} (log: {self.log})"


class Runner:
    """Has commands started and waits for them. `stopped` counts the requests to stop."""

    def __init__(self, jobs: list[Job], parallel: int, show: Show, place: Place | None = None) -> None:
        self.jobs, self.parallel, self.show = jobs, parallel, show
        self._here = LocalProcesses()
        self._place = place or self._here
        self.stopped = 0
        self._began = time.monotonic()
        self._running: list[Task] = []

    def run(self) -> None:
        preparations: dict[Path, Task] = {}
        runs: list[Task] = []
        for job in self.jobs:
            try:
                stages = remaining_stages(job)
            except UserError as error:
                self._fail([job], str(error))
                continue
            if not stages:
                self._change(job, "skipped")
                continue
            if stages[0] == "evaluate" and self._place.has(job.run, "train"):
                stages.insert(0, "train")  # the job that an earlier call has left is about to end
            runs.append(Task([job], stages, job.run.log))
            log = job.run.log.with_name(f"prepare.{job.run.setting}.log")
            preparations.setdefault(job.run.config.data.folder.resolve(), Task([], ["prepare"], log)).jobs.append(job)
        with self._stop_signals():
            try:
                self._work(list(preparations.values()), 1, self._here)  # 'prepare' uses all cores by itself
                self._work([task for task in runs if task.jobs[0].state != "failed"], self.parallel, self._place)
            finally:
                # Only after an error of our own, such as a closed terminal.
                while any(task.runs for task in self._running):
                    self._ask_to_stop()
                    time.sleep(_PAUSE)

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

    def _work(self, waiting: list[Task], parallel: int, place: Place) -> None:
        said = False
        for left in [task for task in waiting if place.has(task.jobs[0].run, task.stages[0])]:
            waiting.remove(left)
            self._start(left, place)
        while self._running or (waiting and not self.stopped):
            while not self.stopped and len(self._running) < parallel:
                task = next((task for task in waiting if not self._is_locked(task)), None)
                if task is None:
                    break
                waiting.remove(task)
                self._start(task, place)
            if self.stopped:
                if not said and self._running:
                    self.show.line(f"stopping: {place.stopping}")
                    said = True
                self._ask_to_stop()
            for task in list(self._running):
                if task.process is not None and (end := task.process.poll()) is not None:
                    self._ended(task, end, place)
                else:
                    self._show_state(task)
            self.show.tick(self.jobs)
            time.sleep(_PAUSE)

    def _ask_to_stop(self) -> None:
        for task in self._running:
            if task.process is not None:
                task.process.ask_to_stop(min(self.stopped, 2) or 1)

    def _is_locked(self, task: Task) -> bool:
        """Returns whether a process of a call that was killed may still be saving. Later, train reports that itself."""
        if task.stages[0] != "train" or time.monotonic() - self._began > _GRACE:
            return False
        with contextlib.suppress(ImportError, OSError):  # not on Windows; no records yet
            import fcntl

            with (task.jobs[0].run.folder / FILE).open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        return False

    def _start(self, task: Task, place: Place) -> None:
        if task.stages[0] == "prepare":
            self.show.line(f"preparing {task.jobs[0].run.config.data.folder}")
        try:
            task.start(place)
        except OSError as error:
            self._fail(task.jobs, f"{error.filename or task.log}: {error.strerror or error}")
        except UserError as error:
            self._fail(task.jobs, str(error))
        else:
            self._running.append(task)
            self._show_state(task)

    def _show_state(self, task: Task) -> None:
        assert task.process is not None
        state: State = "queued" if task.process.queued else _STATES[task.stages[0]]
        for job in task.jobs:
            if job.state != state:
                job.state, job.began = state, None
                if state != "preparing":
                    self.show.changed(job)

    def _ended(self, task: Task, end: End, place: Place) -> None:
        self._running.remove(task)
        stage = task.stages[0]
        for job in task.jobs:
            job.read()
        succeeded = end.succeeded and (stage != "train" or bool(task.jobs[0].watch.finished))
        if end.succeeded is None:
            with contextlib.suppress(UserError):  # then it did not
                succeeded = stage not in remaining_stages(task.jobs[0])
        if succeeded and stage == "prepare":
            for job in task.jobs:
                job.state = "waiting"
        elif succeeded and len(task.stages) == 1:
            self._change(task.jobs[0], "done")
        elif self.stopped:
            for job in task.jobs:
                job.reason = end.how
                self._change(job, "stopped")
        elif succeeded:
            del task.stages[0]
            self._start(task, place)
        elif task.goes_on(end):
            self._start(task, place)
        else:
            self._fail(task.jobs, task.reason(end))

    def _change(self, job: Job, state: State) -> None:
        job.state = state
        self.show.changed(job)

    def _fail(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            job.reason = reason
            self._change(job, "failed")
