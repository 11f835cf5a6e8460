"""Commands as jobs of Slurm, through its own commands: sbatch, squeue, scancel and sinfo.

A job is one command line, which Slurm starts again after a pre-emption: `multidds train` then goes on from its last
checkpoint. A later call of the experiment finds jobs again by their names. No accounting database is needed. Does not
import torch.
"""

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from multidds._base.errors import UserError

from .experiment_file import Cluster
from .local_process import environment
from .place import End
from .run_list import Planned, Stage

_EVERY = 5.0  # seconds between two looks at the queue
_SECONDS = 5.0  # after a request to stop, in which another one cancels the jobs
# The last one too: a training that gets a signal saves and ends well.
_CUT = {"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "COMPLETED"}
_ENDED = _CUT | {"CANCELLED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED"}  # in any other state it goes on


class Slurm:
    """A partition of the cluster that this machine belongs to."""

    stopping = f"the jobs go on, and the same command returns to them; once more within {_SECONDS:.0f} s cancels them"

    def __init__(self, cluster: Cluster, file: Path) -> None:
        self._cluster = cluster
        self._states: dict[str, tuple[str, str]] = {}
        self._looked = -_EVERY
        if not cluster.partition:
            raise UserError(f"{file}: --on slurm needs [cluster] partition, as in 'partition = \"gpu\"'.")
        if shutil.which("sbatch") is None:
            raise UserError("--on slurm: there is no command 'sbatch' here; call it on a machine of the cluster.")
        known = _called("sinfo", "--all", "--noheader", "--format=%R").split()
        for name in cluster.partition.split(","):
            if name not in known:
                raise UserError(
                    f"{file}: [cluster] partition: there is no {name!r} on this cluster; there is {', '.join(known)}."
                )

    def start(self, run: Planned, stage: Stage, log: Path) -> "SlurmJob":
        """Submits a job, or returns the one that an earlier call has left."""
        if number := self._number(run, stage, 0.0):
            return SlurmJob(self, number)
        if other := self._with_other_settings(run, stage):
            raise UserError(
                f"job {other} of an earlier call has {run.folder} with other settings; wait for its end, or 'scancel "
                f"{other}'."
            )
        gpus = self._cluster.gpus if stage == "train" else min(self._cluster.gpus, 1)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"] if gpus > 1 else []
        command = [sys.executable, *launcher, "-m", "multidds", *run.arguments(stage)]
        options = {
            "job-name": _name(run, stage),
            "partition": self._cluster.partition,
            "gres": f"gpu:{gpus}" if gpus else "",
            "time": self._cluster.time,
            "mem": self._cluster.memory,
            "cpus-per-task": run.threads * max(gpus, 1),
            "output": str(log.resolve()).replace("%", "%%"),
        }
        given = [f"--{key}={value}" for key, value in options.items() if value]
        printed = _called(
            *("sbatch", "--parsable", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", *given),
            script=f"#!/bin/sh\nexec {shlex.join(command)}\n",  # exec: the signals of Slurm go to the command
            threads=run.threads,
        )
        number = printed.partition(";")[0].strip()
        self._states[number] = ("PENDING", _name(run, stage))
        return SlurmJob(self, number)

    def has(self, run: Planned, stage: Stage) -> bool:
        return bool(self._number(run, stage, _EVERY))

    def _number(self, run: Planned, stage: Stage, every: float) -> str:
        """Returns the number of the job that has not ended; empty if there is none."""
        name = _name(run, stage)
        return next((n for n, (state, of) in self.states(every).items() if of == name and state not in _ENDED), "")

    def _with_other_settings(self, run: Planned, stage: Stage) -> str:
        """Returns the number of a job for the same folder that has not ended and has other arguments, or nothing."""
        before = _name(run, stage).rpartition(".")[0] + "."
        jobs = self._states.items()
        return next((number for number, (state, of) in jobs if of.startswith(before) and state not in _ENDED), "")

    def states(self, every: float = _EVERY) -> dict[str, tuple[str, str]]:
        """Returns {number: (state, name)} of the user's jobs, also of those that ended in the last minutes.

        every: the age in seconds from which the answer is renewed. If Slurm does not answer, it is the last one.
        """
        if time.monotonic() - self._looked >= every:
            try:
                lines = _called("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%j").splitlines()
                self._states = {number: (state, name) for number, state, name in (x.split("|", 2) for x in lines)}
            except UserError:
                if every == 0.0:
                    raise
            self._looked = time.monotonic()
        return self._states


@dataclass
class SlurmJob:
    """A job in the queue."""

    slurm: Slurm
    number: str
    asked: int = 0  # requests to stop
    when: float = 0.0  # the first of them came

    def _state(self) -> str:
        return self.slurm.states().get(self.number, ("", ""))[0]

    @property
    def queued(self) -> bool:
        return self._state() in ("", "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD")

    def poll(self) -> End | None:
        if self.asked == 1 and time.monotonic() - self.when > _SECONDS:
            return End(False, f"job {self.number} goes on")
        state = self._state()
        if self.number not in self.slurm.states():  # Slurm forgets: only the files of the run can tell
            return End(None, f"job {self.number} is gone from the queue", cut=True)
        return End(state == "COMPLETED", f"job {self.number} is {state}", state in _CUT) if state in _ENDED else None

    def ask_to_stop(self, times: int) -> None:
        """Leaves the job alone; the second time cancels it, so that it saves and stops."""
        if self.asked == 0:
            self.asked, self.when = 1, time.monotonic()
        if self.asked < times:
            with contextlib.suppress(UserError):  # then it goes on, and the end says so
                _called("scancel", self.number)
                self.asked = times


def _name(run: Planned, stage: Stage) -> str:
    """Returns the name of a job: the run, its folder and its settings, the last two as checksums."""
    texts = (str(run.folder.resolve()), run.config.model_dump_json())
    sums = [hashlib.sha256(text.encode()).hexdigest()[:8] for text in texts]
    return f"{run.name}/{stage}.{'.'.join(sums)}"


def _called(*command: str, script: str = "", threads: int = 0) -> str:
    """Returns what a command of Slurm prints. Raises a UserError with the reason if it fails."""
    # A group of its own: Ctrl-C reaches us alone.
    try:
        done = subprocess.run(
            command, input=script, capture_output=True, text=True, env=environment(threads), process_group=0
        )
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror or error}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"{command[0]}: {reason.removeprefix(f'{command[0]}: ').removeprefix('error: ')}")
    return done.stdout
