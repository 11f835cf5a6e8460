"""Runs an experiment on a real Slurm and compares the runs with those of local processes.

    python benchmarks/slurm.py

Jobs are killed, pre-empted, timed out, left alone and cancelled. Eight small runs, two at a time, must end as in
local processes, bit for bit. The cluster is this machine alone, on loopback, with two CPUs and no accounting. It is
set up in a temporary folder and taken down at the end. This needs the programs of Debian's packages slurm-wlm and
munge. If they are missing or cannot be started, the exit code is 77.
"""

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from multidds.nmt.runs import checkpoints

ROOT = Path(__file__).parent.parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
TIMES = ("seconds", "clock", "tokens_per_second", "checksum")  # of records: they differ between equal runs
CONFIG = """
ClusterName=multidds
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1
PartitionName=high Nodes=ALL PriorityTier=2
"""
EXPERIMENT = """
folder = "runs/{name}"
parallel = 2

[cluster]
partition = "low"
time = "30"

[settings.made-up]
recipe = "{recipe}"

[settings.made-up.set]
model = {{encoder_layers = 1, decoder_layers = 1, width = 16, inner = 32, heads = 2}}
train = {{tokens = 400, batch_tokens = 200, pool = 4, warmup = 5, save_every = 10, max_steps = {steps}}}
translate = {{beam = 1}}
mixture = {{every = 10, probe_tokens = 100, sketch = 256}}

[methods.uniform]
set = {{mixture = {{method = "static", prior = "uniform"}}}}

[methods.learned]
set = {{mixture = {{method = "learned"}}}}

[[blocks]]
name = "main"
settings = ["made-up"]
methods = ["uniform", "learned"]
seeds = {seeds}
"""


def refusal() -> str:
    """Returns why there can be no cluster here; empty if there can be one."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    return f"Slurm is not installed (no {', '.join(missing)}): apt-get install slurm-wlm munge" if missing else ""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Sets up a cluster in a folder and yields the environment of its users. Raises a RuntimeError if it cannot."""
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    facts = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "folder": folder}
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(**facts, ports=free_ports(2)))
    (folder / "gres.conf").write_text(f"NodeName={facts['host']} Name=gpu File=/dev/null,/dev/zero\n")
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    environment = outside | {"PATH": path, "SLURM_CONF": str(config)}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munge += [f"--{name}-file={folder}/munge/{name}" for name in ("pid", "log", "seed")]
    commands = [[*munge, f"--socket={folder}/munge/socket"], ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-c"]]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as output:
                started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT))
            time.sleep(1)
        for _ in range(60):
            if "idle" in asked(environment, "sinfo", "-h", "-o", "%T", check=False):
                break
            time.sleep(0.5)
        else:
            said = [(folder / f"{command[0]}.out").read_text()[-300:] for command in commands]
            raise RuntimeError(f"Slurm cannot be started here: {said}")
        yield environment
    finally:
        with contextlib.suppress(AssertionError):
            asked(environment, "scancel", "--me", check=False)
            wait_for(lambda: not asked(environment, "squeue", "-h", check=False), 60)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def asked(environment: dict[str, str], *command: str, check: bool = True) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def wait_for(happened: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def write_experiment(folder: Path, name: str, steps: int = 300, seeds: tuple[int, ...] = (1, 2, 3, 4)) -> Path:
    path = folder / f"{name}.toml"
    recipe = ROOT / "recipes" / "tiny.toml"
    path.write_text(EXPERIMENT.format(name=name, recipe=recipe, steps=steps, seeds=list(seeds)))
    return path


def jobs(environment: dict[str, str]) -> list[tuple[str, str, str]]:
    """Returns (number, state, name of the run and stage) of the jobs in the queue; their names end in two checksums."""
    lines = asked(environment, "squeue", "-h", "-o", "%i|%T|%j").splitlines()
    return [(number, state, name.rsplit(".", 2)[0]) for number, state, name in (x.split("|", 2) for x in lines)]


def saved(run: Path) -> int:
    """Returns the step of the newest checkpoint."""
    return max(map(checkpoints.step_of, checkpoints.listed(run)), default=0)


def result(run: Path) -> tuple[object, ...]:
    """Returns all that a run has found: the bits of its best weights, its scores, its records without times."""
    tensors, state = checkpoints.read(run / checkpoints.BEST, "numpy")
    weights = {name: tensor.tobytes() for name, tensor in tensors.items()}
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    records = [{key: value for key, value in line.items() if key not in TIMES} for line in lines]
    scores = json.loads((run / "scores.json").read_text())
    return weights, state, records, scores["average"]


class Experiment:
    """Calls of `multidds experiment --on slurm`, one after another, and what is done to their jobs."""

    def __init__(self, folder: Path, environment: dict[str, str], path: Path) -> None:
        self.folder, self.environment = folder, environment
        self.runs = folder / "runs" / path.stem
        self.log = path.with_suffix(".out")
        self.command = [sys.executable, "-m", "multidds", "experiment", str(path), "--on", "slurm"]
        self.most = 0  # jobs that wait or run at a time
        self.hit: dict[str, str] = {}  # run: what was done to it
        self.start()

    def start(self) -> None:
        """Starts a call, and waits until it looks at a job."""
        before = self.log.read_text() if self.log.exists() else ""
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        wait_for(lambda: "seed-" in self.log.read_text()[len(before) :].partition("preparing")[2])

    def queue(self) -> list[tuple[str, str, str]]:
        present = [job for job in jobs(self.environment) if job[1] in ("PENDING", "RUNNING")]
        self.most = max(self.most, len([name for _, _, name in present if name.startswith("made-up/")]))
        return present

    def end(self) -> int:
        """Waits for the end of a call."""
        while self.process.poll() is None:
            self.queue()
            time.sleep(0.3)
        return int(self.process.returncode)

    def training(self, what: str) -> str:
        """Waits for a job that trains, has saved and was not hit before. Returns its number."""
        while self.process.poll() is None:
            for number, state, name in self.queue():
                run, _, stage = name.rpartition("/")
                if state == "RUNNING" and stage == "train" and run not in self.hit and (step := saved(self.runs / run)):
                    self.hit[run] = f"{what} after step {step}"
                    return number
            time.sleep(0.1)
        raise RuntimeError(f"ended without a job to hit: {self.log.read_text()}")

    def kill(self, what: str, number: int) -> str:
        """Sends a signal to the processes of a training. Returns the number of its job."""
        job = self.training(what)
        for line in asked(self.environment, "scontrol", "listpids", job).splitlines()[1:]:
            os.kill(int(line.split()[0]), number)
        return job

    def interrupt(self, what: str, times: int) -> None:
        self.training(what)
        for _ in range(times):
            self.process.send_signal(signal.SIGINT)
            time.sleep(0.5)


def main() -> int:
    if reason := refusal():
        print(reason)
        return 77
    import made_up_languages

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        try:
            environment = stack.enter_context(cluster(folder / "cluster"))
        except (RuntimeError, OSError) as error:
            print(error)
            return 77
        made_up_languages.write(folder / "data" / "made-up")
        here = write_experiment(folder, "here")
        subprocess.run([sys.executable, "-m", "multidds", "experiment", str(here)], cwd=folder, check=True)

        there = Experiment(folder, environment, write_experiment(folder, "there"))
        there.kill("killed", signal.SIGKILL)
        wait_for(lambda: ": failed: " in there.log.read_text())
        there.training("pre-empted")
        asked(environment, "sbatch", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap=true")
        job = there.kill("timed out", signal.SIGSTOP)  # until Slurm's SIGCONT: it looks at limits twice a minute
        asked(environment, "scontrol", "update", f"JobId={job}", "EndTime=now")
        there.interrupt("left", 1)
        codes = [there.end()]
        left = there.log.read_text().count(" goes on ")
        there.start()
        there.interrupt("cancelled", 2)
        codes.append(there.end())
        cancelled = len(jobs(environment))
        there.start()
        codes.append(there.end())

        print(there.log.read_text())
        runs = sorted(
            path.parent.relative_to(folder / "runs/here") for path in (folder / "runs/here").rglob("scores.json")
        )
        same = {str(run): result(folder / "runs/here" / run) == result(folder / "runs/there" / run) for run in runs}
        print("| run | what was done to it | as here, bit for bit |\n|---|---|---|")
        for run, equal in same.items():
            print(f"| {run} | {there.hit.get(run, '')} | {'yes' if equal else 'NO'} |")
        print(f"{there.most} jobs at a time; Ctrl-C left {left}, twice Ctrl-C {cancelled}; exit codes {codes}")
        good = len(same) == 8 and all(same.values()) and there.most == 2 and left and not cancelled
        return 0 if good and codes == [130, 130, 0] else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "examples"))
    sys.exit(main())
