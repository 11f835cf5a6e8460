"""The processes of an experiment: prepare once per folder of data, then train and evaluate every run.

Starts and stops processes and reports failures; their work is that of the commands. Does not import torch.
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
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    offset: int = 0  # where the output of this process begins in the log
    asked: int = 0  # requests to stop

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Starts the process of the first stage."""
        stage, run = self.stages[0], self.jobs[0].run
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.output = self.log.open("ab")
        self.output.write(f"$ {run.command(stage)}\n".encode())
        self.output.flush()
        self.offset = self.output.tell()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "multidds", *run.arguments(stage)],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            env=_environment(0 if stage == "prepare" else run.threads),
            # A group of its own: Ctrl-C reaches us alone, and a child is asked to stop once.
            process_group=0 if os.name == "posix" else None,
            preexec_fn=_end_with_parent(),
        )

    def ask_to_stop(self, times: int) -> None:
        """Asks the process to stop and save; the second time kills it with all that it has started."""
        if not self.runs or self.asked >= times or self.process is None:
            return
        self.asked = times
        with contextlib.suppress(ProcessLookupError):
            if os.name != "posix":
                self.process.terminate()
            elif times == 1:
                self.process.send_signal(signal.SIGINT)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Returns the exit code."""
        if self.output is not None:
            self.output.close()
        return 1 if self.process is None else self.process.wait()

    def reason(self, code: int) -> str:
        """Returns the last line of the process, where errors are, and the place of the rest."""
        with self.log.open("rb") as file:
            file.seek(max(self.offset, file.seek(0, 2) - 10_000))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1].removeprefix("multidds: ") if lines else "it has said nothing"
        if code < 0:
            with contextlib.suppress(ValueError):
                last = f"killed by {signal.Signals(-code).name} after: {last}"
        return f"{last} (log: {self.log})"


class Runner:
    """Starts the processes and waits for them. `stopped` counts the requests to stop."""

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
                stages = remaining_stages(job)
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
                self._work(list(preparations.values()), 1)  # 'prepare' uses all cores by itself
                self._work([task for task in runs if task.jobs[0].state != "failed"], self.parallel)
            finally:
                # Only after an error of our own, such as a closed terminal.
                while any(task.runs for task in self._running):
                    for task in self._running:
                        task.ask_to_stop(min(self.stopped, 2) or 1)
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

    def _work(self, waiting: list[Task], parallel: int) -> None:
        said = False
        while self._running or (waiting and not self.stopped):
            while not self.stopped and len(self._running) < parallel:
                task = next((task for task in waiting if not self._is_locked(task)), None)
                if task is None:
                    break
                waiting.remove(task)
                self._start(task)
            if self.stopped:
                if not said and self._running:
                    self.show.line("stopping: waiting for the runs to save; once more kills them")
                    said = True
                for task in self._running:
                    task.ask_to_stop(min(self.stopped, 2))
            for task in [task for task in self._running if not task.runs]:
                self._ended(task)
            self.show.tick(self.jobs)
            time.sleep(_PAUSE)

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

    def _start(self, task: Task) -> None:
        stage = task.stages[0]
        for job in task.jobs:
            job.state, job.began = _STATES[stage], None
            if stage != "prepare":
                self.show.changed(job)
        if stage == "prepare":
            self.show.line(f"preparing {task.jobs[0].run.config.data.folder}")
        try:
            task.start()
        except OSError as error:
            task.close()
            self._fail(task.jobs, f"{error.filename or task.log}: {error.strerror or error}")
            return
        self._running.append(task)

    def _ended(self, task: Task) -> None:
        self._running.remove(task)
        code, stage = task.close(), task.stages[0]
        for job in task.jobs:
            job.read()
        succeeded = code == 0 and (stage != "train" or bool(task.jobs[0].watch.finished))
        if not succeeded and not self.stopped:
            self._fail(task.jobs, task.reason(code))
        elif succeeded and stage == "prepare":
            for job in task.jobs:
                job.state = "waiting"
        elif succeeded and len(task.stages) == 1:
            self._change(task.jobs[0], "done")
        elif self.stopped:
            for job in task.jobs:
                self._change(job, "stopped")
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
    """Returns the environment of a process with so many threads, in all libraries; 0: as many as they want."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if threads else ()
    return os.environ | {"PYTHONUNBUFFERED": "1"} | dict.fromkeys(names, str(threads))


def _end_with_parent() -> Callable[[], None] | None:
    """Returns a function for a child, so that it gets SIGINT, saves and stops if its parent ends. Linux only.

    Between fork and exec little may be called; there are no threads, and libc is loaded before the fork.
    """
    if sys.platform != "linux":
        return None
    libc, parent, set_death_signal = ctypes.CDLL(None), os.getpid(), 1

    def bind() -> None:
        libc.prctl(set_death_signal, signal.SIGINT)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    return bind
