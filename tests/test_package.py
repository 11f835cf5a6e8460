import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import code_lines
import pytest

import multidds

SOURCES = Path(multidds.__file__).parent
ROOT = Path(__file__).parent.parent

# Which modules of ours those of the core and the integrations may import, one way (docs/architecture.md).
MAY_IMPORT = {
    "checks": set(),
    "carrying": set(),
    "plan": set(),
    "pace": set(),
    "anchored": {"carrying", "checks", "packing", "shrinkage"},
    "rivals": {"carrying", "checks"},
    "mixture": {"checks", "plan", "wording"},
    "wording": set(),
    "loggers": {"history", "update"},
    "drift": {"carrying", "checks", "packing"},
    "choices": {
        "anchored",
        "checks",
        "estimates",
        "mixture",
        "pace",
        "probing",
        "rewards",
        "rivals",
        "scorer",
        "sources",
    },
    "limits": {"checks", "mixture"},
    "schedule": {"checks", "mixture"},
    "randomness": set(),
    "alignment": set(),
    "history": {"update", "wording"},
    "sketch": set(),
    "priorities": set(),
    "dev_weights": {"checks", "priorities", "replicas"},
    "rotation": {"randomness"},
    "packing": set(),
    "thinning": set(),
    "estimates": {"alignment", "replicas", "rewards", "sweep", "table"},
    "mixed_probes": {"averages", "gradients", "probing", "slopes", "sources"},
    "shrinkage": {"carrying", "checks", "packing"},
    "scorer": {"carrying", "checks"},
    "replicas": set(),
    "rewards": {"alignment"},
    "update": {"alignment", "wording"},
    "plotting": {"history", "update", "wording"},
    "gradients": set(),
    "options": set(),
    "snapshots": set(),
    "sources": {"checks", "randomness"},
    "draws": {"carrying", "checks", "mixture", "randomness"},
    "sampling": {"carrying", "checks", "draws", "mixture", "replicas", "sources"},
    "shared_rules": {"draws", "mixture"},
    "mixed_dataset": {"carrying", "checks", "draws", "mixture", "shared_rules"},
    "loading": {"carrying", "checks", "mixture", "randomness", "replicas", "sampling"},
    "shards": {"gradients", "replicas"},
    "sharing": {"gradients", "replicas"},
    "wrappers": {"checks", "shards"},
    "sweep": {"gradients", "sharing", "shards"},
    "table": {"alignment", "gradients", "sharing", "shards", "sketch", "sweep"},
    "probing": {"alignment", "checks", "gradients", "randomness", "replicas", "sweep", "table", "wrappers"},
    "averages": {"checks", "gradients", "shards"},
    "metric": {"gradients", "probing"},
    "estimating": {
        "averages",
        "checks",
        "dev_weights",
        "estimates",
        "gradients",
        "metric",
        "mixed_probes",
        "pace",
        "probing",
        "rewards",
        "rotation",
        "sharing",
        "sketch",
        "slopes",
        "sources",
        "sweep",
        "table",
    },
    "features": {"randomness"},
    "recent": {"gradients"},
    "slopes": {"gradients", "probing"},
    "dev_sets": {"dev_weights", "gradients", "probing", "recent", "sources"},
    "example_network": {"features", "recent", "replicas", "slopes"},
    "example_scorer": {
        "checks",
        "dev_sets",
        "example_network",
        "priorities",
        "probing",
        "randomness",
        "recent",
        "slopes",
    },
    "balancer": {
        "anchored",
        "carrying",
        "checks",
        "choices",
        "drift",
        "estimates",
        "estimating",
        "history",
        "limits",
        "mixture",
        "packing",
        "plan",
        "plotting",
        "priorities",
        "probing",
        "rewards",
        "rivals",
        "scorer",
        "shrinkage",
        "slopes",
        "sources",
        "thinning",
        "update",
        "wording",
    },
    "huggingface": {"huggingface.callback", "mixed_dataset"},
    "huggingface.callback": {
        "balancer",
        "carrying",
        "checks",
        "huggingface.logs",
        "huggingface.probes",
        "huggingface.refusals",
        "mixed_dataset",
        "options",
        "probing",
    },
    "huggingface.logs": {"loggers", "update"},
    "lightning.logs": {"loggers", "update"},
    "huggingface.probes": {"checks", "huggingface.refusals", "mixed_dataset", "probing", "snapshots", "sources"},
    "huggingface.refusals": {"checks", "mixed_dataset"},
    "lightning": {"lightning.callback", "loading"},
    "lightning.callback": {
        "balancer",
        "carrying",
        "lightning.logs",
        "lightning.probes",
        "lightning.refusals",
        "loading",
        "mixture",
        "options",
        "probing",
        "randomness",
        "replicas",
        "update",
    },
    "lightning.probes": {"loading", "probing", "snapshots", "sources"},
    "lightning.refusals": {"checks", "loading", "mixture", "probing"},
    "trl": {"checks", "huggingface", "mixed_dataset", "mixture", "options"},
    "sentence_transformers": {"sentence_transformers.batches", "sentence_transformers.callback"},
    "sentence_transformers.batches": {"carrying", "checks", "draws", "mixture", "randomness", "replicas"},
    "sentence_transformers.callback": {
        "balancer",
        "checks",
        "huggingface.callback",
        "huggingface.probes",
        "huggingface.refusals",
        "options",
        "probing",
        "sentence_transformers.batches",
    },
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


def modules():
    """{dotted name below multidds: (path, syntax tree)} of the core and the integrations; a package is its __init__."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        if parts[0] not in ("nmt", "__init__", "__main__"):
            name = ".".join(part for part in parts if part != "__init__")
            found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def test_imports_point_one_way():
    assert modules().keys() == MAY_IMPORT.keys()
    for name, (path, tree) in modules().items():
        folder = path.relative_to(SOURCES).parts[:-1]
        imported = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = folder[: len(folder) - node.level + 1]
                names = [node.module] if node.module else [alias.name for alias in node.names]
                imported |= {".".join((*base, part)) for part in names}
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


STATES = ("state", "saved", "_loaded")  # what files call a state that they are given


def keys_of_states(tree):
    """(keys that the functions of a file write in dicts, keys that it reads from states, keys read from within keys)"""
    written, read, nested = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            written |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
        if isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str):
            if getattr(node.value, "id", getattr(node.value, "attr", None)) in STATES:
                read.add(node.slice.value)
            if isinstance(node.value, ast.Subscript) and isinstance(getattr(node.value.slice, "value", None), str):
                nested.add(ast.unparse(node))
    return written, read, nested


def test_no_module_reads_a_state_that_another_one_wrote():
    paths = [path for path in SOURCES.rglob("*.py") if "load_state_dict" in path.read_text(encoding="utf-8")]
    assert {"balancer.py", "callback.py", "resuming.py"} <= {path.name for path in paths}
    for path in paths:
        written, read, nested = keys_of_states(ast.parse(path.read_text(encoding="utf-8")))
        assert not read - written, f"{path.name} reads {sorted(read - written)}, which it does not write"
        assert not nested, f"{path.name} reads states within states: {sorted(nested)}"


def test_each_trainer_is_imported_in_one_folder():
    def imported(path):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.module

    expected = {"transformers": {"huggingface"}, "accelerate": set(), "datasets": set(), "lightning": {"lightning"}}
    expected |= {"trl": {"trl.py"}, "sentence_transformers": {"sentence_transformers"}}
    users = {library: set() for library in expected}
    for path in SOURCES.rglob("*.py"):
        for root in {name.split(".")[0] for name in imported(path)} & users.keys():
            users[root].add(path.relative_to(SOURCES).parts[0])
    assert users == expected


# What the application shares with the core beside the public names: where it is among processes, random states, and
# how histories are read, drawn and called.
SHARED = {
    "multidds.replicas": {"ranks"},
    "multidds.randomness": {"point", "derive", "random_states", "seed_all", "set_random_states"},
    "multidds.history": {"FACTS", "Moment", "find_history", "moments_of"},
    "multidds.plotting": {"COLOURS", "OTHERS", "plot", "shares_of", "top_movers"},
    "multidds.wording": {"movers"},
    "multidds.loggers": {"LAYOUT"},
}


def test_the_application_uses_public_names_of_the_core_only():
    paths = list((SOURCES / "nmt").rglob("*.py"))
    assert SOURCES / "nmt" / "catalogues" / "cleaning.py" in paths
    for path in paths:
        highest = len(path.relative_to(SOURCES / "nmt").parts)  # from nmt/x/y.py two dots are nmt, three the core
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("multidds"):
                allowed = {"multidds": {*multidds.__all__, "__version__"}, **SHARED}.get(node.module or "", set())
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


def documented_arguments(name, thing):
    """(what, argument, the text that help() shows of it) of every public class and function."""
    if inspect.ismodule(thing):
        for key, value in vars(thing).items():
            if inspect.isfunction(value) and value.__module__ == thing.__name__ and not key.startswith("_"):
                yield from documented_arguments(f"{name}.{key}", value)
        return
    for argument in inspect.signature(thing).parameters:
        yield name, argument, thing.__doc__ or ""
    for key, value in vars(thing).items() if inspect.isclass(thing) else ():
        method = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(method) and not key.startswith(("_", "on_", "load_state_dict")):
            for argument in list(inspect.signature(method).parameters)[1:]:
                yield f"{name}.{key}", argument, method.__doc__ or ""


def test_every_argument_of_every_public_name_is_documented():
    for name in multidds.__all__:
        for what, argument, text in documented_arguments(name, getattr(multidds, name)):
            assert re.search(rf"\b{argument}\b", text), f"{what}: {argument}"


@pytest.mark.parametrize("folder", ["benchmarks", "experiments", "examples"])
def test_what_scripts_import_of_the_package_is_there(folder):
    """Most scripts are too slow to be run by a test, and a name that was moved is found by nobody else."""
    for path in sorted((ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "multidds":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    there = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                    assert there, f"{path.name}: {node.module} has no {alias.name}"


def test_what_the_cost_of_updates_is_timed_by_is_there():
    import balancing_cost

    missing = [name for owner, name, _ in balancing_cost.Parts.PLACES if not hasattr(owner, name)]
    assert not missing
