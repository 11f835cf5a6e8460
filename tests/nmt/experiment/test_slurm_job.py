"""Experiments on a real Slurm of this machine alone, and what the runner does if a cluster cuts a run off."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm
import torch
from conftest import ROOT, multidds
from snippets import blocks
from toy_runs import mistake, tensors

from multidds.nmt.experiment.experiment_file import load_experiment
from multidds.nmt.experiment.job import End
from multidds.nmt.experiment.local_process import Local, LocalProcess
from multidds.nmt.experiment.run_list import plan
from multidds.nmt.experiment.runner import Runner

NAME = "made-up/learned/seed-1"


@pytest.fixture(scope="module")
def done(corpus):
    """Two runs, in processes of this machine; the folder that holds them."""
    slurm.write_experiment(corpus, "here", 60, (1,))
    multidds("experiment", "here.toml", cwd=corpus)
    return corpus


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The environment of a user of a cluster."""
    if reason := slurm.refusal():
        pytest.skip(reason)
    try:
        with slurm.cluster(tmp_path_factory.mktemp("s") / "c") as environment:
            yield environment
    except (RuntimeError, OSError) as error:
        pytest.skip(str(error))


def change(folder, name, old, new):
    path = slurm.write_experiment(folder, name, 60, (1,))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


# ---------------------------------------------------------------------------------------------- mistakes


def test_a_place_that_cannot_be_used_is_one_line(tmp_path, monkeypatch):
    path = slurm.write_experiment(tmp_path, "e")
    assert "--on: invalid choice: 'slrum'" in mistake("experiment", path, "--on", "slrum")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "squeue" in mistake("experiment", path, "--on", "slurm")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('partition = "low"', "", "[cluster] partition"),
        ('partition = "low"', 'partition = "low"\ngpu = 1', "[cluster] has no key 'gpu'. Did you mean 'gpus'?"),
        ('time = "30"', "time = 08:00:00", "[cluster] time"),
        ('time = "30"', "gpus = -1", "[cluster] gpus"),
    ],
)
def test_a_mistake_in_the_table_of_the_cluster_is_one_line(tmp_path, old, new, message):
    assert message in mistake("experiment", change(tmp_path, "e", old, new), "--on", "slurm")


# ---------------------------------------------------------------------------------------------- cut off, here


class Cut(LocalProcess):
    """A process of which its place may say that it was cut off."""

    def poll(self):
        return super().poll() and End("cut off", cut=True)


class Cutting(Local):
    """This machine, where the first process of a run is asked to stop: when it has saved, or at once."""

    def __init__(self, saved):
        super().__init__()
        self.saved, self.started = saved, 0

    def start(self, run, stage, log):
        self.started += 1
        process = Cut(run, stage, log)
        if self.started == 1 or not self.saved:
            while self.saved and slurm.saved(run.folder) == 0:
                time.sleep(0.01)
            process._process.send_signal(signal.SIGINT if self.saved else signal.SIGKILL)
        return process


@pytest.mark.claim(
    "Several processes", "a training that a cluster cuts off goes on, and ends as one that was not cut off"
)
def test_a_training_that_was_cut_off_goes_on_if_it_has_saved(done, monkeypatch):
    monkeypatch.chdir(done)
    for name, saved in (("cut", True), ("never", False)):
        path = slurm.write_experiment(done, name, 60, (1,))
        (run,) = [run for run in plan(path, load_experiment(path)) if run.name == NAME]
        place = Cutting(saved)
        runner = Runner([run], 1, place)
        runner.run()
        (job,) = runner.jobs
        if saved:
            assert (job.state, place.started) == ("done", 3)  # twice to train, once to evaluate
            assert "Stopped and saved after step" in run.log.read_text()
            assert slurm.result(run.folder) == slurm.result(done / "runs/here" / NAME)
        else:
            assert (job.state, place.started) == ("failed", 1)  # it would be cut off for ever
            assert "cut off" in job.reason


# ---------------------------------------------------------------------------------------------- a real Slurm

PAGE = ROOT / "docs" / "distributed.md"


def test_the_documented_experiment_has_44_runs(tmp_path):
    (text,) = blocks(PAGE, "toml")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    path = tmp_path / "seeds.toml"
    path.write_text(text)
    assert len(plan(path, load_experiment(path))) == 44
    assert load_experiment(path).cluster.gpus == 1


def test_the_documented_jobs_run_with_two_gpus(done, opened, monkeypatch):
    """The array, and the job script: with two GPUs that are names only, and two runs."""
    monkeypatch.chdir(done)
    slurm.write_experiment(done, "seeds", 60, (1,))
    (done / "examples").symlink_to(ROOT / "examples")
    (script,) = blocks(PAGE, "sh")
    (done / "sharded.sh").write_text(
        script.replace("=gpu ", "=low ").replace("=64", "=2").replace("8 ex", "2 ex").replace("gpu:8", "gpu:2")
    )
    lines = [line for block in blocks(PAGE, "console") for line in block.splitlines() if "sbatch" in line]
    array, job, _ = [line.replace("partition=gpu", "partition=low").replace("-44%8", "-2%2") for line in lines]
    environment = opened | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{opened['PATH']}"}
    (listed,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.endswith("> trainings")]
    for line in (listed, array.replace("--cpus-per-task=4", ""), job):
        subprocess.run(line, shell=True, env=environment, check=True)
    slurm.wait_for(lambda: not slurm.jobs(opened))
    assert "400 {'web': " in (done / "sharded.log").read_text()
    assert slurm.saved(done / "runs" / "seeds" / NAME) == 60


def test_what_slurm_refuses_is_one_line(done, opened):
    for name, key, value, message in (
        ("nowhere", 'partition = "low"', 'partition = "nowhere"', "Invalid partition"),
        ("large", 'time = "30"', 'memory = "900000G"', "node configuration is not available"),
    ):
        path = change(done, name, key, value)
        failed = multidds("experiment", path, "--on", "slurm", "--only", NAME, cwd=done, env=opened, check=False)
        assert failed.returncode == 1
        (line,) = [line for line in failed.stdout.splitlines() if line.startswith(f"failed: {NAME}: sbatch: ")]
        assert message in line


@pytest.mark.claim(
    "Several processes", "a job of Slurm that is pre-empted, and one that Ctrl-C leaves alone, end like any other run"
)
def test_jobs_that_are_preempted_or_left_end_as_on_this_machine(done, opened):
    there = slurm.Experiment(done, opened, slurm.write_experiment(done, "there", 60, (1,)))
    there.training("pre-empted")
    slurm.asked(opened, "sbatch", "--partition=high", "--cpus-per-task=2", "--output=/dev/null", "--wrap=true")
    slurm.wait_for(lambda: "PENDING" in {state for _, state, name in slurm.jobs(opened) if name.startswith("made-up")})
    there.process.send_signal(signal.SIGINT)
    assert there.end() == 130
    assert " goes on " in there.log.read_text()
    there.start()
    assert there.end() == 0
    for method in ("uniform", "learned"):
        run = f"made-up/{method}/seed-1"
        assert slurm.result(done / "runs/there" / run) == slurm.result(done / "runs/here" / run)
    assert there.most == 2
    assert "Next: multidds report" in there.log.read_text()


def test_several_gpus_are_a_process_each(done, opened, monkeypatch):
    """The GPUs of the node are names only: both processes compute on the CPU."""
    monkeypatch.chdir(done)
    path = change(done, "gpus", 'time = "30"', "gpus = 2")
    multidds("experiment", path, "--on", "slurm", "--only", NAME, cwd=done, env=opened)
    (run,) = [run for run in plan(path, load_experiment(path)) if run.name == NAME]
    arguments = [part.replace("runs/gpus", "runs/two") for part in run.arguments("train")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launcher, "-m", "multidds", *arguments], check=True, capture_output=True)
    two, one = (tensors(done / "runs" / name / NAME) for name in ("two", "here"))
    assert all(torch.equal(value, two[name]) for name, value in tensors(run.folder).items())
    assert not all(torch.equal(value, two[name]) for name, value in one.items())  # dropout has a seed per process
