"""Damage to the files of finished folders, and the commands that read them: part of faults.py."""

import contextlib
import gzip
import json
import random
import re
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from world import Command, Ended, World, call


def flip(path: Path, rng: random.Random, place: int | None = None) -> str:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content)) if place is None else place
    content[place] ^= 1 << rng.randrange(8)
    return rewrite(path, bytes(content), f"bit at byte {place}")


def cut(path: Path, rng: random.Random) -> str:
    content = path.read_bytes()
    left = rng.randrange(len(content))
    return rewrite(path, content[:left], f"cut to {left} of {len(content)} bytes")


def blank(path: Path, rng: random.Random) -> str:
    """A block of zeros, as a disk leaves it."""
    content = path.read_bytes()
    place = rng.randrange(len(content)) // 512 * 512
    changed = content[:place] + bytes(len(content[place : place + 512])) + content[place + 512 :]
    return flip(path, rng) if changed == content else rewrite(path, changed, f"zeros from byte {place}")


def remove(path: Path, rng: random.Random) -> str:
    path.unlink()
    return "removed"


def rewrite(path: Path, content: bytes, what: str) -> str:
    path.unlink()  # it may be a link to the whole one
    path.write_bytes(content)
    return what


DAMAGE: list[Callable[..., str]] = [flip, cut, blank, flip, flip, remove]


@dataclass
class Damaged:
    """A copy of a finished folder with one damaged file. also: another that was damaged with it."""

    folder: Path
    path: Path
    what: str
    removed: bool
    also: str = ""

    @property
    def kind(self) -> str:
        """Of the file: its place, without the names of languages and numbers."""
        return f"{self.folder.name}/{kind_of(self.folder, self.path)}"

    def is_named_in(self, text: str) -> bool:
        named = any(name in text for name in (self.path.name, self.also) if name)
        return named or (self.removed and str(self.folder) in text)


def kind_of(folder: Path, path: Path) -> str:
    return re.sub(r"mirror|shift|base|\d+", "*", str(path.relative_to(folder)))


def copy_damaged(world: World, which: str, rng: random.Random) -> Damaged:
    """which: "run" or "prepared". Every kind of file is as likely as every other."""
    shutil.rmtree(world.root / "damaged", ignore_errors=True)
    folder = world.root / "damaged" / which
    unread = shutil.ignore_patterns("tensorboard")
    shutil.copytree(world.done / which, folder, ignore=unread)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kind = rng.choice(sorted({kind_of(folder, path) for path in paths}))
    path = rng.choice([path for path in paths if kind_of(folder, path) == kind])
    choice = rng.choice(DAMAGE[:5] if path.parent.name == "checkpoints" else DAMAGE)
    return Damaged(folder, path, f"{path.relative_to(folder)}: {choice(path, rng)}", choice is remove)


# Files and folders of a run that another seed has, too, with other contents.
FOREIGN = (
    "best.safetensors",
    "checkpoints",
    "config.json",
    "records.jsonl",
    "mixture.jsonl",
    "export",
    "scores.json",
    "hypotheses",
)


def copy_swapped(world: World, rng: random.Random) -> Damaged:
    """A copy of the run, in which one or two of its files are those of a run with another seed."""
    shutil.rmtree(world.root / "damaged", ignore_errors=True)
    folder = shutil.copytree(world.done / "run", world.root / "damaged" / "run")
    names = rng.sample(FOREIGN, rng.choice((1, 1, 2)))
    for name in names:
        ours, theirs = folder / name, world.other / "run" / name
        if theirs.is_dir():
            shutil.rmtree(ours)
            shutil.copytree(theirs, ours)
        else:
            shutil.copy(theirs, ours)
    names.sort(key=lambda name: name != "config.json")  # which says whose folder it is, so that the rest is foreign
    first = {"checkpoints": "step-00000016.safetensors", "export": "multidds.json", "hypotheses": "mirror-base.txt"}
    path = folder / names[0]
    path = path / first[names[0]] if names[0] in first else path
    return Damaged(folder, path, f"foreign {names}", False, *names[1:])


def text_in(form: str, source: Path, target: Path) -> list[str]:
    """Writes the text of a world in another form; returns the overrides of the recipe for it."""
    for path in sorted(source.rglob("train.*")):
        if path.suffix == ".base":
            continue
        for split in ("train", "dev", "test"):
            sides = [(path.parent / f"{split}{suffix}").read_text() for suffix in (path.suffix, ".base")]
            names = [path.suffix[1:], "base"]
            folder = target / path.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            rows = list(zip(*(side.removesuffix("\n").split("\n") for side in sides), strict=True))
            if form == "tsv":
                (folder / f"{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in [names, *rows]))
            elif form == "jsonl":
                lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
                (folder / f"{split}.jsonl").write_text("".join(lines))
            else:
                for name, side in zip(names, sides, strict=True):
                    content = side.encode()
                    (folder / f"{split}.{name}").write_bytes(gzip.compress(content) if form == "gzip" else content)
    ending = form if form in ("tsv", "jsonl") else "{lang}"
    places = [f"data.{split}={target}/{{many}}-base/{split}.{ending}" for split in ("train", "dev", "test")]
    return [f"data.format={form}", *places] if form in ("tsv", "jsonl") else places


def opened(damaged: Damaged) -> tuple[list[str], str]:
    """(what those say that open the file, what verify says; tracebacks)."""
    from multidds._base.errors import UserError
    from multidds.nmt.commands.verify import verify

    said, trace = [], ""
    checks = (lambda: openers(damaged.folder, damaged.path), lambda: [*all_lines(verify(damaged.folder))])
    for check in checks:
        try:
            said.append(str(check()))
        except UserError as error:
            said.append(str(error))
        except Exception:
            said.append("")
            trace += traceback.format_exc()
    return said, trace


def all_lines(found: list[Any]) -> list[str]:
    return [line for one in found for line in one.lines()]


def openers(folder: Path, path: Path) -> Any:
    """Open a file as the commands do that read it. What was passed over, if that is how damage is met."""
    from multidds.nmt.config.config import load_config, read_run
    from multidds.nmt.evaluation import read_export, scores
    from multidds.nmt.prepare import Prepared, vocabulary
    from multidds.nmt.runs import checkpoints
    from multidds.nmt.runs.record_files import read_lines, read_records

    if folder.name == "prepared":
        prepared = Prepared(load_config(folder.parent.parent / "recipe.toml", [f"data.folder={folder}"]))
        for pair in prepared.sizes:
            for side in ("source", "target"):
                prepared.arrays(pair, "train", side), prepared.arrays(pair, "dev", side)
                prepared.test_lines(pair, side)
        return [vocabulary.load_model(folder, name) for name in ("mirror", "shift", "base")] and ""
    if path.parent.name == "checkpoints":
        if path != checkpoints.listed(folder)[-1]:
            return checkpoints.read(path, "numpy") and ""
        found = checkpoints.newest(folder)
        return "" if found is None else found.passed_over
    config, _ = read_run(folder)
    if path.parent.name == "export":
        return read_export(folder / "export") and ""
    if path.name == "best.safetensors":
        return checkpoints.read(path, "numpy") and ""
    read_records(folder), read_lines(folder, "mixture.jsonl")
    vocabulary.load_vocabulary(folder / "vocabulary")
    for name in vocabulary.models_of(config):
        vocabulary.load_model(folder / "vocabulary", name)
    for part in ("hypotheses", "references"):
        for pair in config.data.names:
            scores.scored_lines(folder, part, pair)
    return ""


# Folder -> the commands that read it or make it again.
READERS = {"prepared": ("prepare", "train"), "run": ("evaluate", "report", "train")}


def used(world: World, damaged: Damaged, rng: random.Random) -> tuple[str, Ended, Any, Any]:
    """A command that reads the folder: (its name, how it ended, its result, the result without damage)."""
    name = rng.choice([name for name in READERS[damaged.folder.name] if name in world.commands])
    command, place = world.commands[name], damaged.folder.parent
    arguments = command.arguments(place)
    if name == "train" and damaged.folder.name == "prepared":
        arguments = [*arguments, "--set", f"data.folder={damaged.folder}"]
    if name == "report":
        arguments = ["report", str(damaged.folder), "-o", f"{place}/report"]
    changed = Command(name, lambda place: arguments, command.begin, command.result)
    ended = call(changed.body(place), world.root)
    result: Any = None
    if ended.code == 0:
        with contextlib.suppress(OSError, ValueError, KeyError):
            result = changed.result(place)
    return name, ended, result, command.expected
