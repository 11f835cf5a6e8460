"""The documented commands that start several processes."""

import os
import subprocess
import sys
from pathlib import Path

import accelerate_loop
import pytest
import ranks
from conftest import ROOT

pytestmark = [pytest.mark.nightly(part="launchers")]

SCRIPT = """
import pathlib, accelerate_loop, torch.distributed as dist
mixture = accelerate_loop.main(40)
place = f"{dist.get_rank()} of {dist.get_world_size()}"
pathlib.Path(__file__).with_name(place).write_text(str(mixture))
from ranks import leave
leave()
"""


@pytest.mark.claim("Accelerate", "the documented command starts two processes")
@pytest.mark.claim("Several processes", "the documented commands start two processes")
def test_command_of_the_accelerate_example_starts_two_processes(tmp_path):
    """Accelerate's own launcher starts one on a CPU, whatever --num_processes says."""
    (line,) = [line.split() for line in accelerate_loop.__doc__.splitlines() if "torchrun" in line and "--" in line]
    script = tmp_path / "counted.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join(str(Path(module.__file__).parent) for module in (accelerate_loop, ranks))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([paths, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *line[1:-1], str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    mixtures = {path.name: path.read_text() for path in tmp_path.glob("* of *")}
    assert mixtures.keys() == {"0 of 2", "1 of 2"}
    assert len(set(mixtures.values())) == 1


@pytest.mark.claim(
    "Several processes", "eight runs as jobs of a real Slurm end as on one machine, whatever ends the jobs"
)
def test_an_experiment_on_slurm_ends_as_on_one_machine():
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "slurm.py"], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
