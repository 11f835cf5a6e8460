"""Fresh environments: the install lines of the README, each extra with the snippet of its page, the newest versions.

They need a package registry and download torch. `pytest -m nightly tests/nightly/test_install.py -k plot` runs one.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT
from snippets import SNIPPETS, blocks

README_LINES = re.findall(r"(?m)^pip install .+?(?=\s*#|$)", blocks(ROOT / "README.md", "console")[0])


def new_environment(folder):
    """Makes an empty virtual environment and returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def run(command, cwd, constraints=None):
    """Runs a command, with a file of constraints for pip if there is one, and with nothing else of this environment."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PIP_CONSTRAINT")
    environment = {name: v for name, v in os.environ.items() if name not in ours and not name.startswith("PYTEST_")}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    if constraints is not None:
        environment["PIP_CONSTRAINT"] = str(constraints)
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nightly(part="install")
@pytest.mark.parametrize("line", README_LINES)
def test_an_install_line_of_the_readme_works(line, tmp_path):
    python = new_environment(tmp_path / "environment")
    run([python, "-m", *shlex.split(line)], ROOT)
    names = "import multidds; print(*(getattr(multidds, name).__name__ for name in multidds.__all__))"
    assert "Balancer" in run([python, "-c", names], tmp_path)
    assert "learned" in run([python, ROOT / "examples" / "plain_loop.py"], tmp_path)


@pytest.mark.nightly(part="extras")
@pytest.mark.parametrize("extra", SNIPPETS)
def test_an_extra_brings_what_the_snippet_of_its_page_needs(extra, tmp_path):
    python = new_environment(tmp_path / "environment")
    run([python, "-m", "pip", "install", f"{ROOT}[{extra}]"], ROOT, ROOT / "constraints.txt")
    # In another folder, so that nothing is imported from the clone but the snippets themselves.
    assert "the snippet runs" in run([python, ROOT / "tests" / "support" / "snippets.py", extra], tmp_path)


@pytest.mark.nightly(part="newest")
def test_the_newest_versions_of_everything_work(tmp_path):
    """All but torch, whose newest version may have no CPU build: the fast tests, all of the docs, and the demo."""
    python = new_environment(tmp_path / "environment")
    (pin,) = re.findall(r"(?m)^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"))
    (tmp_path / "torch.txt").write_text(pin)
    run([python, "-m", "pip", "install", "-e", f"{ROOT}[dev]"], ROOT, tmp_path / "torch.txt")
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "auto", "--dist", "loadfile"]
    run([*tests, "-m", "not slow and not nightly"], ROOT)
    run([*tests, "tests/test_docs.py", "tests/test_scripts.py", "tests/experiments/demo/test_quickstart.py"], ROOT)
