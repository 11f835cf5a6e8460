"""Eight domains of real text, very unequal in size, that every machine with this project's environment has; and hashes.

The text is from files of Python's standard library, torch and numpy, and from the descriptions of installed packages.
Repeated text is left out. Test, dev and training text come from different files. Nothing is downloaded.
"""

import ast
import hashlib
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch

WINDOW = 128  # bytes that a model reads at once; sizes are numbers of windows
DEV, TEST = 64, 128  # windows of each domain
UNWANTED = ("hashes",)  # in training only: no dev set asks for them
_MANY = {
    "cpp": 2400,
    "python": 960,
    "docstrings": 400,
    "tables": 220,
    "manual": 110,
    "readme": 60,
    "cmake": 40,
    "fortran": 24,
}
_GOAL = {"cpp": 8000, "python": 6000, "hashes": 4000, "docstrings": 2500, "tables": 900, "readme": 300, "manual": 100}
ALIKE = 6  # random parts of one corpus, as datasets
GOALS = {"goal": "manual", "goal-elsewhere": "manual", "goal-renamed": "manual"}  # regimes in which one dev set counts
RENAMED = {"goal-renamed": "wanted"}  # the name of its dev set, if it is not that of its dataset
ELSEWHERE = {"goal-elsewhere"}  # of which the goal has no training text
REGIMES = {
    "goal": _GOAL,
    "goal-elsewhere": _GOAL,
    "goal-renamed": _GOAL,
    "alike": {"python": 6000},
    "under-trained": _MANY,
    "unwanted": _MANY | {"hashes": 2400},
    "data-limited": {
        "cpp": 336,
        "python": 144,
        "docstrings": 64,
        "tables": 32,
        "manual": 24,
        "readme": 16,
        "cmake": 12,
        "fortran": 8,
    },
}
# Mixtures by hand, from knowledge of the domains; the best of a regime, by dev score, is its oracle. What is left out
# gets next to nothing.
BY_HAND: dict[str, list[dict[str, float]]] = {
    "goal": [
        {"manual": 0.3, "docstrings": 0.4, "readme": 0.2, "python": 0.1},
        {"manual": 0.3, "docstrings": 0.55, "readme": 0.15},
        {"manual": 0.45, "docstrings": 0.4, "readme": 0.15},
        {"manual": 0.2, "docstrings": 0.6, "readme": 0.2},
        {"manual": 0.2, "docstrings": 0.45, "readme": 0.15, "python": 0.2},
        {"manual": 0.12, "docstrings": 0.5, "readme": 0.18, "python": 0.2},
    ],
    "goal-elsewhere": [
        {"docstrings": 0.6, "readme": 0.2, "python": 0.15, "cpp": 0.03, "tables": 0.01, "hashes": 0.01},
        {"docstrings": 0.75, "readme": 0.2, "python": 0.05},
        {"docstrings": 0.55, "readme": 0.35, "python": 0.1},
        {"docstrings": 0.85, "readme": 0.1, "python": 0.05},
        {"docstrings": 0.45, "readme": 0.2, "python": 0.35},
        {"docstrings": 0.5, "readme": 0.15, "python": 0.3, "cpp": 0.05},
    ],
    # The shares of temperatures 2, 3 and 5 without the hashes.
    "unwanted": [{name: size ** (1 / tau) for name, size in _MANY.items()} for tau in (2, 3, 5)],
}

_SHARE = 8  # no file is more than this part of a split: a test set of one file would say little
_REPEATED = 20  # characters from which on a paragraph that was there before is left out

_TORCH, _NUMPY = Path(torch.__file__).parent, Path(np.__file__).parent
_STDLIB = Path(sysconfig.get_path("stdlib"))
_NO_CODE = {"encodings", "pydoc_data", "site-packages", "dist-packages", "test", "tests", "lib2to3", "__pycache__"}

File = tuple[str, Callable[[], str]]  # a name that is the same on every machine, and how to read it


@dataclass(frozen=True)
class Corpus:
    train: dict[str, torch.Tensor]  # {domain: [windows, WINDOW + 1] bytes}: a window, and what follows its last byte
    dev: dict[str, torch.Tensor]
    test: dict[str, torch.Tensor]
    files: dict[str, dict[str, tuple[str, ...]]]  # {split: {domain: names}}
    digest: str  # of all of it: scores of corpora that differ are not comparable


def read_corpus(sizes: Mapping[str, int], dev: int = DEV, test: int = TEST) -> Corpus:
    """{domain: windows to train on} -> text. Dev and test text does not depend on the sizes."""
    splits: dict[str, dict[str, torch.Tensor]] = {"test": {}, "dev": {}, "train": {}}
    files: dict[str, dict[str, tuple[str, ...]]] = {split: {} for split in splits}
    seen: set[bytes] = set()
    left = {domain: iter(_in_random_order(domain)) for domain in sizes}
    for split, found in splits.items():  # all test text first, so that training text never displaces it
        for domain, size in sizes.items():
            if domain in UNWANTED and split != "train":
                continue
            wanted = {"test": test, "dev": dev}.get(split, size)
            text, files[split][domain] = _cut(left[domain], wanted * WINDOW + 1, seen)
            if len(text) <= wanted * WINDOW:
                raise ValueError(
                    f"domains: {domain!r} has only {len(text):,} bytes of {split} text on this machine and needs "
                    f"{wanted * WINDOW + 1:,}. Leave the domain out or make it smaller."
                )
            found[domain] = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, WINDOW + 1, WINDOW)
    digest = hashlib.sha256()
    for found in splits.values():
        for domain in sorted(found):
            digest.update(found[domain].numpy().tobytes())
    return Corpus(**splits, files=files, digest=digest.hexdigest()[:16])


def _cut(files: Iterator[File], size: int, seen: set[bytes]) -> tuple[bytes, tuple[str, ...]]:
    """The first `size` bytes of new text, and the files that they are from. A file that was begun is used up."""
    text, names = b"", []
    while len(text) < size:
        try:
            name, read = next(files)
        except StopIteration:
            break
        new = _unseen(read(), seen)[: max(size // _SHARE, WINDOW)]
        if new:
            text += new
            names.append(name)
    return text[:size], tuple(names)


def _unseen(text: str, seen: set[bytes]) -> bytes:
    """Without paragraphs that were in any file before, but for very short ones; spacing does not count."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        words = " ".join(paragraph.split()).encode()
        if len(words) >= _REPEATED:
            if words in seen:
                continue
            seen.add(words)
        if words:
            kept.append(paragraph.strip("\n"))
    return ("\n\n".join(kept) + "\n\n").encode() if kept else b""


def _in_random_order(domain: str) -> list[File]:
    """A file keeps its place among the others whatever else is installed."""

    def place(file: File) -> bytes:
        return hashlib.blake2b(f"{domain}/{file[0]}".encode(), digest_size=16).digest()

    return sorted(DOMAINS[domain](), key=place)


# --------------------------------------------------------------------------------------------- the domains


def _found(root: Path, pattern: str, read: Callable[[Path], str] | None = None) -> Iterator[File]:
    read = read or (lambda path: path.read_text(encoding="utf-8", errors="replace"))
    for path in root.glob(pattern):
        yield path.relative_to(root).as_posix(), lambda path=path: read(path)  # type: ignore[misc]


def _python() -> Iterator[File]:
    for name, read in _found(_STDLIB, "**/*.py"):
        if not _NO_CODE & set(name.split("/")):
            yield name, read


def _docstrings() -> Iterator[File]:
    return _found(_TORCH, "[a-z]*/**/*.py", _docstrings_of)


def _docstrings_of(path: Path) -> str:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_bytes()))
    found = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
    return "\n\n".join(inspect.cleandoc(text) for text in found if text)


def _manual() -> Iterator[File]:
    for name, text in topics.items():
        yield name, lambda text=text: text  # type: ignore[misc]


def _readme() -> Iterator[File]:
    """What packages say of themselves on the registry, mostly Markdown; not ours, which changes with every commit."""
    for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info/METADATA"):
        name = path.parent.name.partition("-")[0]
        if name != "multidds":
            yield name, lambda path=path: _after(path, "\n\n")  # type: ignore[misc]


def _hashes() -> Iterator[File]:
    """The lists of files, with their hashes, of installed packages."""
    for path in Path(sysconfig.get_path("purelib")).glob("*.dist-info/RECORD"):
        name = path.parent.name.partition("-")[0]
        if name != "multidds":
            yield name, lambda path=path: path.read_text(encoding="utf-8", errors="replace")  # type: ignore[misc]


def _after(path: Path, mark: str) -> str:
    return path.read_text(encoding="utf-8", errors="replace").partition(mark)[2]


def _table(path: Path) -> str:
    """A table of character codes. Half of its lines are in every other table, so each is a paragraph of its own."""
    lines = _after(path, "### Decoding Table").splitlines()
    return "\n\n".join(line.strip() for line in lines)


DOMAINS: dict[str, Callable[[], Iterator[File]]] = {
    "cpp": lambda: (file for part in ("c10", "torch/csrc") for file in _found(_TORCH / "include", f"{part}/**/*.h")),
    "python": _python,
    "docstrings": _docstrings,
    "tables": lambda: _found(_STDLIB / "encodings", "*.py", _table),
    "manual": _manual,  # the reference of the language, as pydoc shows it
    "readme": _readme,
    "cmake": lambda: _found(_TORCH / "share", "**/*.cmake"),
    "fortran": lambda: _found(_NUMPY / "f2py" / "tests" / "src", "**/*.f*"),
    "hashes": _hashes,
}
