"""A run of any trainer, by the files that it left, and the runs that can be compared with each other.

A run has a history of its mixture, evaluations of its own, or both. Without a history it is static: its evaluations are
enough to compare it. A method is called what its folder is called, and a seed is the folder seed-N of its method.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from .._base.errors import UserError
from .._base.text import movers
from ..history import Moment, evaluations_of, find_history, moments_of, moved_by
from ..mixture.planned import MAX_PASSES
from .charts import percent

_MOST_NAMED = 5  # datasets in a warning


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
    setting: str = ""
    rank: int = 0

    def __post_init__(self) -> None:
        given = [moment.groups["dev_weight"] for moment in self.moments if "dev_weight" in moment.groups]
        if not self.weights and given and all(one == given[0] for one in given):
            self.weights = given[0]
        self.passes = self.passes or (self.moments[-1].groups.get("passes", {}) if self.moments else {})

    @property
    def label(self) -> str:
        return self.method if self.seed == 1 else f"{self.method}, seed {self.seed}"

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

    def sentence(self) -> str:
        if not self.updates:
            return f"{self.label}: a static mixture, {self.steps:,} steps."
        start, last = self.start, self.moments[-1].mixture
        moves = ", ".join(
            f"{name} {percent(start.get(name, last[name]))} → {percent(last[name])}" for name in movers(last, start, 3)
        )
        updates = f"{len(self.updates):,} update" + ("" if len(self.updates) == 1 else "s")
        moved = moved_by(self.facts)
        return f"{self.label}: {updates} in {self.moments[-1].step:,} steps; {moved}{moved and ': '}{moves}."

    def warnings(self) -> list[str]:
        """Returns sentences about datasets that are drawn often and help no dev set, or are learned by heart."""
        sentences = [
            f"{name} gets {percent(share)} of the draws and helps no dev set that counts: its best measured "
            f"relevance is {best:.2f}. Look at its examples (another language, copies, noise?); leave it out, or limit "
            "its share."
            for name, share, best in islice(self._useless(), _MOST_NAMED)
        ]
        most = max(self.most_passes, self._proportional_passes())
        often = [name for name, passes in self.passes.items() if passes > most + 1]  # the plan goes up to that
        often.sort(key=lambda name: -self.passes[name])
        if often:
            named = ", ".join(f"{name} ({self.passes[name]:.0f} times)" for name in often[:_MOST_NAMED])
            others = f" and {len(often) - _MOST_NAMED} more" if len(often) > _MOST_NAMED else ""
            sentences.append(
                f"{named}{others}: after {most:.0f} passes or so a model learns examples by heart. Add data like it, "
                "limit its passes, or train for fewer steps."
            )
        return sentences

    def _useless(self) -> Iterator[tuple[str, float, float]]:
        """Yields (dataset, share, its best relevance) if the share is above an equal one and the relevance not above 0.

        The relevance is the mean of the later half of the updates: cosines of one update are noise.
        """
        tables = [moment.relevance for moment in self.moments if moment.relevance]
        if not tables:
            return
        tables = tables[len(tables) // 2 :]
        last = self.moments[-1].mixture
        dev = [name for name in tables[-1] if self.weights.get(name, 1.0) > 0]
        for name, share in sorted(last.items(), key=lambda item: -item[1]):
            values = [
                sum(table[d][name][0] for table in tables) / len(tables)
                for d in dev
                if all(name in table.get(d, {}) for table in tables)
            ]
            if values and share > 1 / len(last) and max(values) <= 0:
                yield name, share, max(values)

    def _proportional_passes(self) -> float:
        """Returns the passes over every dataset that the same draws would have made in proportion to the sizes.

        A size is the draws of a dataset over its passes, and the draws follow from the mixtures so far.
        """
        spans = [(now.mixture, after.step - now.step) for now, after in pairwise(self.moments)]
        spans = spans or [(moment.mixture, 1) for moment in self.moments]
        drawn = {
            name: sum(mixture.get(name, 0.0) * steps for mixture, steps in spans)
            for name, passes in self.passes.items()
            if passes > 0
        }
        sizes = sum(share / self.passes[name] for name, share in drawn.items())
        return sum(drawn.values()) / sizes if sizes else 0.0


AnyRun = TypeVar("AnyRun", bound=Run)


def read_run(folder: Path) -> Run:
    """Reads the run in a folder. A UserError if there is none, or if its files are something else."""
    where, seed = folder.resolve(), 1
    if numbered := re.fullmatch(r"seed-(\d+)", where.name):
        where, seed = where.parent, int(numbered[1])
    method = f"{where.parent.name}/{where.name}" if where.name.startswith("version_") else where.name
    try:
        return Run(method, folder, moments_of(folder), evaluations_of(folder), seed=seed)
    except (ValueError, KeyError, TypeError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{folder}: is no history of a mixture."
        raise UserError(message) from None


def find_runs(folders: Iterable[Path], read: Callable[[Run], Run] = lambda run: run) -> list[Run]:
    """Returns the runs in folders and below them.

    folders: runs, or folders that hold some.
    read: returns a run with what an application knows of it.
    """
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.exists():
            raise UserError(f"{folder}: there is no such folder.")
        found = {run.folder.resolve(): read(run) for run in _runs_in(folder)}
        if not found:
            raise UserError(
                f"{folder}: is not a run, and there is none below it (a run has a mixture.jsonl, a trainer_state.json "
                "or a metrics.csv, with a mixture or evaluations in it)."
            )
        runs |= found
    return list(runs.values())


def _runs_in(folder: Path) -> Iterator[Run]:
    versions = [path for path in folder.glob("version_*") if path.is_dir()] if folder.is_dir() else []
    if not versions and find_history(folder) is not None:
        run = read_run(folder)
        if run.moments or run.evaluations:
            yield run
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
    same = set(run.names) == set(first.names) if run.names else bool(run.evaluations.keys() & first.evaluations.keys())
    return same and run.setting == first.setting


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
