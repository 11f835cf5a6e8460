"""What a mixture did over a training, wherever it was written down: updates in memory, run folders, trainers' logs.

Reads files; draws nothing. Needs neither torch nor numpy. The words for the numbers are those of `Update.groups`.
"""

import csv
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .update import Update

Groups: TypeAlias = dict[str, dict[str, float]]
GROUPS = ("mixture", "reward", "noise", "dev_loss", "train_loss", "passes")


@dataclass(frozen=True)
class Moment:
    """What is known after one step, of GROUPS what there is: {"mixture": {dataset: probability}, ...}."""

    step: int
    groups: Groups


def moments_of(history: "Iterable[Update] | str | PathLike[str]") -> list[Moment]:
    """The moments of a training, by step.

    history: updates; or the path of a run folder (records.jsonl), of a Trainer's checkpoint or output folder
        (trainer_state.json), or of a log that Lightning's CSVLogger wrote (metrics.csv), or of one of these files.
    """
    if not isinstance(history, str | PathLike):
        return [Moment(update.step, update.groups()) for update in history]
    path = Path(history)
    for name, read in _READERS.items():
        if (found := _newest(path, name)) is not None:
            moments = [moment for moment in read(found) if "mixture" in moment.groups]
            return sorted(moments, key=lambda moment: moment.step)
    raise ValueError(f"{path}: is no history of a mixture: there is none of {', '.join(_READERS)} in it.")


def _newest(path: Path, name: str) -> Path | None:
    """The file of that name: the path itself, in the folder, or in the checkpoint-N or version_N with the largest N."""
    if path.name == name and path.is_file():
        return path
    if (path / name).is_file():
        return path / name
    numbered = [file for pattern in ("checkpoint-*", "version_*") for file in path.glob(f"{pattern}/{name}")]
    return max(numbered, key=_number, default=None)


def _number(file: Path) -> int:
    last = file.parent.name.replace("_", "-").rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _records(path: Path) -> Iterator[Moment]:
    checksum = 0  # of all lines so far, but for what each says of it
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is being written
    for number, line in enumerate(lines, start=1):
        body, _, noted = line.removesuffix(b"\r").rpartition(b', "checksum": "')
        checksum = zlib.crc32(body, checksum)
        if noted != f'{checksum:08x}"}}'.encode():
            raise ValueError(f"{path}:{number}: is damaged (its checksum does not fit), or of another version.")
        record = json.loads(body + b"}")
        if record.get("kind") in ("start", "update"):
            yield Moment(record["step"], {group: record[group] for group in GROUPS if record.get(group)})


def _trainer_state(path: Path) -> Iterator[Moment]:
    for entry in json.loads(path.read_text(encoding="utf-8"))["log_history"]:
        yield Moment(entry["step"], _grouped(entry))


def _csv_log(path: Path) -> Iterator[Moment]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield Moment(int(row["step"]), _grouped({key: float(value) for key, value in row.items() if value}))


def _grouped(flat: Mapping[str, Any]) -> Groups:
    """What `Update.scalars` made flat: {"mixture/az": 0.1} -> {"mixture": {"az": 0.1}}."""
    groups: Groups = {}
    for key, value in flat.items():
        group, slash, name = key.partition("/")
        if slash and group in GROUPS:
            groups.setdefault(group, {})[name] = float(value)
    return groups


_READERS = {"records.jsonl": _records, "trainer_state.json": _trainer_state, "metrics.csv": _csv_log}
