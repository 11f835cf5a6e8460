"""Methods compared by the evaluations of their runs: is the learned mixture better than the static ones? Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from . import charts
from .rows import ChartRow
from .run import Run, by_method
from .table import ReportTable, number, text

_LEVEL = 0.005  # of the loss: a difference that is smaller is called level


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
        return self.runs[0].label if len(self.runs) == 1 else f"{self.runs[0].method} ({len(self.runs)} seeds)"

    @property
    def steps(self) -> list[float]:
        """The step of the lowest mean of each run."""
        return [min(means, key=means.__getitem__) for means in self.means]

    @property
    def best(self) -> float:
        """The lowest mean, as the mean over seeds."""
        return fmean(min(means.values()) for means in self.means)

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
    """

    methods: list[Evaluated]
    weights: dict[str, float]
    until: float | None = None
    others: Sequence[Run] = ()

    @property
    def kind(self) -> str:
        weighted = len(set(self.weights.values())) > 1
        return "mean dev loss, weighted by the priority" if weighted else "mean dev loss"

    @property
    def both(self) -> tuple[Evaluated, Evaluated] | None:
        """The first learned method and the best static one, if there are both."""
        learned = [one for one in self.methods if one.runs[0].updates]
        static = [one for one in self.methods if not one.runs[0].updates]
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
        if self.both is None:
            return left_out
        ours, theirs = self.both
        change = (ours.best - theirs.best) / (abs(theirs.best) or 1.0)
        word = "level with" if abs(change) < _LEVEL else "better than" if change < 0 else "worse than"
        lower = sum(ours.loss(name) < theirs.loss(name) for name in self.weights)
        sets = f"; lower on {lower} of {len(self.weights)} dev sets" if len(self.weights) > 1 else ""
        return [
            f"{ours.label} is {word} {theirs.label}: {self.kind} {ours.best:.3f} against {theirs.best:.3f}, "
            f"{abs(change):.1%} {'lower' if change < 0 else 'higher'}{sets}"
            + ("." if self.until is None else f"; up to step {self.until:,.0f}, the last that all runs have."),
            *left_out,
        ]

    def tiles(self) -> list[tuple[str, str]]:
        return [(f"{one.best:.3f}", f"{self.kind}, {one.label}") for one in self.both or ()]

    def table(self, key: str) -> ReportTable:
        """Returns the losses on each dev set, at the evaluation with the lowest mean of each run."""
        table = ReportTable(key, "Dev losses of all runs")
        for name in self.weights:
            losses = {one.label: one.loss(name) for one in self.methods}
            lowest = min(losses.values())
            cells = {label: number(loss, ".4f", bold=loss == lowest) for label, loss in losses.items()}
            table.rows.append({"dev set": text(name)} | cells)
        means = {one.label: number(one.best, ".4f") for one in self.methods}
        steps = {one.label: number(fmean(one.steps), ",.0f") for one in self.methods}
        table.rows += [{"dev set": text(self.kind)} | means, {"dev set": text("at step")} | steps]
        seeds = "means over seeds" if any(len(one.runs) > 1 for one in self.methods) else "one run each"
        table.notes = [f"Each run at its evaluation with the lowest mean. Bold: the lowest; {seeds}, no test."]
        return table

    def row(self) -> ChartRow:
        lines = {one.label: one.line for one in self.methods[: charts.MOST]}
        chart = charts.lines(lines, self.kind, "mean dev loss of each run", first=0)
        return ChartRow("Is it better?", "The mean over the dev sets that all runs have, by step.", [("", chart)])


def compared(runs: Sequence[Run]) -> Comparison | None:
    """Compares runs by the dev sets that all of them have; None if fewer than two methods were evaluated."""
    evaluated = [run for run in runs if run.evaluations]
    first = max(evaluated, key=lambda run: bool(run.updates)).evaluations if evaluated else {}  # of a learned run
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
    return Comparison(found if until is None else common, weights, until, others)


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
