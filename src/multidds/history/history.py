"""What a mixture did over a training, wherever it was written down: updates in memory, run folders, trainers' logs.

Reads files, and writes one: mixture.jsonl, the history of a plain loop. Draws nothing. Needs neither torch nor numpy.
The words for the numbers are those of `Update.groups` and `Update.facts`.
"""

import csv
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .._base.text import movers

if TYPE_CHECKING:
    from .update import Update

Groups: TypeAlias = dict[str, dict[str, float]]
GROUPS = ("mixture", "reward", "noise", "dev_loss", "train_loss", "dev_weight", "passes")
FACTS = ("signal", "drift", "learned", "unlearned")
_MOST = 64  # datasets whose rewards and the like are written; the mixture is whole
SMALL_TABLE = _MOST**2  # entries of an alignment that is kept and written
_NUMBERS = 500_000  # of mixtures in a file, about: 50 moments of 10,000 datasets
_UPDATES = 200_000  # the same of updates in memory


@dataclass(frozen=True)
class Moment:
    """What is known after one step.

    step: optimizer steps so far. groups: of GROUPS what there is, {"mixture": {dataset: probability}, ...}.
    facts: of FACTS what there is, {"signal": 0.9, ...}.
    prior: {dataset: probability} where the training began, if this moment knows it.
    cosines: {dev set: {dataset: cosine of their gradients}}, if the update had a table.
    """

    step: int
    groups: Groups
    facts: dict[str, float] = field(default_factory=dict)
    prior: dict[str, float] = field(default_factory=dict)
    cosines: Groups = field(default_factory=dict)

    @property
    def mixture(self) -> dict[str, float]:
        return self.groups["mixture"]


def kept_updates(datasets: int) -> int:
    """How many updates a balancer keeps in memory."""
    return max(2, min(100, _UPDATES // datasets))


def moments_of(history: "Iterable[Update] | str | PathLike[str]") -> list[Moment]:
    """The moments of a training, by step.

    history: updates; or the path of a run folder (records.jsonl), of the file or folder of a plain loop's history
        (mixture.jsonl, see `save_history`), of a Trainer's checkpoint or output folder (trainer_state.json), or of a
        log that Lightning's CSVLogger wrote (metrics.csv), or of one of these files.
    """
    if not isinstance(history, str | PathLike):
        return [_moment(update) for update in history]
    found = find_history(Path(history))
    if found is None:
        raise ValueError(f"{Path(history)}: is no history of a mixture: there is none of {', '.join(_READERS)} in it.")
    moments = [moment for moment in _READERS.get(found.name, _lines)(found) if "mixture" in moment.groups]
    return sorted(moments, key=lambda moment: moment.step)


def find_history(path: Path) -> Path | None:
    """The file that holds the history: the path itself, in the folder, or in its newest checkpoint or version."""
    for name in _READERS:
        if (found := _newest(path, name)) is not None:
            return found
    return path if path.suffix == ".jsonl" and path.is_file() else None


def save_history(
    history: Any,
    path: str | PathLike[str],
    start: Mapping[str, float] | None = None,
    passes: Mapping[str, float] | None = None,
) -> None:
    """Write what a mixture did into a file of JSON lines, for `multidds.plot`, `multidds report` and `mixture`.

    history: a balancer, or updates.
    path: a file, or a folder, in which it becomes mixture.jsonl. What a file there holds of earlier steps is kept, so
        call it after every update, on one process; after a resume it goes on.
    start: the mixture at step 0; a balancer knows it.
    passes: {dataset: how often it has been gone through by now}, as streams and samplers count it.

    Every line is a JSON object with a step, a mixture and, of up to 64 datasets, rewards and the like. The file keeps
    to about 500,000 shares: where a training has more moments, they are thinned out evenly.
    """
    target = Path(path)
    target = target / PLAIN if target.is_dir() else target
    updates: Sequence[Update] = list(getattr(history, "history", history))
    start = getattr(history, "start", start)
    if not updates:
        return
    new = [_moment(update, short=True) for update in updates]
    if passes is not None:
        new[-1].groups["passes"] = {name: passes[name] for name in new[-1].groups["reward"] if name in passes}
    before, new = _joined(list(_lines(target)) if target.is_file() else [], new)
    if not before and start is not None:
        before = [Moment(0, {"mixture": dict(start)}, prior=updates[0].prior)]
    if before and before[-1].mixture.keys() != updates[-1].mixture.keys():
        raise ValueError(f"save_history: {target} is the history of other datasets; choose another file.")
    _write(target, thinned([*before, *new], max(50, _NUMBERS // len(updates[-1].mixture))))


def change_history(folder: str | PathLike[str], step: int, mixture: Mapping[str, float]) -> None:
    """A training goes on after `step` with other datasets: mixture.jsonl in the folder, if it is there and of others,
    ends with this mixture, behind what it says up to that step.
    """
    target = Path(folder) / PLAIN
    written = list(_lines(target)) if target.is_file() else []
    before = [moment for moment in written if moment.step <= step]
    if before and before[-1].mixture.keys() != mixture.keys():
        _write(target, [*before, Moment(step, {"mixture": dict(mixture)})])


def _write(target: Path, moments: Iterable[Moment]) -> None:
    written = target.with_name(f".{target.name}.part")
    written.write_text("".join(f"{_line(moment)}\n" for moment in moments), encoding="utf-8")
    os.replace(written, target)


def _joined(written: list[Moment], new: list[Moment]) -> tuple[list[Moment], list[Moment]]:
    """What stays of a file, and what is added: memory may have forgotten updates that the file has, and a training that
    was resumed makes some again. Up to the last moment that both have alike the file is right.
    """
    mixtures = {moment.step: moment.mixture for moment in written}
    alike = max((moment.step for moment in new[:-1] if mixtures.get(moment.step) == moment.mixture), default=None)
    if alike is None:
        return [moment for moment in written if moment.step < new[0].step], new
    return [m for m in written if m.step <= alike], [m for m in new if m.step > alike]


def thinned(moments: Sequence[Moment], most: int) -> list[Moment]:
    """At most so many: those go whose neighbours are closest to each other, never the first or the last."""
    kept = list(moments)
    while len(kept) > max(2, most):
        gaps = [after.step - before.step for before, after in zip(kept, kept[2:], strict=False)]
        del kept[1 + gaps.index(min(gaps))]
    return kept


def _moment(update: "Update", short: bool = False) -> Moment:
    """short: rewards and the like only of the datasets that have moved most, and dev sets up to the same number."""
    groups: Groups = {group: values for group, values in update.groups().items() if values}
    if short and len(update.mixture) > _MOST:
        chosen = movers(update.mixture, update.prior or update.before or update.mixture, _MOST)
        for group in ("reward", "noise", "train_loss"):
            values = groups.get(group, {})
            groups[group] = {name: values[name] for name in chosen if name in values}
    if short:
        groups |= {group: dict(list(groups.get(group, {}).items())[:_MOST]) for group in ("dev_loss", "dev_weight")}
        groups = {group: values for group, values in groups.items() if values}
    cosines: Groups = {}
    if (table := update.alignment) is not None and len(table.dev_names) * len(table.train_names) <= SMALL_TABLE:
        rows = table.cosines().tolist()
        cosines = {
            dev: dict(zip(table.train_names, (round(c, 5) for c in row), strict=True))
            for dev, row in zip(table.dev_names, rows, strict=True)
        }
    return Moment(update.step, groups, update.facts(), update.prior, cosines)


def _line(moment: Moment) -> str:
    content: dict[str, Any] = {"step": moment.step, **moment.groups, **moment.facts}
    if moment.step == 0 and moment.prior:
        content["prior"] = moment.prior
    if moment.cosines:
        content["cosines"] = moment.cosines
    return json.dumps(content, ensure_ascii=False)


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
        if record.get("kind") in ("start", "update", "data"):
            yield _read(record)


def _lines(path: Path) -> Iterator[Moment]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            content = json.loads(line)
            yield _read(content)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{path}:{number}: is no line of a history: {line[:60]!r}.") from None


def _read(content: Mapping[str, Any]) -> Moment:
    groups: Groups = {group: dict(content[group]) for group in GROUPS if content.get(group)}
    facts = {fact: float(content[fact]) for fact in FACTS if content.get(fact) is not None}
    table = content.get("alignment")
    cosines = dict(content.get("cosines", {}))
    if table and not cosines:  # of a run: rows in the order of its dev sets, columns in that of its datasets
        names = list(content["mixture"])
        cosines = {dev: dict(zip(names, row, strict=True)) for dev, row in zip(names, table["cosines"], strict=False)}
    return Moment(int(content["step"]), groups, facts, dict(content.get("prior", {})), cosines)


def _trainer_state(path: Path) -> Iterator[Moment]:
    for entry in json.loads(path.read_text(encoding="utf-8"))["log_history"]:
        yield _grouped(int(entry["step"]), entry)


def _csv_log(path: Path) -> Iterator[Moment]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _grouped(int(row["step"]), {key: value for key, value in row.items() if value})


def _grouped(step: int, flat: Mapping[str, Any]) -> Moment:
    """What `Update.scalars` made flat: {"mixture/az": 0.1} -> {"mixture": {"az": 0.1}}."""
    groups: Groups = {}
    facts: dict[str, float] = {}
    for key, value in flat.items():
        group, slash, name = key.partition("/")
        if slash and group in GROUPS:
            groups.setdefault(group, {})[name] = float(value)
        elif group == "balance" and name in FACTS:
            facts[name] = float(value)
    prior = {key.removeprefix("prior/"): float(value) for key, value in flat.items() if key.startswith("prior/")}
    return Moment(step, groups, facts, prior)


PLAIN = "mixture.jsonl"
_READERS = {"records.jsonl": _records, PLAIN: _lines, "trainer_state.json": _trainer_state, "metrics.csv": _csv_log}
