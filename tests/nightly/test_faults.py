"""Hundreds of faults and of files that nobody wrote: nothing is lost, nothing damaged is accepted."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = [pytest.mark.nightly(part="faults")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the benchmark forks")
def test_random_faults_lose_nothing(tmp_path):
    """The second call continues the first one."""
    for count in (20, 100):
        options = ["--count", str(count), "--seed", "5", "--results", str(tmp_path / "results.jsonl")]
        command = [sys.executable, str(ROOT / "benchmarks" / "faults" / "faults.py"), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"| all | {count} |" in done.stdout
    assert "| dead rank | " in done.stdout
    assert (tmp_path / "results.jsonl").read_text().count('"outcome"') == 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the benchmark forks")
def test_trainers_that_are_killed_end_as_if_undisturbed():
    command = [sys.executable, str(ROOT / "benchmarks" / "faults" / "trainers.py"), "--kills", "24", "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split("| all | ")[1].split(" | ")[0]) >= 24


@pytest.mark.parametrize(
    ("cases", "file"), [("5000", "balancer/test_damaged_states.py"), ("1000", "commands/test_garbage.py")]
)
def test_thousands_of_damaged_states_and_histories(cases, file):
    command = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / file)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"MULTIDDS_FUZZ_CASES": cases}, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


def test_twenty_thousand_files_that_nobody_wrote():
    """The tests of files with random contents, at length."""
    command = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "nmt" / "commands" / "test_fuzz.py")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"MULTIDDS_FUZZ_CASES": "750"}, capture_output=True)
    assert done.returncode == 0, done.stdout.decode()
