"""What `make test` promises by itself."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_a_crashed_worker_ends_the_run_with_a_failure(tmp_path):
    (tmp_path / "test_crash.py").write_text("import os\n\ndef test_dies():\n    os.abort()\n")
    (tmp_path / "test_fine.py").write_text("def test_lives():\n    pass\n")
    settings = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-n", "1", "--dist", "loadfile", *settings, tmp_path]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "crashed while running 'test_crash.py::test_dies'" in done.stdout
