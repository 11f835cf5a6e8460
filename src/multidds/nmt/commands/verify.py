"""`multidds verify FOLDER`: whether every file of a run, of prepared data, of a corpus or of an experiment is whole.

Reads every byte once, by the readers that the other commands use, and changes nothing. Does not import torch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..common.checksummed import check_digest
from ..common.errors import UserError
from ..config.config import VOCABULARY, read_run
from ..evaluation import read_export
from ..evaluation.scores import FILE as SCORES
from ..evaluation.scores import read_scores
from ..prepare.catalogues.folder import MANIFEST as CORPUS
from ..prepare.catalogues.folder import read_manifest as read_corpus
from ..prepare.prepared import MANIFEST as PREPARED
from ..prepare.prepared import read_manifest
from ..prepare.vocabulary import model_digests
from ..runs import checkpoints
from ..runs.record_files import FILE as RECORDS
from ..runs.record_files import read_records

Read = TypeVar("Read")


@dataclass
class Verified:
    """What was found in a folder, by kind: how many are whole, and what is wrong with the others."""

    folder: Path
    whole: dict[str, int] = field(default_factory=dict)
    damage: dict[str, list[str]] = field(default_factory=dict)

    def check(self, kind: str, reads: Callable[[], Read]) -> Read | None:
        """What a reader returns; None if it finds damage."""
        try:
            found = reads()
        except UserError as error:
            self.damage.setdefault(kind, []).append(str(error))
            return None
        self.whole[kind] = self.whole.get(kind, 0) + 1
        return found

    def check_files(self, kind: str, folder: Path, digests: Mapping[str, str], remedy: str) -> None:
        for name, digest in digests.items():
            self.check(kind, partial(check_digest, folder / name, digest, remedy))

    def lines(self) -> Iterator[str]:
        """A line per kind, and one for each file that is damaged."""
        for kind in dict.fromkeys([*self.whole, *self.damage]):
            bad = self.damage.get(kind, [])
            yield f"{self.folder}: {kind}: {self.whole.get(kind, 0)} whole" + (f", {len(bad)} damaged" if bad else "")
            yield from (f"  {line}" for line in bad)


def verify(folder: Path) -> list[Verified]:
    """Everything of ours in a folder and below it. A UserError if there is nothing."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder.")
    found = list(_verified(folder))
    if not found:
        raise UserError(f"{folder}: holds no run, no prepared data and no corpus.")
    return found


def _verified(folder: Path) -> Iterator[Verified]:
    names = {path.name for path in folder.iterdir()}
    if {"config.json", RECORDS} & names:
        yield _run(folder)
    elif PREPARED in names:
        yield _prepared(folder)
    elif CORPUS in names:
        yield _corpus(folder)
    else:
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _verified(inner)


def _run(run: Path) -> Verified:
    found = Verified(run)
    found.check("config", lambda: read_run(run))
    found.check("records", lambda: read_records(run))
    digests = found.check("vocabulary", lambda: model_digests(run / VOCABULARY))
    found.check_files("vocabulary", run / VOCABULARY, digests or {}, "copy it from the prepared data.")
    for path in checkpoints.listed(run):
        found.check("checkpoints", partial(checkpoints.check, path))
    best, export = run / checkpoints.BEST, run / "export"
    scores = found.check("scores", lambda: read_scores(run)) if (run / SCORES).exists() else None
    found.check_files("scores", run, scores["files"] if scores else {}, "run 'multidds evaluate' again.")
    if best.exists() or export.exists():
        found.check("best model", lambda: checkpoints.check(best))
    if export.exists():
        found.check("export", lambda: read_export(export))
    return found


def _prepared(folder: Path) -> Verified:
    found = Verified(folder)
    manifest = found.check("prepared data", lambda: read_manifest(folder))
    found.check_files("prepared data", folder, (manifest or {}).get("files", {}), "run 'multidds prepare' again.")
    return found


def _corpus(folder: Path) -> Verified:
    found = Verified(folder)
    manifest = found.check("corpus", lambda: read_corpus(folder / CORPUS))
    files = (manifest or {}).get("files", {})
    found.check_files("corpus", folder, files, "run 'multidds corpus catalogues' again.")
    return found
