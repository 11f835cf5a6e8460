"""The processes of an experiment: prepare once per folder of data, then train and evaluate every run.

Owns starting, stopping and failing. What a run is made of stays with the commands that it is started with; how it
looks, with a Show. Does not import torch.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ..common.errors import UserError
from ..runs.record_files import FILE
from .progress import Job, State, to_do
from .run_list import Stage


class Show(Protocol):
    """What is told about the runs; the command line decides how it looks."""

    def line(self, text: str) -> None: ...

    def changed(self, job: Job) -> None:
        """A run has another state."""

    def tick(self, jobs: Sequence[Job]) -> None:
        """Called several times a second."""


@dataclass
class Task:
    """Commands one after another, for one run, or for all runs that share a folder of data."""

    jobs: list[Job]
    stages: list[Stage]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    offset: int = 0  # of what this process has written to the log
    asked: int = 0  # how often it was asked to stop


_DOING: dict[Stage, State] = {"prepare": "preparing", "train": "training", "evaluate": "evaluating"}
_PAUSE = 0.1  # seconds between two looks at the children
_GRACE = 15.0  # seconds in which the children of a call that was killed may still save


class Runner:
    """Starts the children and waits for them. `stopped` counts the requests to stop."""

    def __init__(self, jobs: list[Job], parallel: int, show: Show) -> None:
        self.jobs, self.parallel, self.show = jobs, parallel, show
        self.stopped = 0
        self._began = time.monotonic()
        self._running: list[Task] = []

    def run(self) -> None:
        preparations: dict[Path, Task] = {}
        runs: list[Task] = []
        for job in self.jobs:
            try:
                stages = to_do(job)
            except UserError as error:
                self._fail([job], str(error))
                continue
            if not stages:
                self._change(job, "skipped")
                continue
            runs.append(Task([job], stages, job.run.log))
            log = job.run.log.with_name(f"prepare.{job.run.setting}.log")
            preparations.setdefault(job.run.config.data.folder.resolve(), Task([], ["prepare"], log)).jobs.append(job)
        with self._stop_signals():
            try:
                self._work(list(preparations.values()), 1)  # 'prepare' takes all cores by itself
                self._work([task for task in runs if task.jobs[0].state != "failed"], self.parallel)
            finally:
                # Only after an error of our own, such as a closed terminal.
                while any(task.process is not None and task.process.poll() is None for task in self._running):
                    for task in self._running:
                        self._ask(task)
                    time.sleep(_PAUSE)

    @contextlib.contextmanager
    def _stop_signals(self) -> Iterator[None]:
        """Also where a shell has started us with SIGINT ignored. Children get back the default by exec."""

        def ask(number: int, frame: Any) -> None:
            self.stopped += 1

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _work(self, waiting: list[Task], parallel: int) -> None:
        told = False
        while self._running or (waiting and not self.stopped):
            while not self.stopped and len(self._running) < parallel:
                task = next((task for task in waiting if not self._held(task)), None)
                if task is None:
                    break
                waiting.remove(task)
                self._start(task)
            if self.stopped:
                if not told and self._running:
                    self.show.line("stopping: waiting for the runs to save; once more kills them")
                    told = True
                for task in self._running:
                    self._ask(task)
            for task in list(self._running):
                if task.process is not None and task.process.poll() is not None:
                    self._ended(task)
            self.show.tick(self.jobs)
            time.sleep(_PAUSE)

    def _held(self, task: Task) -> bool:
        """Whether a child of a call that was killed is still at it. Later on, train says so itself."""
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

    def _start(self, task: Task) -> None:
        stage, run = task.stages[0], task.jobs[0].run
        for job in task.jobs:
            job.state, job.began = _DOING[stage], None
            if stage != "prepare":
                self.show.changed(job)
        if stage == "prepare":
            self.show.line(f"preparing {run.config.data.folder}")
        try:
            task.log.parent.mkdir(parents=True, exist_ok=True)
            task.output = task.log.open("ab")
            task.output.write(f"$ {run.command(stage)}\n".encode())
            task.output.flush()
            task.offset = task.output.tell()
            task.process = subprocess.Popen(
                [sys.executable, "-m", "multidds", *run.arguments(stage)],
                stdin=subprocess.DEVNULL,
                stdout=task.output,
                stderr=subprocess.STDOUT,
                env=_environment(0 if stage == "prepare" else run.threads),
                # A group of its own: Ctrl-C reaches us alone, and a child is asked to stop once.
                process_group=0 if os.name == "posix" else None,
                preexec_fn=_with_parent(),
            )
        except OSError as error:
            self._close(task)
            self._fail(task.jobs, f"{error.filename or task.log}: {error.strerror or error}")
            return
        self._running.append(task)

    def _ask(self, task: Task) -> None:
        """Once: stop and save, please. Twice: it is killed with all that it has started."""
        wanted = min(self.stopped, 2) or 1
        process = task.process
        if process is None or process.poll() is not None or task.asked >= wanted:
            return
        task.asked = wanted
        with contextlib.suppress(ProcessLookupError):
            if os.name != "posix":
                process.terminate()
            elif wanted == 1:
                process.send_signal(signal.SIGINT)
            else:
                os.killpg(process.pid, signal.SIGKILL)

    def _close(self, task: Task) -> int:
        code = task.process.wait() if task.process is not None else 1
        if task.output is not None:
            task.output.close()
        return code

    def _ended(self, task: Task) -> None:
        self._running.remove(task)
        code, stage = self._close(task), task.stages[0]
        for job in task.jobs:
            job.look()
        whole = code == 0 and (stage != "train" or bool(task.jobs[0].watch.finished))
        if not whole and self.stopped:
            for job in task.jobs:
                self._change(job, "stopped")
        elif not whole:
            self._fail(task.jobs, _why(task, code))
        elif stage == "prepare":
            for job in task.jobs:
                job.state = "waiting"
        elif len(task.stages) == 1:
            self._change(task.jobs[0], "done")
        elif self.stopped:
            self._change(task.jobs[0], "stopped")
        else:
            del task.stages[0]
            self._start(task)

    def _change(self, job: Job, state: State) -> None:
        job.state = state
        self.show.changed(job)

    def _fail(self, jobs: list[Job], reason: str) -> None:
        for job in jobs:
            job.reason = reason
            self._change(job, "failed")


def _environment(threads: int) -> dict[str, str]:
    """One thread is one: also of the libraries that count the cores for themselves."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if threads else ()
    return os.environ | {"PYTHONUNBUFFERED": "1"} | dict.fromkeys(names, str(threads))


def _with_parent() -> Callable[[], None] | None:
    """Linux: a child whose parent is gone, however it went, gets SIGINT, and so saves and stops.

    Between fork and exec little may be called; we have no threads, and libc is loaded before the fork.
    """
    if sys.platform != "linux":
        return None
    libc, parent, set_death_signal = ctypes.CDLL(None), os.getpid(), 1

    def bind() -> None:
        libc.prctl(set_death_signal, signal.SIGINT)
        if os.getppid() != parent:  # it went before we could say so
            os._exit(1)

    return bind


def _why(task: Task, code: int) -> str:
    """The last line that the child has written, which is where errors are; and where the rest is."""
    with task.log.open("rb") as file:
        file.seek(max(task.offset, file.seek(0, 2) - 10_000))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("multidds: ") if lines else "it has said nothing"
    if code < 0:
        with contextlib.suppress(ValueError):
            last = f"killed by {signal.Signals(-code).name} after: {last}"
    return f"{last} (log: {task.log})"
