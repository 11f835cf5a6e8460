"""Histories of mixtures: updates in memory, and moments in the files of any trainer.

Reads mixture.jsonl and the logs of trainers; writes mixture.jsonl. Needs neither torch nor numpy.
"""

import csv
import json
import math
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from .._base.chain import Chain
from .update import MOST_NAMES, Relevance, Update

T = TypeVar("T")
Groups: TypeAlias = dict[str, dict[str, float]]
GROUPS = (
    "mixture",
    "proposed",
    "reward",
    "noise",
    "worth",
    "worth_error",
    "held",
    "dev_loss",
    "train_loss",
    "dev_weight",
    "passes",
    "eval_loss",
)
FACTS = ("signal", "drift", "learned", "unlearned")
_EVALUATION = re.compile(
    r"(?:eval|val|valid|validation)[_/](?:(.+?)[_/])?loss(?:[_/](?!step$|epoch$)(.+?))?(?:_epoch)?"
)
_MOST_UPDATES = 100  # in memory
_SHARES_IN_MEMORY = 200_000  # updates * datasets: of more than 2,000 datasets fewer updates stay
_SHARES_IN_FILE = 500_000  # moments * datasets, but at least 50 moments
_MOST_STEPS = 2**53
_ROUNDING = 1e-6  # by which a share may be above 1
_TABLE_ENTRIES = MOST_NAMES**2  # dev sets * datasets of a table that is kept and written


@dataclass(frozen=True)
class Moment:
    """The numbers of a mixture after one step.

    step: optimizer steps so far.
    groups: of GROUPS those that are known, {"mixture": {dataset: probability}, ...}.
    facts: of FACTS those that are known, {"signal": 0.9, ...}.
    prior: {dataset: probability} that the training was given, if this moment has it.
    relevance: {dev set: {dataset: (relevance or cosine of their gradients, its error)}}, if the update had a table.
    """

    step: int
    groups: Groups
    facts: dict[str, float] = field(default_factory=dict)
    prior: dict[str, float] = field(default_factory=dict)
    relevance: Relevance = field(default_factory=dict)

    @property
    def mixture(self) -> dict[str, float]:
        return self.groups["mixture"]


def evenly(points: Sequence[T], most: int, at: Callable[[T], float] | None = None) -> list[T]:
    """Returns at most `most` points at even distances, always the first and the last.

    points: in the order of their positions.
    most: at least 2. Of more points about half as many stay, or more.
    at: the position of a point; None: its place among the points.

    The first point of every cell stays. A cell is the distance of the first two points, doubled as often as necessary,
    so that a series that grows and is thinned again and again stays even.

    >>> evenly([0, 1, 2, 3, 4, 5, 6], 4)
    [0, 2, 4, 6]
    """
    if len(points) <= most:
        return list(points)
    positions = list(range(len(points))) if at is None else [at(point) for point in points]
    first = positions[0]
    unit = (positions[1] - first) or 1
    least_cell = (positions[-1] - first) / (most - 1)
    doublings = math.ceil(math.log2(least_cell / unit)) if least_cell else 0
    cells = [(position - first) // (unit * 2.0**doublings) for position in positions]
    begins = [True, *(cell != previous for previous, cell in pairwise(cells))]
    kept = [point for point, is_first in zip(points, begins, strict=True) if is_first]
    return kept if begins[-1] else [*kept, points[-1]]


def append_update(history: list[Update], update: Update) -> None:
    """Appends an update to a history in memory and thins it: at most 100 updates stay, and no large tables."""
    if len(update.weights) * len(update.mixture) > _TABLE_ENTRIES:
        update = replace(update, alignment=None, relevance=None)
    most = max(2, min(_MOST_UPDATES, _SHARES_IN_MEMORY // len(update.mixture)))
    history[:] = evenly([*history, update], most, at=lambda update: update.step)


def moments_of(history: Iterable[Update] | str | PathLike[str]) -> list[Moment]:
    """Returns the moments of a training, by step.

    history: updates; or the path of a run folder or of what `save_history` wrote (mixture.jsonl), of a Trainer's
        checkpoint or output folder (trainer_state.json), of a log of Lightning's CSVLogger (metrics.csv), or of one of
        these files.
    """
    if not isinstance(history, str | PathLike):
        return [_moment(update, update.groups()) for update in history]
    path = find_history(Path(history))
    if path is None:
        raise ValueError(f"{Path(history)}: is no history of a mixture: there is none of {', '.join(_READERS)} in it.")
    return _moments(path)


def _moments(path: Path) -> list[Moment]:
    moments = [moment for moment in _READERS.get(path.name, _lines)(path) if "mixture" in moment.groups]
    return sorted(moments, key=lambda moment: moment.step)


def evaluations_of(folder: str | PathLike[str]) -> dict[str, list[tuple[float, float]]]:
    """Returns {dev set: [(step, loss), ...]} of a training's own evaluations, whether its mixture was learned or not.

    folder: a run folder, the output folder of a Trainer, or one with a log as Lightning's CSVLogger writes it
        (metrics.csv). The keys of logs are `eval_loss`, `eval_az_loss`, `val_loss/az` and the like; a dev set without a
        name is called "dev".
    """
    found: list[tuple[int, str, float]] = []  # (step, dev set, loss)
    for path in filter(None, (_newest(Path(folder), name) for name in _LOGS)):
        for step, entry in _entries(path):
            named = {key: match for key in entry if (match := _EVALUATION.fullmatch(key))}
            with _named(f"{path}: step {step}: is no entry of a log", entry):
                found += [(step, match[1] or match[2] or "dev", _finite(entry[key])) for key, match in named.items()]
    own = _newest(Path(folder), PLAIN)
    for moment in _lines(own) if own else ():
        found += [(moment.step, name, loss) for name, loss in moment.groups.get("eval_loss", {}).items()]
    losses: dict[str, list[tuple[float, float]]] = {}
    for step, name, loss in sorted(found, key=lambda one: one[0]):
        if math.isfinite(loss):
            losses.setdefault(name, []).append((float(step), loss))
    return losses


def find_history(path: Path) -> Path | None:
    """Returns the file of a history: the path itself, in the folder, or in its newest checkpoint or version."""
    for name in _READERS:
        if (newest := _newest(path, name)) is not None:
            return newest
    return path if path.suffix == ".jsonl" and path.is_file() else None


def shares_of(moments: Sequence[Moment], name: str) -> list[float]:
    """Returns the share of a dataset at every moment.

    If a log left it out, that is the share before, or else the next.
    """
    known = [moment.mixture.get(name) for moment in moments]
    last = next((share for share in known if share is not None), 0.0)
    shares = []
    for share in known:
        last = last if share is None else share
        shares.append(last)
    return shares


def top_movers(moments: Sequence[Moment], most: int = 8) -> list[str]:
    """Returns the `most` datasets whose shares moved furthest, the largest at the end first."""
    names = dict.fromkeys(name for moment in moments for name in moment.mixture)
    shares = {name: shares_of(moments, name) for name in names}
    moved = {name: max(values) - min(values) for name, values in shares.items()}
    chosen = sorted(moved, key=lambda name: (-moved[name], name))[:most]
    return sorted(chosen, key=lambda name: (-shares[name][-1], name))


def save_history(
    history: Any,
    path: str | PathLike[str],
    start: Mapping[str, float] | None = None,
    passes: Mapping[str, float] | None = None,
) -> None:
    """Writes a history into a file of JSON lines, for `multidds.plot`, `multidds report` and `mixture`.

    history: a balancer, or updates.
    path: a file if its name ends in .jsonl, otherwise a folder, in which it becomes mixture.jsonl. Folders that do not
        exist are made at the first call, which may come before any update. Earlier steps in the file are kept, so call
        it after every update, on one process; after a resume it continues.
    start: the mixture at step 0; default: that of the balancer.
    passes: {dataset: passes over it so far}, as streams and samplers count them; default: not written.

    Every line is a JSON object with a step, a mixture and, of up to 64 datasets, rewards and the like. The file keeps
    to about 500,000 shares: if a training has more moments, they are thinned out evenly.
    """
    target = Path(path)
    if target.suffix != ".jsonl" or target.is_dir():
        target /= PLAIN
    if target.parent.is_file():
        raise ValueError(f"save_history: {target.parent} is a file; give a folder, or a name that ends in .jsonl.")
    target.parent.mkdir(parents=True, exist_ok=True)
    updates: Sequence[Update] = list(getattr(history, "history", history))
    start = getattr(history, "start", start)
    if not updates:
        return
    new = [*map(moment_of, updates[:-1]), moment_of(updates[-1], passes)]
    before, new = _joined(_moments(target) if target.is_file() else [], new)
    if not before and start is not None:
        before = [Moment(0, {"mixture": dict(start)}, prior=updates[0].prior)]
    if before and before[-1].mixture.keys() != updates[-1].mixture.keys():
        raise ValueError(f"save_history: {target} is the history of other datasets; choose another file.")
    most = max(50, _SHARES_IN_FILE // len(updates[-1].mixture))
    written = target.with_name(f".{target.name}.part")
    lines = [line_of(moment) for moment in evenly([*before, *new], most, at=lambda moment: moment.step)]
    written.write_text("\n".join([*lines, ""]), encoding="utf-8")
    os.replace(written, target)


def moment_of(update: Update, passes: Mapping[str, float] | None = None) -> Moment:
    """Returns an update as it is written: all shares, and up to 64 numbers of each other group."""
    more = {} if passes is None else {"passes": passes}
    return _moment(update, {**update.short_groups(**more), "mixture": update.mixture})


def _joined(written: list[Moment], new: list[Moment]) -> tuple[list[Moment], list[Moment]]:
    """Returns the moments of a file that stay, and the moments that are added.

    The memory may have dropped updates that the file has, and a resumed training repeats some: the file is right up to
    the last moment that both have alike.
    """
    mixtures = {moment.step: moment.mixture for moment in written}
    alike = max((moment.step for moment in new[:-1] if mixtures.get(moment.step) == moment.mixture), default=None)
    if alike is None:
        return [moment for moment in written if moment.step < new[0].step], new
    return [m for m in written if m.step <= alike], [m for m in new if m.step > alike]


def _moment(update: Update, groups: Groups) -> Moment:
    known = {group: values for group, values in groups.items() if values}
    return Moment(update.step, known, update.facts(), update.prior, update.relevance_table())


def line_of(moment: Moment) -> str:
    """Returns a moment as a line of mixture.jsonl, without a newline."""
    content: dict[str, Any] = {"step": moment.step, **moment.groups, **moment.facts}
    if moment.step == 0 and moment.prior:
        content["prior"] = moment.prior
    if moment.relevance:
        content["relevance"] = moment.relevance
    return json.dumps(content)  # ASCII: no line end within a name, and names that are no valid text


def _newest(path: Path, name: str) -> Path | None:
    """Returns the file of that name: the path, in the folder, or in its checkpoint-N or version_N of the largest N."""
    if path.name == name and path.is_file():
        return path
    if (path / name).is_file():
        return path / name
    numbered = [file for pattern in ("checkpoint-*", "version_*") for file in path.glob(f"{pattern}/{name}")]
    return max(numbered, key=_number, default=None)


def _number(file: Path) -> int:
    last = file.parent.name.replace("_", "-").rpartition("-")[2]
    return int(last) if last.isdecimal() else -1


def _lines(path: Path) -> Iterator[Moment]:
    """Reads mixture.jsonl. Lines that end in a checksum are checked."""
    chain = Chain(required=False)
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        if not line:
            continue
        try:
            content = chain.read(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}.") from None
        with _named(f"{path}:{number}: is no line of a history", line):
            moment = _read(content)
        yield moment


def _read(content: Mapping[str, Any]) -> Moment:
    groups = {group: content[group] for group in (*GROUPS, "prior") if content.get(group)}
    facts = {fact: content[fact] for fact in FACTS if content.get(fact) is not None}
    relevance: Relevance = {
        dev: {name: (_finite(value), None if error is None else _finite(error)) for name, (value, error) in row.items()}
        for dev, row in (content.get("relevance") or {}).items()
    }
    return _checked(content["step"], groups, facts, relevance)


def _checked(step: Any, groups: Mapping[str, Any], facts: Mapping[str, Any], relevance: Relevance) -> Moment:
    """Returns a moment of values that were read; raises an error if one of them is impossible."""
    numbers = {group: {name: _finite(value) for name, value in named.items()} for group, named in groups.items()}
    for share in (*numbers.get("mixture", {}).values(), *numbers.get("prior", {}).values()):
        if not 0 <= share <= 1 + _ROUNDING:
            raise ValueError(f"a share is {share}")
    prior = numbers.pop("prior", {})
    return Moment(_whole(step), numbers, {fact: _finite(value) for fact, value in facts.items()}, prior, relevance)


def _finite(value: Any) -> float:
    """Returns a number of a log, which may be text; NaN for those that are not finite."""
    if isinstance(value, bool):
        raise TypeError("a number is a truth value")
    number = float(value)
    return number if math.isfinite(number) else math.nan


def _whole(step: Any) -> int:
    """Returns a number of steps; 1.0 is one, too."""
    number = _finite(step)
    if not (0 <= number < _MOST_STEPS and number == int(number)):
        raise ValueError(f"the step is {step}")
    return int(number)


def _log(path: Path) -> Iterator[Moment]:
    for step, entry in _entries(path):
        with _named(f"{path}: step {step}: is no entry of a log", entry):
            moment = _grouped(step, entry)
        yield moment


@contextmanager
def _named(fault: str, content: Any) -> Iterator[None]:
    """Turns errors of content that is no history into a ValueError that shows it."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, csv.Error):
        shown = f": {reprlib.repr(content)}" if content else ""
        raise ValueError(f"{fault}{shown}.") from None


def _entries(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Reads (step, {key: value}) from the log of a trainer: trainer_state.json or metrics.csv."""
    with _named(f"{path}: is no history of a mixture", ""), path.open(encoding="utf-8", newline="") as file:
        rows: list[Any] = list(csv.DictReader(file)) if path.suffix == ".csv" else json.load(file)["log_history"]
    for number, row in enumerate(rows, start=1):
        with _named(f"{path}: row {number}: is no entry of a log", row):
            if None in row:
                raise ValueError("it has more cells than the header")
            entry = {key: value for key, value in row.items() if value not in (None, "")}
            step = _whole(entry["step"])
        yield step, entry


def _grouped(step: int, flat: Mapping[str, Any]) -> Moment:
    """Returns the moment of a flat log, as `Update.scalars` makes one: {"mixture/az": 0.1, ...}."""
    groups: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {}
    for key, value in flat.items():
        group, slash, name = key.partition("/")
        if slash and group in (*GROUPS, "prior"):
            groups.setdefault(group, {})[name] = value
        elif group == "balance" and name in FACTS:
            facts[name] = value
    return _checked(step, groups, facts, {})


PLAIN = "mixture.jsonl"
_LOGS = ("trainer_state.json", "metrics.csv")
_READERS = {PLAIN: _lines, **dict.fromkeys(_LOGS, _log)}
