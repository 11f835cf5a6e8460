"""The package as a whole: its public names, its layers, its documentation of arguments, the length of its functions."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import code_lines
import pytest

import multidds
from multidds._base import files

SOURCES = Path(multidds.__file__).parent

# The story, from the ground floor up: a package imports only from packages above it in this list.
CORE = [
    {"_base"},
    {"mixture", "gradients"},
    {"sampling", "probes"},
    {"history", "rules", "example_scorer"},
    {"balancer"},
    {"integrations", "report"},
    {"commands"},
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
PUBLIC = ["example_scorer", "history", "mixture", "probes", "report", "rules", "sampling"]
# What the application shares with the core beside the public names: where it is among processes, random states, the
# pace of updates, words and files of the command line.
SHARED = {
    "multidds._base.ranks": {"rank_and_size"},
    "multidds._base.randomness": {"point", "derive", "random_states", "seed_all", "set_random_states"},
    "multidds._base.text": {"suggestion"},
    "multidds._base": {"files"},
    "multidds._base.chain": {"Chain", "is_whole"},
    "multidds._base.errors": {"UserError", "DamagedError"},
    "multidds._base.escaping": {"file_name", "printable"},
    "multidds._base.files": set(files.__dict__),
    "multidds._base.terminal": {"err", "escaped", "new_table", "out", "say", "spinner"},
    "multidds.commands": {"cli"},
    "multidds.commands.cli": {"Application", "Commands", "add_overrides", "command", "explained", "notice"},
    "multidds.history.loggers": {"LAYOUT"},
    "multidds.balancer.pace": {"Pace", "pace_of"},
}
# Libraries of extras, and the entry of integrations/ that alone may import them.
TRAINERS = {
    "transformers": {"huggingface"},
    "accelerate": set(),
    "datasets": set(),
    "lightning": {"lightning"},
    "trl": {"trl.py"},
    "sentence_transformers": {"sentence_transformers"},
}


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("multidds", ("torch", "numpy")),
        ("multidds.mixture", ("torch",)),
        ("multidds.history", ("torch",)),
        ("multidds.report", ("torch", "pydantic", "matplotlib")),
        ("multidds.commands.cli", ("torch", "pydantic", "jinja2")),
        ("multidds.nmt.commands.cli", ("torch", "pydantic", "jinja2")),
    ],
)
def test_an_import_brings_no_more_than_it_needs(module, missing):
    code = f"import {module}, sys; dir({module}); print(*(name in sys.modules for name in {missing}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"] * len(missing)


def test_twelve_names_are_public_at_the_top():
    expected = {"Mixture", "Balancer", "Update", "Budget", "Limits", "Probes", "interleave", "MixtureSampler"}
    assert set(multidds.__all__) == expected | {"batches_of", "ExampleScorer", "plot", "relevance"}
    for name in multidds.__all__:
        assert getattr(multidds, name).__name__ == name
    assert set(multidds.__all__) <= set(dir(multidds))
    with pytest.raises(AttributeError, match="'nothing'"):
        multidds.nothing  # noqa: B018


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_of_a_package_are_there(package):
    """A file that is named like its function gives way to it."""
    module = importlib.import_module(f"multidds.{package}")
    assert module.__all__
    for name in module.__all__:
        thing = getattr(module, name)
        assert not inspect.ismodule(thing) or name == "priorities", name


def imports_of(path):
    """(dots in front, module, names) of every `from ... import` of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name, set()) for alias in node.names)


def imported_packages(path, root):
    """The packages below `root` that a file imports from by relative imports."""
    folder = path.relative_to(root).parts[:-1]
    for level, module, names in imports_of(path):
        if 0 < level <= len(folder) + 1:
            base = folder[: len(folder) - level + 1]
            yield from ((*base, *name.split("."))[0] for name in ([module] if module else names))


@pytest.mark.parametrize(("root", "layers"), [(SOURCES, CORE), (SOURCES / "nmt", NMT)], ids=["core", "nmt"])
def test_imports_point_one_way(root, layers):
    """Sibling packages of one layer may import each other in one direction."""
    packages = {path.name for path in root.iterdir() if (path / "__init__.py").exists()} - {"nmt"}
    assert packages == set().union(*layers)
    place = {name: number for number, layer in enumerate(layers) for name in layer}
    beside = set()
    for name in packages:
        for path in (root / name).rglob("*.py"):
            imported = set(imported_packages(path, root)) - {name, "__version__"}
            above = {other for other in imported if place[other] > place[name]}
            assert not above, f"{name}/{path.name} imports from {above}"
            beside |= {(name, other) for other in imported if place[other] == place[name]}
    assert not {(b, a) for a, b in beside} & beside


def test_the_application_uses_public_names_of_the_core():
    allowed = {f"multidds.{name}": set(importlib.import_module(f"multidds.{name}").__all__) for name in PUBLIC}
    allowed |= {"multidds": {*multidds.__all__, *PUBLIC, "__version__"}, **SHARED}
    for path in (SOURCES / "nmt").rglob("*.py"):
        highest = len(path.relative_to(SOURCES / "nmt").parts)  # from nmt/x/y.py two dots are nmt, three the core
        for level, module, names in imports_of(path):
            if level == 0 and module.partition(".")[0] == "multidds":
                assert names <= allowed.get(module, set()), f"{path.name}: {module}: {names}"
            assert level <= highest, path.name


def test_each_trainer_is_imported_in_one_place():
    users = {library: set() for library in TRAINERS}
    for path in SOURCES.rglob("*.py"):
        roots = {module.partition(".")[0] for level, module, _ in imports_of(path) if level == 0}
        for library in roots & users.keys():
            users[library].add(path.relative_to(SOURCES / "integrations").parts[0])
    assert users == TRAINERS


def test_a_long_function_has_a_reason():
    """At most 50 lines is a guide: a longer one may stand with a comment `# long: why` in it."""
    found = code_lines.too_long(SOURCES)
    assert not found, "\n".join(found)


def test_lines_of_code_are_those_without_comments_and_docstrings(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        '"""Says\nwhat\nit is."""\n\nx = 1  # one\n# none\ndef f():\n    """Doc."""\n    return """a\nb"""\n'
    )
    assert code_lines.code_lines(file) == 4  # x, def and the two lines of a string that is a value
    file.write_text("def f():\n" + "    x = 1\n" * 50)
    assert code_lines.too_long(tmp_path) == ["a.py: f: 51 lines"]
    file.write_text("def f():\n    # long: a table\n" + "    x = 1\n" * 50)
    assert code_lines.too_long(tmp_path) == []


def documented_arguments(name, thing):
    """(what, argument, the text that help() shows of it) of a public class or function."""
    builtin = inspect.isclass(thing) and issubclass(thing, (dict, Exception)) and "__init__" not in vars(thing)
    for argument, parameter in inspect.signature(thing).parameters.items() if not builtin else ():
        if parameter.kind is not parameter.VAR_KEYWORD:  # test_callback_arguments.py has those
            yield name, argument, thing.__doc__ or ""
    for key, value in vars(thing).items() if inspect.isclass(thing) else ():
        method = value.__func__ if isinstance(value, classmethod) else value
        if inspect.isfunction(method) and not key.startswith(("_", "on_", "load_state_dict")):
            for argument in list(inspect.signature(method).parameters)[1:]:
                yield f"{name}.{key}", argument, method.__doc__ or ""


DOCUMENTED = ["multidds", "multidds.probes", "multidds.rules"]
DOCUMENTED += [f"multidds.integrations.{name}" for name in ("huggingface", "lightning", "sentence_transformers", "trl")]


@pytest.mark.parametrize("package", DOCUMENTED)
def test_every_argument_of_a_public_name_is_documented(package):
    module = importlib.import_module(package)
    names = getattr(module, "__all__", ["balance"])
    for name, thing in [(name, getattr(module, name)) for name in names]:
        if inspect.isfunction(thing) or (inspect.isclass(thing) and not getattr(thing, "_is_protocol", False)):
            for what, argument, text in documented_arguments(name, thing):
                word = argument.rstrip("_")  # `round_` is a round
                assert re.search(rf"\b{word}\b", text), f"{what}: {argument}"
