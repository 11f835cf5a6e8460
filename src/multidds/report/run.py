"""Mixtures of runs of any trainer, and the rows of charts that show them: shares, what moved them, rewards, ...

Reads the histories that `multidds.history` finds: runs of ours, Trainer checkpoints, Lightning logs, plain loops. A run
without a history of its mixture is static; its own evaluations are enough to compare it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from markupsafe import Markup

from multidds._base.errors import UserError
from multidds._base.text import movers
from multidds.history import (
    COLOURS,
    Moment,
    bands_of,
    evaluations_of,
    find_history,
    limit_of,
    moments_of,
    moved_by,
    top_movers,
)
from multidds.mixture.planned import MAX_PASSES

from . import charts
from .charts import Series

T = TypeVar("T")
NOTHING = Markup("")
_MOST_CELLS = 24  # rows and columns of a heat map
_MOST_NAMED = 5  # datasets in a warning
_FACTS = {"unlearned": "the plan", "learned": "learning", "drift": "both", "signal": "signal"}
_FACT_COLOURS = dict(zip(_FACTS.values(), (COLOURS[3], COLOURS[1], COLOURS[0], charts.GREY), strict=True))
_MOVED = (
    "The share of the draws that goes to other datasets than under the given mixture: moved by the plan for this "
    "length, by learning, by both. Signal: the share of the evidence that is not noise."
)
_RELEVANCE = (
    "Relevance of each dataset (column) to each dev set (row), by gradients: of all updates so far, with the best "
    "dataset of a row at 1; or the cosines of one update. Blue helps, no colour does not, red harms; move the slider."
)


@dataclass
class MixtureRun:
    """The mixture of one run over its steps.

    label: the name of the run.
    folder: where it was read.
    moments: by step, the first at its start; none if the run has no history of a mixture.
    evaluations: {dev set: [(step, loss), ...]} of whole dev sets, if they are known.
    weights: {dev set: weight}, the priority; empty: that of the updates, if it stays the same, else equal ones.
    passes: {dataset: passes over it}; empty: those of the last update.
    most_passes: over a dataset, unless a proportional mixture makes more; beyond, it is learned by heart.
    """

    label: str
    folder: Path
    moments: list[Moment]
    evaluations: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    passes: dict[str, float] = field(default_factory=dict)
    most_passes: float = MAX_PASSES

    def __post_init__(self) -> None:
        given = [moment.groups["dev_weight"] for moment in self.moments if "dev_weight" in moment.groups]
        if not self.weights and given and all(one == given[0] for one in given):
            self.weights = given[0]
        self.passes = self.passes or (self.moments[-1].groups.get("passes", {}) if self.moments else {})

    @cached_property
    def names(self) -> tuple[str, ...]:
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
            f"{name} {charts.percent(start.get(name, last[name]))} → {charts.percent(last[name])}"
            for name in movers(last, start, 3)
        )
        updates = f"{len(self.updates):,} update" + ("" if len(self.updates) == 1 else "s")
        moved = moved_by(self.facts)
        return f"{self.label}: {updates} in {self.moments[-1].step:,} steps; {moved}{moved and ': '}{moves}."

    def warnings(self) -> list[str]:
        """Returns sentences about datasets that are drawn often and help no dev set, or are learned by heart."""
        sentences = [
            f"{name} gets {charts.percent(share)} of the draws and helps no dev set that counts: its best measured "
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


def read_mixture_runs(folder: Path) -> Iterator[MixtureRun]:
    """Reads the runs of other trainers in a folder and below it."""
    versions = [path for path in folder.glob("version_*") if path.is_dir()] if folder.is_dir() else []
    if not versions and find_history(folder) is not None:
        moments, evaluations = read_moments(folder), read_log(evaluations_of, folder)
        if moments or evaluations:
            where = folder.resolve()
            label = f"{where.parent.name}/{where.name}" if where.name.startswith("version_") else where.name
            yield MixtureRun(label, folder, moments, evaluations)
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from read_mixture_runs(inner)


def read_moments(folder: Path) -> list[Moment]:
    return read_log(moments_of, folder)


def read_log(read: Callable[[Path], T], folder: Path) -> T:
    """Returns what `read` finds in a folder; a UserError if the files there are something else."""
    try:
        return read(folder)
    except (ValueError, KeyError, TypeError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{folder}: is no history of a mixture."
        raise UserError(message) from None


def groups_of(runs: Iterable[MixtureRun]) -> list[tuple[str, list[MixtureRun]]]:
    """Returns [(name, runs on the same datasets)]; labels that two of them share become their folders.

    A run without a history of its mixture is with those that were evaluated on the same dev sets.
    """
    groups: list[list[MixtureRun]] = []
    for run in sorted(runs, key=lambda run: not run.names):
        for members in groups:
            first = members[0]
            same = (
                set(run.names) == set(first.names) if run.names else run.evaluations.keys() & first.evaluations.keys()
            )
            if same:
                members.append(run)
                break
        else:
            groups.append([run])
    named = []
    for members in groups:
        labels = [run.label for run in members]
        for run in members:
            if labels.count(run.label) > 1:
                run.label = str(run.folder)
        parent = members[0].folder.resolve().parent.name
        named.append((members[0].label if len(members) == 1 else f"{parent}: {len(members)} runs", members))
    return named


# ------------------------------------------------------------------------------------------ rows of charts


@dataclass(frozen=True)
class Row:
    """The same chart of several runs, side by side: panels are (label of the run, chart)."""

    title: str
    caption: str
    panels: list[tuple[str, Markup]]


def rows_of(runs: Sequence[MixtureRun]) -> list[Row]:
    """Returns the rows of charts of runs on the same datasets, in the same colours; without those that are empty."""
    if not runs:
        return []
    first = max(runs, key=lambda run: len(run.updates) > 0)  # the first that moved, if any did
    names = top_movers(first.moments, charts.MOST)
    colours = charts.colours_of(names)
    shares = "The share of each dataset in the draws, from the first step on."
    if len(first.names) > len(names):
        shares += f" The {len(names)} of {len(first.names):,} datasets that moved most; grey are all others."

    def group(key: str, errors: str = "") -> Callable[[MixtureRun], Markup]:
        return lambda run: _group(run, key, names, colours, errors)

    makers: list[tuple[str, str, Callable[[MixtureRun], Markup]]] = [
        ("What the mixture did", shares, lambda run: _shares(run, names, runs)),
        (
            "Which data helps which goal?",
            _RELEVANCE,
            lambda run: _relevance(run, top_movers(first.moments, _MOST_CELLS)),
        ),
        ("What moved the mixture", _MOVED, _facts),
        ("Rewards", "The reward of each dataset at every update, with its noise.", group("reward", "noise")),
        (
            "Dev losses",
            "Of whole dev sets if they were evaluated, else of the probes.",
            lambda run: _dev_losses(run, names, colours),
        ),
        ("Passes over the data", "Passes over each dataset so far.", group("passes")),
    ]
    rows = []
    for title, caption, make in makers:
        panels = [(run.label, chart) for run in runs if (chart := make(run))]
        if panels:
            rows.append(Row(title, caption, panels))
    return rows


def _shares(run: MixtureRun, names: Sequence[str], runs: Sequence[MixtureRun]) -> Markup:
    if not run.updates:
        return NOTHING
    limit = max(limit_of(bands_of(one.moments, names)) for one in runs if one.moments)
    steps = [moment.step for moment in run.moments]
    return charts.area(steps, bands_of(run.moments, names), run.prior, f"{run.label}: shares by step", limit)


def _facts(run: MixtureRun) -> Markup:
    series = {
        label: [(float(moment.step), moment.facts[fact]) for moment in run.moments if fact in moment.facts]
        for fact, label in _FACTS.items()
    }
    series = {label: points for label, points in series.items() if len(points) > 1}
    if not series:
        return NOTHING
    title = f"{run.label}: what moved the mixture"
    return charts.lines(
        series, "share of the draws", title, between=(0, 1), colours=_FACT_COLOURS, first=0, shares=True
    )


def _group(run: MixtureRun, key: str, names: Sequence[str], colours: Mapping[str, str], errors: str) -> Markup:
    series = _points(run.moments, key, names)
    if not series:
        return NOTHING
    noise = {
        name: [m.groups.get(errors, {}).get(name, 0.0) for m in run.moments if name in m.groups.get(key, {})]
        for name in series
    }
    noise = {name: values for name, values in noise.items() if any(values)}
    return charts.lines(series, key, f"{run.label}: {key}", noise, colours=colours, first=0)


def _dev_losses(run: MixtureRun, names: Sequence[str], colours: Mapping[str, str]) -> Markup:
    losses: Series = {name: points for name, points in run.evaluations.items() if len(points) > 1}
    losses = losses or _points(run.moments, "dev_loss")
    chosen = [name for name in names if name in losses] + sorted(name for name in losses if name not in names)
    series = {name: losses[name] for name in chosen[: charts.MOST]}
    if not series:
        return NOTHING
    shared = colours if any(name in names for name in series) else {}
    return charts.lines(series, "loss", f"{run.label}: dev losses", colours=shared, first=0)


def _points(moments: Sequence[Moment], key: str, names: Sequence[str] = ()) -> Series:
    """Returns {name: [(step, value), ...]} of a group. names: those wanted; none: all that have two values."""
    wanted = names or dict.fromkeys(name for moment in moments for name in moment.groups.get(key, {}))
    points = {
        name: [(float(m.step), m.groups[key][name]) for m in moments if name in m.groups.get(key, {})]
        for name in wanted
    }
    return {name: values for name, values in points.items() if len(values) > 1}


def _relevance(run: MixtureRun, train: Sequence[str]) -> Markup:
    tables = [moment for moment in run.moments if moment.relevance]
    if not tables:
        return NOTHING
    dev_sets = tables[0].relevance
    dev = [name for name in train if name in dev_sets] + [name for name in dev_sets if name not in train]
    dev = dev[:_MOST_CELLS]
    cells = [
        (moment.step, [[moment.relevance[d].get(t, (0.0, None)) for t in train] for d in dev])
        for moment in tables
        if all(d in moment.relevance for d in dev)
    ]
    return charts.heat(dev, train, cells, f"{run.label}: which data helps which goal")
