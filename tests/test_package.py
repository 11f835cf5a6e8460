import ast
import importlib
import subprocess
import sys
from pathlib import Path

import code_lines
import pytest

import multidds

SOURCES = Path(multidds.__file__).parent

# Which modules of ours a module may import: imports point one way (docs/architecture.md).
MAY_IMPORT = {
    "checks": set(),
    "plan": set(),
    "pace": set(),
    "anchored": set(),
    "mixture": {"checks", "plan"},
    "limits": {"checks", "mixture"},
    "schedule": {"checks", "mixture"},
    "randomness": set(),
    "alignment": set(),
    "sketch": set(),
    "priorities": set(),
    "scorer": {"checks"},
    "replicas": set(),
    "rewards": {"alignment"},
    "update": {"alignment"},
    "gradients": set(),
    "sources": {"randomness"},
    "draws": {"checks", "mixture", "randomness"},
    "sampling": {"checks", "draws", "mixture", "replicas", "sources"},
    "shared_rules": {"draws", "mixture"},
    "mixed_dataset": {"checks", "draws", "mixture", "shared_rules"},
    "loading": {"checks", "mixture", "randomness", "replicas", "sampling"},
    "sweep": {"gradients"},
    "table": {"alignment", "gradients", "sketch", "sweep"},
    "probing": {"alignment", "checks", "gradients", "randomness", "replicas", "sweep", "table"},
    "averages": {"gradients"},
    "metric": {"gradients", "probing"},
    "estimating": {
        "alignment",
        "averages",
        "checks",
        "gradients",
        "metric",
        "priorities",
        "probing",
        "rewards",
        "sketch",
        "sources",
        "sweep",
        "table",
    },
    "balancer": {
        "anchored",
        "checks",
        "estimating",
        "limits",
        "mixture",
        "pace",
        "plan",
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
        "loading",
        "mixture",
        "probing",
        "randomness",
        "replicas",
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


def private_names(tree):
    """(attributes with an underscore that a file gives its own objects, those that it reads or writes on others)."""
    own, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        if isinstance(node, ast.Attribute):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            (own if of_self else used).add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.level:
            used |= {alias.name for alias in node.names}

    def private(names):
        return {name for name in names if name.startswith("_") and not name.startswith("__")}

    return private(own), private(used)


def test_no_module_reaches_into_the_private_names_of_another():
    found = {path: private_names(ast.parse(path.read_text(encoding="utf-8"))) for path in SOURCES.rglob("*.py")}
    for path, (own, used) in found.items():
        others = set().union(*(names for other, (names, _) in found.items() if other != path))
        reached = (used - own - {"_version"}) & others  # a tensor's own
        assert not reached, f"{path.name} reaches for {sorted(reached)}"


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
SHARED = {"multidds.replicas": {"ranks"}, "multidds.randomness": {"random_states", "set_random_states"}}


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


def test_no_function_and_no_file_is_too_long():
    found = code_lines.too_long(SOURCES)
    assert not found, "\n".join(found)


def test_lines_of_code_are_those_without_comments_and_docstrings(tmp_path):
    lines = [
        '"""Says',
        "what",
        'it is."""',
        "",
        "x = 1  # one",
        "# none",
        "def f():",
        '    """Doc."""',
        '    return """a',
        'b"""',
    ]
    (tmp_path / "a.py").write_text("\n".join(lines) + "\n")
    assert code_lines.code_lines(tmp_path / "a.py") == 4  # x, def and the two lines of a string that is a value
    (tmp_path / "a.py").write_text("def f():\n" + "    x = 1\n" * 50 + "y = 2\n" * 350)
    assert code_lines.too_long(tmp_path) == ["a.py: 401 lines", "a.py: f: 51 lines"]
