"""The examples in docstrings, run as they stand."""

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import multidds

SOURCES = Path(multidds.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def module_name(path):
    parts = ("multidds", *path.relative_to(SOURCES).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXAMPLES = sorted(module_name(path) for path in SOURCES.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))


def imported(name):
    """Imports a module, or skips the test if it needs a library of an extra that is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "multidds":
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    done = doctest.testmod(imported(name), optionflags=OPTIONS)
    assert done.attempted > 0
    assert done.failed == 0, f"see above; or: python -m doctest {name}"
