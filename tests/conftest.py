import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before its library comes: no test asks a hub, or tells it anything
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch comes: there are as many processes as cores already

import made_up_languages
import pytest
import torch
from hypothesis import HealthCheck, settings

from multidds.nmt.model import bfloat16

# The machines that run this are small and noisy: nobody is timed, and the same examples every time.
slow = [HealthCheck.too_slow]
settings.register_profile("multidds", deadline=None, derandomize=True, max_examples=60, suppress_health_check=slow)
settings.load_profile("multidds")

for name in [name for name in os.environ if name.startswith("SLURM_")]:
    del os.environ[name]  # inside a job of a cluster too, the tests are one process that starts others by itself

ROOT = Path(__file__).parent.parent


PARTS = {"results", "site", "faults", "launchers", "extras", "install", "newest"}  # of `make nightly`
SLOW_FIXTURES = {"tiny", "runs", "done", "demo", "place", "opened", "browser", "hundred"}  # whole trainings, a browser


def pytest_collection_modifyitems(items):
    """`make test-fast` leaves out what takes more than a few seconds, and what waits for such a fixture."""
    for item in items:
        if SLOW_FIXTURES & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        for mark in item.iter_markers("nightly"):
            if mark.args or mark.kwargs.keys() != {"part"} or mark.kwargs["part"] not in PARTS:
                raise pytest.UsageError(f"{item.nodeid}: nightly(part=...) takes one of {', '.join(sorted(PARTS))}")


def pytest_runtest_setup(item):
    if item.get_closest_marker("bfloat16") and (reason := bfloat16.refusal()):
        pytest.skip(f"bfloat16 {reason}")


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in one order: bit-for-bit comparisons need it."""
    torch.set_num_threads(1)


def multidds(*arguments, cwd, check=True, **kwargs):
    """The command line, as a user calls it."""
    command = [sys.executable, "-m", "multidds", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **kwargs)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A folder with the text of the made-up languages, where the recipes' relative paths lead to it."""
    folder = tmp_path_factory.mktemp("corpus")
    made_up_languages.write(folder / "data" / "made-up")
    return folder


@pytest.fixture(scope="session")
def text(corpus):
    """The corpus, prepared for the small runs of `toy_runs`: processes that are launched find it done."""
    from toy_runs import small_config

    with pytest.MonkeyPatch.context() as patch:
        assert small_config(corpus, patch).model.dropout > 0
    return corpus


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """recipes/tiny.toml prepared, trained and evaluated by the commands; the folder that holds data/ and runs/tiny.

    It is made once for all workers, each of which gets a copy.
    """
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tiny"
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "runs" / "tiny" / "scores.json").exists():
            recipe = ROOT / "recipes" / "tiny.toml"
            made_up_languages.write(made / "data" / "made-up")
            multidds("prepare", recipe, cwd=made)
            multidds("train", recipe, "--run", "runs/tiny", cwd=made)
            multidds("evaluate", "runs/tiny", cwd=made)
    return shutil.copytree(made, tmp_path_factory.mktemp("tiny"), dirs_exist_ok=True)
