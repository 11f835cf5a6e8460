"""Commands as processes of this machine, which save and stop if the experiment ends."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from multidds._base.errors import UserError

from ..runs.record_files import check_free
from .job import End, Job
from .run_list import Planned, Stage

_GRACE = 15.0  # seconds in which the processes of a call that was killed may still save


class LocalProcess:
    """A process with a group of its own: Ctrl-C reaches us alone, and we pass it on."""

    def __init__(self, run: Planned, stage: Stage, log: Path) -> None:
        """log: the file to append the output to."""
        self._asked = 0  # requests to stop
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "multidds", *run.arguments(stage)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(0 if stage == "prepare" else run.config.train.threads),
                process_group=0 if os.name == "posix" else None,
                preexec_fn=_end_with_parent(),
            )

    def poll(self) -> End | None:
        """Returns None until the process has ended."""
        code = self._process.poll()
        if code is None:
            return None
        return End(f"killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else "", code=code)

    def stop(self, times: int) -> None:
        """Asks the process to save and stop as often as the user has asked; the second time it stops at once."""
        while self._asked < times:
            self._asked += 1
            if os.name == "posix":
                self._process.send_signal(signal.SIGINT)
            else:
                self._process.terminate()


class Local:
    """This machine."""

    stopping = "waiting for the runs to save; once more stops them without saving"

    def __init__(self) -> None:
        self._began = time.monotonic()

    def first_of(self, waiting: Sequence[Job]) -> Job | None:
        """Returns the first job to start: none that a process of a killed call may still save.

        Later, train reports such a process itself.
        """
        for job in waiting:
            with contextlib.suppress(UserError):
                if job.stages[0] == "train" and time.monotonic() - self._began < _GRACE:
                    check_free(job.run.folder)
                return job
        return None

    def start(self, run: Planned, stage: Stage, log: Path) -> LocalProcess:
        return LocalProcess(run, stage, log)


def environment(threads: int) -> dict[str, str]:
    """Returns the environment of a process. threads: their number in all libraries; 0: as many as they want."""
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
