"""`multidds verify FOLDER`: a check of every file of runs, prepared data and experiments.

Reads every byte once, by the readers that the other commands use, and changes nothing. Does not import torch.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from multidds._base.errors import UserError
from multidds.history import PLAIN

from ..common.checksummed import check_digest
from ..config.config import VOCABULARY, read_run
from ..evaluation import read_export, read_scores
from ..evaluation.scores import FILE as SCORES
from ..prepare.prepared import MANIFEST as PREPARED
from ..prepare.prepared import read_manifest
from ..prepare.vocabulary import model_digests
from ..runs import checkpoints
from ..runs.record_files import FILE as RECORDS
from ..runs.record_files import read_lines, read_records

Read = TypeVar("Read")


@dataclass
class Verified:
    """The files of a folder by kind: the number of whole ones, and a message for each of the others."""

    folder: Path
    whole: dict[str, int] = field(default_factory=dict)
    damage: dict[str, list[str]] = field(default_factory=dict)

    def check(self, kind: str, read: Callable[[], Read]) -> Read | None:
        """Calls a reader, counts, and returns its result; None if it found damage."""
        try:
            result = read()
        except (UserError, OSError, ValueError, LookupError, TypeError) as error:  # it goes on with the next file
            known = isinstance(error, UserError | OSError)
            message = str(error) if known else f"{self.folder}: {kind}: cannot be read ({error!r})."
            self.damage.setdefault(kind, []).append(message)
            return None
        self.whole[kind] = self.whole.get(kind, 0) + 1
        return result

    def check_files(self, kind: str, folder: Path, digests: Mapping[str, str], remedy: str) -> None:
        for name, digest in digests.items():
            self.check(kind, partial(check_digest, folder / name, digest, remedy))

    def lines(self) -> Iterator[str]:
        """Yields a line per kind, and one for each damaged file."""
        for kind in dict.fromkeys([*self.whole, *self.damage]):
            messages = self.damage.get(kind, [])
            damaged = f", {len(messages)} damaged" if messages else ""
            yield f"{self.folder}: {kind}: {self.whole.get(kind, 0)} whole{damaged}"
            yield from (f"  {message}" for message in messages)


def verify(folder: Path) -> list[Verified]:
    """Checks everything of ours in a folder and below it. A UserError if there is nothing."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder.")
    checked = list(_verified(folder))
    if not checked:
        raise UserError(f"{folder}: holds no run and no prepared data.")
    return checked


def _verified(folder: Path) -> Iterator[Verified]:
    here = Verified(folder)
    names = {path.name for path in here.check("folder", lambda: sorted(folder.iterdir())) or []}
    if here.damage:
        yield here
    if {"config.json", RECORDS} & names:
        yield _run(folder)
    elif PREPARED in names:
        yield _prepared(folder)
    else:
        for inner in (folder / name for name in sorted(names)):
            if inner.is_symlink():
                if _loops(inner):
                    yield Verified(inner, damage={"link": [f"{inner}: is a link that leads back to itself."]})
            elif inner.is_dir():
                yield from _verified(inner)


def _loops(link: Path) -> bool:
    """Whether a link leads to itself or to a folder above it."""
    try:
        return link.parent.resolve().is_relative_to(link.resolve(strict=True))
    except (OSError, RuntimeError) as error:
        return not isinstance(error, FileNotFoundError)


def _run(run: Path) -> Verified:
    checked = Verified(run)
    checked.check("config", lambda: read_run(run))
    checked.check("records", lambda: read_records(run))
    checked.check("mixture", lambda: read_lines(run, PLAIN))
    digests = checked.check("vocabulary", lambda: model_digests(run / VOCABULARY))
    checked.check_files("vocabulary", run / VOCABULARY, digests or {}, "copy it from the prepared data.")
    for path in checkpoints.listed(run):
        checked.check("checkpoints", partial(checkpoints.check, path))
    scores = checked.check("scores", lambda: read_scores(run)) if os.path.lexists(run / SCORES) else None
    checked.check_files("scores", run, scores["files"] if scores else {}, "run 'multidds evaluate' again.")
    best, export = run / checkpoints.BEST, run / "export"
    if os.path.lexists(best) or os.path.lexists(export):
        checked.check("best model", lambda: checkpoints.check(best))
    if os.path.lexists(export):
        checked.check("export", lambda: read_export(export))
    return checked


def _prepared(folder: Path) -> Verified:
    checked = Verified(folder)
    manifest = checked.check("prepared data", lambda: read_manifest(folder))
    checked.check_files("prepared data", folder, (manifest or {}).get("files", {}), "run 'multidds prepare' again.")
    return checked
