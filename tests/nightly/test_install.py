"""Fresh environments: the install lines of the README, and each extra with the snippet of its page.

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


def run(command, cwd):
    """Runs a command with our constraints for pip, and with nothing else of this environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = clean | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
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
    run([python, "-m", "pip", "install", f"{ROOT}[{extra}]"], ROOT)
    # In another folder, so that nothing is imported from the clone but the snippets themselves.
    assert "the snippet runs" in run([python, ROOT / "tests" / "support" / "snippets.py", extra], tmp_path)
