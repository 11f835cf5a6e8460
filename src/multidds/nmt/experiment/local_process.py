"""Commands as processes of this machine, which save and stop if the experiment ends."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .place import End
from .run_list import Planned, Stage


@dataclass
class LocalProcess:
    """A process with a group of its own."""

    process: subprocess.Popen[bytes]
    queued: bool = False
    asked: int = 0  # requests to stop

    def poll(self) -> End | None:
        code = self.process.poll()
        if code is None:
            return None
        how = ""
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"killed by {signal.Signals(-code).name}"
        return End(code == 0, how)

    def ask_to_stop(self, times: int) -> None:
        """Asks the process to stop and save; the second time kills it with all that it has started."""
        if self.asked >= times or self.process.poll() is not None:
            return
        self.asked = times
        with contextlib.suppress(ProcessLookupError):
            if os.name != "posix":
                self.process.terminate()
            elif times == 1:
                self.process.send_signal(signal.SIGINT)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)


class LocalProcesses:
    """This machine."""

    stopping = "waiting for the runs to save; once more kills them"

    def start(self, run: Planned, stage: Stage, log: Path) -> LocalProcess:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "multidds", *run.arguments(stage)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(0 if stage == "prepare" else run.threads),
                # A group of its own: Ctrl-C reaches us alone, and a child is asked to stop once.
                process_group=0 if os.name == "posix" else None,
                preexec_fn=_end_with_parent(),
            )
        return LocalProcess(process)

    def has(self, run: Planned, stage: Stage) -> bool:
        return False  # they end with the call that started them


def environment(threads: int) -> dict[str, str]:
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
