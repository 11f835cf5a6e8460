"""Mixtures of runs of any trainer, and the rows of charts that show them: shares, learning and drift, rewards, ...

Reads the histories that `multidds.history` finds: runs of ours, Trainer checkpoints, Lightning logs, plain loops.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from multidds._base.text import movers
from multidds.history import COLOURS, Moment, bands_of, find_history, limit_of, moments_of, top_movers

from ..common.errors import UserError
from . import charts
from .charts import Series

NOTHING = Markup("")
_MOST_CELLS = 24  # rows and columns of a heat map
_FACTS = {"drift": "from the prior", "unlearned": "without rewards", "learned": "by rewards", "signal": "signal"}
_FACT_COLOURS = dict(zip(_FACTS.values(), (COLOURS[0], COLOURS[3], COLOURS[1], charts.GREY), strict=True))
_DISTANCES = (
    "Distance of the mixture from its prior (total variation, 0 to 1); of the plan from it, without rewards; of the "
    "mixture from the plan, by rewards. Signal: the share of the rewards that is not noise."
)


@dataclass
class MixtureRun:
    """The mixture of one run over its steps.

    label: the name of the run.
    folder: where it was read.
    moments: by step, the first at its start.
    validations: {dev set: [(step, loss), ...]} of whole dev sets, if they are known.
    """

    label: str
    folder: Path
    moments: list[Moment]
    validations: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for moment in self.moments for name in moment.mixture))

    @property
    def updates(self) -> list[Moment]:
        return [moment for moment in self.moments if moment.step > 0]

    @property
    def steps(self) -> int:
        return self.moments[-1].step

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
        start, last = self.start, self.moments[-1].mixture
        moves = ", ".join(
            f"{name} {charts.percent(start.get(name, last[name]))} → {charts.percent(last[name])}"
            for name in movers(last, start, 3)
        )
        updates = f"{len(self.updates):,} update" + ("" if len(self.updates) == 1 else "s")
        return f"{self.label}: {updates} in {self.steps:,} steps; {moves}."


def read_mixture_runs(folder: Path) -> Iterator[MixtureRun]:
    """Reads the histories of other trainers in a folder and below it."""
    versions = [path for path in folder.glob("version_*") if path.is_dir()] if folder.is_dir() else []
    if not versions and find_history(folder) is not None:
        if moments := read_moments(folder):
            yield MixtureRun(folder.resolve().name, folder, moments)
    elif folder.is_dir():
        for inner in sorted(folder.iterdir()):
            if inner.is_dir() and not inner.is_symlink():
                yield from read_mixture_runs(inner)


def read_moments(folder: Path) -> list[Moment]:
    try:
        return moments_of(folder)
    except (ValueError, KeyError, TypeError) as error:
        message = str(error) if isinstance(error, ValueError) else f"{folder}: is no history of a mixture."
        raise UserError(message) from None


def groups_of(runs: Iterable[MixtureRun]) -> list[tuple[str, list[MixtureRun]]]:
    """Returns [(name, runs on the same datasets)]; labels that two of them share become their folders."""
    by_names: dict[frozenset[str], list[MixtureRun]] = {}
    for run in runs:
        by_names.setdefault(frozenset(run.names), []).append(run)
    groups = []
    for members in by_names.values():
        labels = [run.label for run in members]
        for run in members:
            if labels.count(run.label) > 1:
                run.label = str(run.folder)
        parent = members[0].folder.resolve().parent.name
        groups.append((members[0].label if len(members) == 1 else f"{parent}: {len(members)} runs", members))
    return groups


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
    names = top_movers(runs[0].moments, charts.MOST)
    colours = charts.colours_of(names)
    shares = "The share of each dataset in the draws, from the first step on."
    if len(runs[0].names) > len(names):
        shares += f" The {len(names)} of {len(runs[0].names):,} datasets that moved most; grey are all others."

    def group(key: str, errors: str = "") -> Callable[[MixtureRun], Markup]:
        return lambda run: _group(run, key, names, colours, errors)

    makers: list[tuple[str, str, Callable[[MixtureRun], Markup]]] = [
        ("What the mixture did", shares, lambda run: _shares(run, names, runs)),
        ("Learned or drifted", _DISTANCES, _facts),
        ("Rewards", "The reward of each dataset at every update, with its noise.", group("reward", "noise")),
        (
            "Dev losses",
            "Of whole dev sets if they were validated, else of the probes.",
            lambda run: _dev_losses(run, names, colours),
        ),
        ("Passes over the data", "Passes over each dataset so far.", group("passes")),
        (
            "Alignment over time",
            "Cosines of the gradients of dev sets and datasets; move the slider.",
            lambda run: _alignment(run, top_movers(runs[0].moments, _MOST_CELLS)),
        ),
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
    limit = max(limit_of(bands_of(one.moments, names)) for one in runs)
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
    title = f"{run.label}: learned or drifted"
    return charts.lines(series, "total variation", title, between=(0, 1), colours=_FACT_COLOURS, first=0)


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
    losses: Series = {name: points for name, points in run.validations.items() if len(points) > 1}
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


def _alignment(run: MixtureRun, train: Sequence[str]) -> Markup:
    tables = [moment for moment in run.moments if moment.cosines]
    if not tables:
        return NOTHING
    dev_sets = tables[0].cosines
    dev = [name for name in train if name in dev_sets] + [name for name in dev_sets if name not in train]
    dev = dev[:_MOST_CELLS]
    cosines = [
        (moment.step, [[moment.cosines[d].get(t, 0.0) for t in train] for d in dev])
        for moment in tables
        if all(d in moment.cosines for d in dev)
    ]
    return charts.heat(dev, train, cosines, f"{run.label}: which data help which goal (cosines of gradients)")
