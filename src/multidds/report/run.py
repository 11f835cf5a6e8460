"""A run of any trainer, by the files that it left, and the runs that can be compared with each other.

A run has a history of its mixture, evaluations of its own, or both. Without a history it is static: its evaluations are
enough to compare it. A method is called what its folder is called. Seeds are its folders seed-1, seed-2, ..., or
folders whose names differ in their last number only, from 0 or 1 on.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from .._base.errors import UserError
from .._base.text import movers, worth_text
from ..history import Moment, Relevance, evaluations_of, find_history, moments_of, moved_by
from ..mixture.planned import FLOOR, MAX_PASSES
from .charts import percent

_MOST_NAMED = 5  # datasets in a warning
_AT_FLOOR = 1.2  # of the least share: sizes are estimated from passes
_SEED = re.compile(r"(?:(.+)[-_])?seed[-_]?(\d+)")
_NUMBERED = re.compile(r"(?!checkpoint-)([^/]+)[-_](\d+)(/version_\d+)?")


@dataclass
class Run:
    """One training.

    method: the name of the run; runs of one method differ in their seeds.
    folder: where it was read.
    moments: by step, the first at its start; none if the run has no history of a mixture.
    evaluations: {dev set: [(step, loss), ...]} of whole dev sets, if they are known.
    weights: {dev set: weight}, the priority; empty: that of the updates, if it stays the same, else equal ones.
    passes: {dataset: passes over it}; empty: those of the last update.
    most_passes: over a dataset, unless a proportional mixture makes more; beyond, it is learned by heart.
    seed: of this run.
    alike: (its settings without the seed, its seed); None: they are not known.
    setting: a name for the data, if it is known. Runs of different settings are not compared.
    rank: the lowest stands first, and is the learned method that a report is about.
    """

    method: str
    folder: Path
    moments: list[Moment]
    evaluations: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    passes: dict[str, float] = field(default_factory=dict)
    most_passes: float = MAX_PASSES
    seed: int = 1
    alike: tuple[str, int] | None = None
    setting: str = ""
    rank: int = 0

    def __post_init__(self) -> None:
        given = [moment.groups["dev_weight"] for moment in self.moments if "dev_weight" in moment.groups]
        if not self.weights and given and all(one == given[0] for one in given):
            self.weights = given[0]
        self.passes = self.passes or (self.moments[-1].groups.get("passes", {}) if self.moments else {})

    @property
    def title(self) -> str:
        """The method, and whether it is a plan only: there was no update yet, and nothing is learned."""
        return f"{self.method} (planned)" if self.planned else self.method

    @property
    def label(self) -> str:
        return self.title if self.seed == 1 else f"{self.title}, seed {self.seed}"

    @property
    def empty(self) -> bool:
        """Whether it has neither a mixture nor an evaluation yet."""
        return not self.moments and not self.evaluations

    @property
    def planned(self) -> bool:
        return bool(self.moments and self.prior) and not self.updates

    @property
    def watched(self) -> dict[str, float]:
        """The mixture that would have been learned, if the run only watched; else empty."""
        return self.moments[-1].groups.get("proposed", {}) if self.moments else {}

    @property
    def learned(self) -> bool:
        """Whether its mixture was moved by updates."""
        return bool(self.updates) and not self.watched

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The datasets of the mixture."""
        return tuple(dict.fromkeys(name for moment in self.moments for name in moment.mixture))

    @property
    def updates(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.step > 0]

    @property
    def steps(self) -> int:
        return int(max([self.moments[-1].step if self.moments else 0, *(p[-1][0] for p in self.evaluations.values())]))

    @property
    def start(self) -> dict[str, float]:
        """The prior if it is known, else the first mixture."""
        return next((moment.prior for moment in self.moments if moment.prior), self.moments[0].mixture)

    @property
    def prior(self) -> dict[str, float]:
        """The prior, if it is another mixture than the first; else empty."""
        first = self.moments[0].mixture
        other = any(abs(share - first.get(name, share)) > 1e-6 for name, share in self.start.items())
        return self.start if other else {}

    @property
    def facts(self) -> dict[str, float]:
        """The facts of the last moment that has some."""
        return next((moment.facts for moment in reversed(self.moments) if moment.facts), {})

    @property
    def tables(self) -> list[tuple[int, Relevance]]:
        """[(step, relevance)] of the updates that estimated it; cosines of single updates have no errors."""
        known = [(moment.step, moment.relevance) for moment in self.moments]
        return [(step, table) for step, table in known if _has_errors(table)]

    @cached_property
    def relevance(self) -> Relevance:
        """The last of `tables`; empty if there is none."""
        return self.tables[-1][1] if self.tables else {}

    def is_goal(self, dev: str) -> bool:
        """Returns whether a dev set has a weight."""
        return self.weights.get(dev, 1.0) > 0

    def mean_relevance(self, table: Relevance) -> dict[str, tuple[float, float]]:
        """Returns {dataset: (mean over the dev sets by their weights, its standard error)}."""
        rows = [(self.weights.get(dev, 1.0), row) for dev, row in table.items() if self.is_goal(dev)]
        total = math.fsum(weight for weight, _ in rows)
        return {
            name: (
                math.fsum(weight * row[name][0] for weight, row in rows) / total,
                math.hypot(*(weight * (row[name][1] or 0.0) for weight, row in rows)) / total,
            )
            for name in self.names
            if rows and all(name in row for _, row in rows)
        }

    def sentence(self) -> str:
        if not self.updates:
            kind = "planned, no update yet: nothing is learned" if self.planned else "a static mixture"
            return f"{self.label}: {kind}, {self.steps:,} steps."
        start, last = self.start, self.watched or self.moments[-1].mixture
        moves = ", ".join(
            f"{name} {percent(start.get(name, last[name]))} → {percent(last[name])}" for name in movers(last, start, 3)
        )
        updates = f"{len(self.updates):,} update" + ("" if len(self.updates) == 1 else "s")
        if self.watched:
            return (
                f"{self.label}: watched by {updates} in {self.moments[-1].step:,} steps; it would have learned {moves}."
            )
        moved = moved_by(self.facts)
        return f"{self.label}: {updates} in {self.moments[-1].step:,} steps; {moved}{moved and ': '}{moves}."

    def warnings(self) -> list[str]:
        """Returns sentences about datasets that are learned by heart."""
        sizes = self._sizes()
        proportional = sum(sizes[name] * self.passes[name] for name in sizes) / sum(sizes.values()) if sizes else 0.0
        most = max(self.most_passes, proportional)
        measured = self.moments[-1].groups.get("worth", {}) if self.moments else {}
        often = [
            name
            for name, passes in self.passes.items()
            if passes > most + 1 and (name not in measured or self.enough(name))  # the plan goes up to that
        ]
        often.sort(key=lambda name: -self.passes[name])
        if not often:
            return []
        named = ", ".join(f"{name} ({self.passes[name]:.0f} times)" for name in often[:_MOST_NAMED])
        others = f" and {len(often) - _MOST_NAMED} more" if len(often) > _MOST_NAMED else ""
        return [
            f"{named}{others}: after {most:.0f} passes or so a model learns examples by heart. Add data like it, "
            "limit its passes, or train for fewer steps."
        ]

    def enough(self, name: str) -> str:
        """Returns that a dataset has had enough, if the worth of one more pass says so; else an empty string."""
        last = self.moments[-1].groups
        worth, error = (last.get(key, {}).get(name, math.nan) for key in ("worth", "worth_error"))
        return worth_text(worth, error, self.passes.get(name, 0.0))

    def at_floor(self, name: str) -> bool:
        """Returns whether a dataset has the least share of a plan; False if sizes are not known."""
        sizes = self._sizes()
        if sizes.keys() != set(self.names):
            return False
        least = FLOOR * min(1 / len(sizes), sizes[name] / sum(sizes.values()))
        return self.moments[-1].mixture[name] < _AT_FLOOR * least

    def _sizes(self) -> dict[str, float]:
        """Returns {dataset: its size, in a common unit}: draws, by the mixtures so far, over passes."""
        spans = [(now.mixture, after.step - now.step) for now, after in pairwise(self.moments)]
        spans = spans or [(moment.mixture, 1) for moment in self.moments]
        return {
            name: sum(mixture.get(name, 0.0) * steps for mixture, steps in spans) / passes
            for name, passes in self.passes.items()
            if passes > 0
        }


def _has_errors(table: Relevance) -> bool:
    return any(error is not None for row in table.values() for _, error in row.values())


AnyRun = TypeVar("AnyRun", bound=Run)


def read_run(folder: Path) -> Run:
    """Reads the run in a folder. A UserError if there is none, or if its files are something else."""
    where, version, seed = folder.resolve(), "", 1
    if where.name.startswith("version_"):
        where, version = where.parent, f"/{where.name}"
    method = where.name
    if numbered := _SEED.fullmatch(where.name):
        method, seed = numbered[1] or where.parent.name, int(numbered[2])
    elif numbered := _SEED.fullmatch(where.parent.name):
        seed = int(numbered[2])
    try:
        return Run(method + version, folder, moments_of(folder), evaluations_of(folder), seed=seed)
    except (ValueError, KeyError, TypeError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{folder}: is no history of a mixture."
        raise UserError(message) from None


def find_runs(folders: Iterable[Path], read: Callable[[Run], Run] = lambda run: run) -> list[Run]:
    """Returns the runs in folders and below them, at least one with content.

    folders: runs, or folders that hold some.
    read: returns a run with what an application knows of it.
    """
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder}: there is no such folder.")
        found = {run.folder.resolve(): read(run) for run in _runs_in(folder)}
        if all(run.empty for run in found.values()):
            raise UserError(
                f"{folder}: is not a run, and there is none below it (a run has a mixture.jsonl, a trainer_state.json "
                "or a metrics.csv, with a mixture or evaluations in it)."
            )
        runs |= found
    return list(runs.values())


def _runs_in(folder: Path) -> Iterator[Run]:
    versions = [path for path in folder.glob("version_*") if path.is_dir()] if folder.is_dir() else []
    if not versions and find_history(folder) is not None:
        yield read_run(folder)
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from _runs_in(inner)


def groups_of(runs: Iterable[Run]) -> list[tuple[str, list[Run]]]:
    """Returns [(name, runs on the same datasets)], learned ones first; methods that share a seed become their folders.

    A run without a history of its mixture is with those that were evaluated on the same dev sets.
    """
    groups: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: (not run.names, not run.updates, run.rank)):
        fitting = [members for members in groups if _fits(run, members[0])]
        if fitting:
            fitting[0].append(run)
        else:
            groups.append([run])
    for members in groups:
        _join_seeds(members)
        labels = [run.label for run in members]
        for run in members:
            if labels.count(run.label) > 1:
                run.method, run.seed = str(run.folder), 1
    names = [_name(members) for members in groups]
    return [
        (name if names.count(name) == 1 else f"{name} ({len(members[0].names)} from {members[0].names[0]})", members)
        for name, members in zip(names, groups, strict=True)
    ]


def _fits(run: Run, first: Run) -> bool:
    if run.names:
        same = set(run.names) == set(first.names)
    else:
        same = bool(run.evaluations.keys() & first.evaluations.keys()) or one_goal(run, first)
    return same and run.setting == first.setting


def one_goal(run: Run, other: Run) -> bool:
    """Returns whether both have one dev set each, evaluated equally often: the same data, whatever its name."""
    counts, others = ([len(points) for points in one.evaluations.values()] for one in (run, other))
    return counts == others and len(counts) == 1


def _join_seeds(runs: list[Run]) -> None:
    """Makes runs seeds of one method whose settings are alike, or whose names differ in a number from 0 or 1 on."""
    alike: dict[tuple[object, ...], list[tuple[int, str, Run]]] = {}
    for run in runs:
        if run.alike is not None:
            alike.setdefault(("settings", run.alike[0]), []).append((run.alike[1], run.method, run))
        elif numbered := _NUMBERED.fullmatch(run.method):
            method = numbered[1] + (numbered[3] or "")
            alike.setdefault((method, run.learned), []).append((int(numbered[2]), method, run))
    for (kind, _), found in alike.items():
        seeds = sorted(seed for seed, _, _ in found)
        distinct = len(set(seeds)) == len(seeds) > 1
        if distinct and (kind == "settings" or seeds in (list(range(len(seeds))), list(range(1, len(seeds) + 1)))):
            for seed, _, run in found:
                run.method, run.seed = found[0][1], seed


def _name(members: list[Run]) -> str:
    first = members[0]
    parent = first.folder.resolve().parent.name
    return first.setting or (first.label if len(members) == 1 else f"{parent}: {len(members)} runs")


def by_method(runs: Iterable[AnyRun]) -> dict[str, list[AnyRun]]:
    """Returns {method: its runs by seed}."""
    methods: dict[str, list[AnyRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        methods.setdefault(run.method, []).append(run)
    return methods
