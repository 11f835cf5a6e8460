"""Commands as jobs of Slurm, through its own commands: sbatch, squeue and scancel.

A job is one command line, which Slurm starts again after a pre-emption: `multidds train` then goes on from its last
checkpoint. A later call of the experiment finds jobs again by their names. No accounting database is needed. Does not
import torch.
"""

import contextlib
import hashlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multidds._base.errors import UserError

from .experiment_file import Cluster
from .job import End, Job
from .local_process import environment
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
        if not cluster.partition:
            raise UserError(f"{file}: --on slurm needs [cluster] partition, as in 'partition = \"gpu\"'.")
        self._look()

    def first_of(self, waiting: Sequence[Job]) -> Job | None:
        """Returns the next job to start: first those whose commands an earlier call has left in the queue."""
        return next((job for job in waiting if self._number(job.run, job.stages[0])), next(iter(waiting), None))

    def start(self, run: Planned, stage: Stage, log: Path) -> "SlurmJob":
        """Submits a job, or returns the one that an earlier call has left."""
        if number := self._number(run, stage):
            return SlurmJob(self, number)
        gpus = self._cluster.gpus if stage == "train" else min(self._cluster.gpus, 1)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"] if gpus > 1 else []
        command = [sys.executable, *launcher, "-m", "multidds", *run.arguments(stage)]
        options = {
            "job-name": _name(run, stage),
            "partition": self._cluster.partition,
            "gres": f"gpu:{gpus}" if gpus else "",
            "time": self._cluster.time,
            "mem": self._cluster.memory,
            "cpus-per-task": run.config.train.threads * max(gpus, 1),
            "output": str(log.resolve()).replace("%", "%%"),
        }
        given = [f"--{key}={value}" for key, value in options.items() if value]
        printed = _called(
            *("sbatch", "--parsable", "--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", *given),
            script=f"#!/bin/sh\nexec {shlex.join(command)}\n",  # exec: the signals of Slurm go to the command
            threads=run.config.train.threads,
        )
        number = printed.partition(";")[0].strip()
        self._states[number] = ("PENDING", _name(run, stage))
        return SlurmJob(self, number)

    def _number(self, run: Planned, stage: Stage) -> str:
        """Returns the number of the job that has not ended; empty if there is none."""
        name = _name(run, stage)
        return next((n for n, (state, of) in self.states().items() if of == name and state not in _ENDED), "")

    def states(self) -> dict[str, tuple[str, str]]:
        """Returns {number: (state, name)} of the user's jobs, also of those that ended in the last minutes.

        If Slurm does not answer, these are the last ones.
        """
        if time.monotonic() - self._looked >= _EVERY:
            with contextlib.suppress(UserError):
                self._look()
        return self._states

    def _look(self) -> None:
        self._looked = time.monotonic()
        lines = _called("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%j").splitlines()
        self._states = {number: (state, name) for number, state, name in (line.split("|", 2) for line in lines)}


@dataclass
class SlurmJob:
    """A job in the queue."""

    slurm: Slurm
    number: str
    asked: int = 0  # requests to stop
    when: float = 0.0  # the first of them came

    def poll(self) -> End | None:
        """Returns None until the job has ended or is left alone."""
        if self.asked == 1 and time.monotonic() - self.when > _SECONDS:
            return End(f"job {self.number} goes on in the queue")
        state, _ = self.slurm.states().get(self.number, ("gone from the queue", ""))
        if state in _ENDED:
            return End(f"job {self.number} is {state}", state in _CUT)
        return None if self.number in self.slurm.states() else End(f"job {self.number} is {state}", cut=True)

    def stop(self, times: int) -> None:
        """Leaves the job alone; the second time cancels it, so that it saves and stops."""
        if times and self.asked == 0:
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
        reason = error.strerror or error
        raise UserError(f"{command[0]}: {reason}. Run this on a machine of the cluster.") from None
    if done.returncode:
        raise UserError((done.stderr.strip().splitlines() or [f"{command[0]}: exit code {done.returncode}"])[-1])
    return done.stdout
