"""What `make test` promises by itself."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import PARTS, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from toy_lightning import QUIET, loader_and_callback, net, trainer

pytestmark = QUIET


@pytest.mark.slow
def test_a_crashed_worker_ends_the_run_with_a_failure(tmp_path):
    (tmp_path / "test_crash.py").write_text("import os\n\ndef test_dies():\n    os.abort()\n")
    (tmp_path / "test_fine.py").write_text("def test_lives():\n    pass\n")
    settings = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadfile", *settings, tmp_path]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "crashed while running 'test_crash.py::test_dies'" in done.stdout


def test_a_machine_of_a_cluster_is_like_any_other(tmp_path, monkeypatch):
    """Lightning warns where `srun` is installed and not used, and warnings are errors here."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert not [name for name in os.environ if name.startswith("SLURM_")]
    loader, callback = loader_and_callback()
    trainer(tmp_path, callback, max_steps=2).fit(net(), loader)


def test_the_parts_of_make_nightly_are_the_same_everywhere():
    (made,) = re.findall(r"(?m)^PART \?= (.*)$", (ROOT / "Makefile").read_text())
    (weekly,) = re.findall(r"part: \[(.*)\]", (ROOT / ".github" / "workflows" / "weekly.yml").read_text())
    assert made.split() == weekly.split(", ")
    assert set(made.split()) == PARTS


def test_constraints_are_complete_and_hold_on_any_machine():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if not line.startswith("#")]
    assert all(pins), "a line with a path, a host or a build such as +cpu"
    versions = {canonicalize_name(pin[1]): pin[2] for pin in pins}
    assert len(versions) == len(pins)
    assert not [name for name in versions if name.startswith(("nvidia", "cuda", "triton"))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *(line for part in project["optional-dependencies"].values() for line in part)]
    for requirement in map(Requirement, needed):
        if requirement.name != project["name"]:
            assert canonicalize_name(requirement.name) in versions, f"{requirement}: make constraints"
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier


def test_no_two_files_of_tests_have_one_name():
    """pytest imports test files by their names alone, and so do tests with the modules beside them and on its path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {ROOT / folder for folder in project["tool"]["pytest"]["ini_options"]["pythonpath"]}
    folders |= {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = [path.name for folder in folders for path in folder.glob("*.py")]
    assert len(names) > 150
    assert sorted(names) == sorted(set(names))
