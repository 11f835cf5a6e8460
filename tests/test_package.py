import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import multidds

SOURCES = Path(multidds.__file__).parent

# Which modules of ours a module may import: imports point one way (docs/architecture.md).
MAY_IMPORT = {
    "checks": set(),
    "mixture": {"checks"},
    "randomness": set(),
    "alignment": set(),
    "sketch": set(),
    "priorities": set(),
    "scorer": {"checks"},
    "replicas": set(),
    "rewards": {"alignment"},
    "update": {"alignment"},
    "sources": {"randomness"},
    "sampling": {"checks", "mixture", "randomness", "sources"},
    "mixed_dataset": {"checks", "mixture", "randomness", "sampling"},
    "probing": {"alignment", "checks", "randomness", "replicas", "sketch"},
    "averages": {"probing"},
    "metric": {"probing"},
    "balancer": {
        "checks",
        "alignment",
        "averages",
        "metric",
        "mixture",
        "priorities",
        "probing",
        "rewards",
        "scorer",
        "sources",
        "update",
    },
    "lightning": {
        "balancer",
        "checks",
        "mixture",
        "probing",
        "randomness",
        "replicas",
        "sampling",
        "sources",
        "update",
    },
    "huggingface": {"balancer", "checks", "mixed_dataset", "priorities", "probing", "sources"},
}


def test_importing_the_package_imports_neither_torch_nor_numpy():
    code = "import multidds, sys; dir(multidds); print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_every_public_name_resolves_to_the_thing_of_that_name():
    for name in multidds.__all__:
        thing = getattr(multidds, name)
        assert thing.__name__.removeprefix("multidds.") == name
    assert set(multidds.__all__) <= set(dir(multidds))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        multidds.nothing  # noqa: B018


def test_imports_point_one_way():
    modules = {path.stem: path for path in SOURCES.glob("*.py") if path.stem not in ("__init__", "__main__")}
    assert modules.keys() == MAY_IMPORT.keys()
    for name, path in modules.items():
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                imported |= {node.module} if node.module else {alias.name for alias in node.names}
        assert imported <= MAY_IMPORT[name], f"{name} imports {imported - MAY_IMPORT[name]}"


def test_one_file_imports_transformers():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.module

    roots = {path.name: {name.split(".")[0] for name in imported(path)} for path in SOURCES.rglob("*.py")}
    users = {name for name, names in roots.items() if names & {"transformers", "accelerate", "datasets"}}
    assert users == {"huggingface.py"}


# What the application shares with the core beside the public names: where it is among processes, and random states.
SHARED = {"multidds.replicas": {"ranks"}, "multidds.randomness": {"random_states", "seed_all", "set_random_states"}}


def test_the_application_uses_public_names_of_the_core_only():
    paths = list((SOURCES / "nmt").rglob("*.py"))
    assert SOURCES / "nmt" / "catalogues" / "cleaning.py" in paths
    for path in paths:
        highest = len(path.relative_to(SOURCES / "nmt").parts)  # from nmt/x/y.py two dots are nmt, three the core
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("multidds"):
                allowed = {"multidds": set(multidds.__all__), **SHARED}.get(node.module or "", set())
                assert {alias.name for alias in node.names} <= allowed, f"{path.name}: {node.module}"
            assert not (isinstance(node, ast.ImportFrom) and node.level > highest), path.name


def test_no_file_shares_its_name_with_a_public_function():
    functions = {name for name in multidds.__all__ if callable(getattr(multidds, name))}
    assert not functions & MAY_IMPORT.keys()


def test_every_module_says_what_it_owns():
    for name in MAY_IMPORT:
        assert len(importlib.import_module(f"multidds.{name}").__doc__) > 80
