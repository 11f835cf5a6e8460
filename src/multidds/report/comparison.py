"""Methods compared by the evaluations of their runs: is the learned mixture better than the static ones? Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, variance

from . import charts
from .rows import ChartRow
from .run import Run, by_method, one_goal
from .table import ReportTable, number, text

_LEVEL = 0.005  # of the loss: a difference that is smaller is called level
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # Student's t at 1, 2, ... degrees of freedom


def half_interval(*samples: Sequence[float]) -> float | None:
    """Returns half of the 95% interval of a mean, or of the difference of two means, which share a variance.

    None if all samples have one value only.

    >>> half_interval([1.0, 2.0, 3.0])
    2.4826...
    """
    free = sum(len(values) - 1 for values in samples)
    if not free:
        return None
    squares = sum((len(values) - 1) * variance(values) for values in samples if len(values) > 1)
    t = _T95[free - 1] if free <= len(_T95) else 1.96 + 2.7 / free
    return t * math.sqrt(squares / free * sum(1 / len(values) for values in samples))


def with_interval(value: float, half: float | None, pattern: str = ".3f") -> str:
    """Formats a value and half of its interval: '1.500 ± 0.031'."""
    return format(value, pattern) + ("" if half is None else f" ± {format(half, pattern.lstrip('+'))}")


@dataclass(frozen=True)
class Evaluated:
    """A method, and the means of its evaluations over the dev sets that all runs have.

    runs: of the method, by seed.
    means: {step: mean loss} of each of them.
    """

    runs: Sequence[Run]
    means: Sequence[dict[float, float]]

    @property
    def label(self) -> str:
        return self.runs[0].label if len(self.runs) == 1 else f"{self.runs[0].title} ({len(self.runs)} seeds)"

    @property
    def steps(self) -> list[float]:
        """The step of the lowest mean of each run."""
        return [min(means, key=means.__getitem__) for means in self.means]

    @property
    def best(self) -> float:
        """The lowest mean, as the mean over seeds."""
        return fmean(self.lowest)

    @property
    def lowest(self) -> list[float]:
        """The lowest mean of each run."""
        return [min(means.values()) for means in self.means]

    @property
    def shown(self) -> str:
        """The best, with its interval if there are several seeds."""
        return with_interval(self.best, half_interval(self.lowest))

    @property
    def line(self) -> list[tuple[float, float]]:
        """[(step, mean)] at the steps that all seeds have."""
        return [(step, fmean(of[step] for of in self.means)) for step in sorted(_shared(self.means))]

    def loss(self, name: str) -> float:
        """Returns the loss on a dev set at the lowest means, as the mean over seeds."""
        return fmean(dict(run.evaluations[name])[step] for run, step in zip(self.runs, self.steps, strict=True))

    def until(self, last: float) -> "Evaluated":
        """Returns the evaluations up to a step."""
        return replace(self, means=[{s: mean for s, mean in of.items() if s <= last} for of in self.means])


@dataclass(frozen=True)
class Comparison:
    """Methods whose runs were evaluated on the same dev sets.

    methods: in their order.
    weights: {dev set: weight} of the means.
    until: the last step that is compared, if some runs went further; None: all have ended at the same step.
    others: runs that were evaluated on other dev sets, and are not compared.
    renamed: {method: what it calls the one dev set of all}.
    """

    methods: list[Evaluated]
    weights: dict[str, float]
    until: float | None = None
    others: Sequence[Run] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        weighted = len(set(self.weights.values())) > 1
        return "mean dev loss, weighted by the priority" if weighted else "mean dev loss"

    @property
    def both(self) -> tuple[Evaluated, Evaluated] | None:
        """The first learned or planned method and the best static one, if there are both."""
        learned = [one for one in self.methods if one.runs[0].learned]
        learned += [one for one in self.methods if one.runs[0].planned]
        static = [one for one in self.methods if one not in learned]
        return (learned[0], min(static, key=lambda one: one.best)) if learned and static else None

    def verdict(self) -> list[str]:
        """Returns whether the learned mixture is better than the best static one, and what was not compared.

        >>> from pathlib import Path
        >>> from multidds.history import Moment
        >>> moved = [Moment(9, {"mixture": {"a": 1.0}})]
        >>> ours = Run("learned", Path(), moved, {"a": [(100, 1.5)], "b": [(100, 1.9)]})
        >>> theirs = Run("uniform", Path(), [], {"a": [(100, 1.6)], "b": [(100, 2.0)]})
        >>> print(*compared([ours, theirs]).verdict())
        learned is better than uniform: mean dev loss 1.700 against 1.800, 5.6% lower; lower on 2 of 2 dev sets.
        """
        left_out = [
            f"{run.label} is not compared: its dev {'set is' if len(run.evaluations) == 1 else 'sets are'} "
            f"{_listed(run.evaluations)}, and not {_listed(self.weights)}."
            for run in self.others
        ]
        left_out += [
            f"{method} calls its dev set {name} and not {_listed(self.weights)}: they are compared as the same data."
            for method, name in self.renamed.items()
        ]
        if self.both is None:
            return left_out
        ours, theirs = self.both
        change = (ours.best - theirs.best) / (abs(theirs.best) or 1.0)
        half = half_interval(ours.lowest, theirs.lowest)
        half = None if half is None else half / (abs(theirs.best) or 1.0)
        level = abs(change) < max(_LEVEL, half or 0.0)
        word = "level with" if level else "better than" if change < 0 else "worse than"
        lower = sum(ours.loss(name) < theirs.loss(name) for name in self.weights)
        sets = f"; lower on {lower} of {len(self.weights)} dev sets" if len(self.weights) > 1 else ""
        return [
            f"{ours.label} is {word} {theirs.label}: {self.kind} {ours.shown} against {theirs.shown}, "
            f"{with_interval(abs(change), half, '.1%')} {'lower' if change < 0 else 'higher'}{sets}"
            + ("." if self.until is None else f"; up to step {self.until:,.0f}, the last that all runs have."),
            *left_out,
        ]

    def tiles(self) -> list[tuple[str, str]]:
        return [(one.shown, f"{self.kind}, {one.label}") for one in self.both or ()]

    def table(self, key: str) -> ReportTable:
        """Returns the losses on each dev set, at the evaluation with the lowest mean of each run."""
        table = ReportTable(key, "Dev losses of all runs")
        for name in self.weights:
            losses = {one.label: one.loss(name) for one in self.methods}
            lowest = min(losses.values())
            cells = {label: number(loss, ".4f", bold=loss == lowest) for label, loss in losses.items()}
            table.rows.append({"dev set": text(name)} | cells)
        means = {one.label: number(one.best, ".4f") for one in self.methods}
        halves = {one.label: number(half_interval(one.lowest), ".4f") for one in self.methods}
        several = any(len(one.runs) > 1 for one in self.methods)
        steps = {one.label: number(fmean(one.steps), ",.0f") for one in self.methods}
        table.rows.append({"dev set": text(self.kind)} | means)
        if several:
            table.rows.append({"dev set": text("± (95% interval over seeds)")} | halves)
        table.rows.append({"dev set": text("at step")} | steps)
        seeds = "means over seeds" if several else "one run each"
        table.notes = [f"Each run at its evaluation with the lowest mean. Bold: the lowest; {seeds}, no test."]
        return table

    def row(self) -> ChartRow:
        lines = {one.label: one.line for one in self.methods[: charts.MOST]}
        chart = charts.lines(lines, self.kind, "mean dev loss of each run", first=0)
        return ChartRow("Is it better?", "The mean over the dev sets that all runs have, by step.", [("", chart)])


def compared(runs: Sequence[Run]) -> Comparison | None:
    """Compares runs by the dev sets that all of them have; None if fewer than two methods were evaluated."""
    evaluated = [run for run in runs if run.evaluations]
    if not evaluated:
        return None
    main = max(evaluated, key=lambda run: run.learned)
    first, renamed = main.evaluations, {}
    for i, run in enumerate(evaluated):
        if not run.evaluations.keys() & first.keys() and one_goal(run, main):
            ((name, points),) = run.evaluations.items()
            renamed[run.method] = name
            evaluated[i] = replace(run, evaluations={next(iter(first)): points})
    others = [run for run in evaluated if not run.evaluations.keys() & first.keys()]
    evaluated = [run for run in evaluated if run.evaluations.keys() & first.keys()]
    names = [name for name in first if all(name in run.evaluations for run in evaluated)]
    given = next((run.weights for run in evaluated if run.weights), {})
    weights = {name: given.get(name, 0.0 if given else 1.0) for name in names}
    if not any(weights.values()):
        weights = dict.fromkeys(names, 1.0)
    means = {id(run): _means(run, weights) for run in evaluated}
    methods = by_method(run for run in evaluated if means[id(run)]).values()
    found = [Evaluated(of, [means[id(run)] for run in of]) for of in methods]
    if not found or len(found) + len(others) < 2:
        return None
    ends = [max(of) for one in found for of in one.means]
    last = min(ends)  # a run may be under way
    common = [one.until(last) for one in found]
    until = last if max(ends) > last and all(all(one.means) for one in common) else None
    return Comparison(found if until is None else common, weights, until, others, renamed)


def _means(run: Run, weights: dict[str, float]) -> dict[float, float]:
    """Returns {step: mean loss} at the steps at which all these dev sets were evaluated."""
    losses = {name: dict(run.evaluations[name]) for name in weights}
    total = math.fsum(weights.values())
    return {
        step: math.fsum(weight * losses[name][step] for name, weight in weights.items() if weight) / total
        for step in _shared(losses.values())
    }


def _shared(series: Iterable[dict[float, float]]) -> set[float]:
    """Returns the steps that all have."""
    steps = [set(of) for of in series]
    return set.intersection(*steps) if steps else set()


def _listed(names: Iterable[str], most: int = 3) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + ", ..." * (len(listed) > most)
