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

# The story, from the ground floor up: a package imports only from packages above it in this list.
CORE = [
    {"_base"},
    {"mixture", "gradients"},
    {"sampling", "probes"},
    {"rewards", "history"},
    {"rules", "example_scorer"},
    {"balancer"},
    {"integrations"},
]
NMT = [
    {"common"},
    {"config"},
    {"prepare"},
    {"batches", "runs"},
    {"model", "noisy_pairs", "evaluation"},
    {"training", "experiment", "report"},
    {"commands"},
]


def test_importing_the_package_imports_neither_torch_nor_numpy():
    code = "import multidds, sys; dir(multidds); print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_every_public_name_resolves_to_the_thing_of_that_name():
    for name in multidds.__all__:
        thing = getattr(multidds, name)
        assert thing.__name__.rpartition(".")[2] == name
    assert set(multidds.__all__) <= set(dir(multidds))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        multidds.nothing  # noqa: B018


def imported_packages(path, root):
    """The packages below `root` that a file imports from by relative imports."""
    folder = path.relative_to(root).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(folder) + 1:
            base = folder[: len(folder) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((*base, *name.split("."))[0] for name in names)


@pytest.mark.parametrize(("root", "layers"), [(SOURCES, CORE), (SOURCES / "nmt", NMT)], ids=["core", "nmt"])
def test_imports_point_one_way(root, layers):
    """Sibling packages of one layer may import each other in one direction."""
    packages = {path.name for path in root.iterdir() if (path / "__init__.py").exists()} - {"nmt"}
    assert packages == set().union(*layers)
    place = {name: number for number, layer in enumerate(layers) for name in layer}
    beside = set()
    for name in packages:
        for path in (root / name).rglob("*.py"):
            imported = set(imported_packages(path, root)) - {name}
            above = {other for other in imported if place[other] > place[name]}
            assert not above, f"{name}/{path.name} imports from {above}"
            beside |= {(name, other) for other in imported if place[other] == place[name]}
    assert not {(b, a) for a, b in beside} & beside


def private_names(tree):
    """(attributes with an underscore that a file gives its own objects, those that it reads or writes on"
    " others)."""
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
            users[root].add(path.relative_to(SOURCES / "integrations").parts[0])
    assert users == expected


# What the application shares with the core beside the public names: where it is among processes, random states, and
# how histories are read, drawn and called.
SHARED = {
    "multidds._base.ranks": {"ranks"},
    "multidds._base.randomness": {"point", "derive", "random_states", "seed_all", "set_random_states"},
    "multidds.history": {
        "COLOURS",
        "FACTS",
        "OTHERS",
        "Moment",
        "bands_of",
        "evenly",
        "find_history",
        "limit_of",
        "moments_of",
        "plot",
        "style",
        "top_movers",
    },
    "multidds._base.text": {"movers"},
    "multidds.history.loggers": {"LAYOUT"},
    "multidds.example_scorer": {"DevDirection", "SmallNetwork"},
    "multidds.probes": {"Probes"},
}


def test_the_application_uses_public_names_of_the_core_only():
    paths = list((SOURCES / "nmt").rglob("*.py"))
    assert SOURCES / "nmt" / "prepare" / "catalogues" / "cleaning.py" in paths
    for path in paths:
        highest = len(path.relative_to(SOURCES / "nmt").parts)  # from nmt/x/y.py two dots are nmt, three the core
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("multidds"):
                allowed = {"multidds": {*multidds.__all__, "__version__"}, **SHARED}.get(node.module or "", set())
                assert {alias.name for alias in node.names} <= allowed, f"{path.name}: {node.module}"
            assert not (isinstance(node, ast.ImportFrom) and node.level > highest), path.name


def test_no_function_is_too_long():
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
    assert code_lines.too_long(tmp_path) == ["a.py: f: 51 lines"]


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
