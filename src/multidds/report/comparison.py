"""Runs of any trainer compared by their own evaluations: is the learned mixture better than the static ones? Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config.config import mean_of
from . import charts
from .mixture_runs import MixtureRun, Row
from .tables import ReportTable, number, text

_LEVEL = 0.005  # of the loss: a difference that is smaller is called level


@dataclass(frozen=True)
class Evaluated:
    """A run and the means of its evaluations over the dev sets that all runs have."""

    run: MixtureRun
    means: dict[float, float]  # {step: mean loss}

    @property
    def step(self) -> float:
        """The step of the lowest mean."""
        return min(self.means, key=lambda step: self.means[step])

    @property
    def best(self) -> float:
        return self.means[self.step]


@dataclass(frozen=True)
class Comparison:
    """Runs that were evaluated on the same dev sets.

    runs: in their order.
    weights: {dev set: weight} of the means.
    until: the last step that is compared, if some runs went further; None: all have ended at the same step.
    others: runs that were evaluated on other dev sets, and are not compared.
    """

    runs: list[Evaluated]
    weights: dict[str, float]
    until: float | None = None
    others: Sequence[MixtureRun] = ()

    @property
    def kind(self) -> str:
        weighted = len(set(self.weights.values())) > 1
        return "mean dev loss, weighted by the priority" if weighted else "mean dev loss"

    @property
    def both(self) -> tuple[Evaluated, Evaluated] | None:
        """The first learned run and the best static one, if there are both."""
        learned = [one for one in self.runs if one.run.updates]
        static = [one for one in self.runs if not one.run.updates]
        return (learned[0], min(static, key=lambda one: one.best)) if learned and static else None

    def loss(self, one: Evaluated, name: str) -> float:
        return dict(one.run.evaluations[name])[one.step]

    def verdict(self) -> list[str]:
        """Returns whether the learned mixture is better than the best static one, and what was not compared.

        >>> from pathlib import Path
        >>> from multidds.history import Moment
        >>> moved = [Moment(9, {"mixture": {"a": 1.0}})]
        >>> ours = MixtureRun("learned", Path(), moved, {"a": [(100, 1.5)], "b": [(100, 1.9)]})
        >>> theirs = MixtureRun("uniform", Path(), [], {"a": [(100, 1.6)], "b": [(100, 2.0)]})
        >>> print(*compared([ours, theirs]).verdict())
        learned is better than uniform: mean dev loss 1.700 against 1.800, 5.6% lower; lower on 2 of 2 dev sets.
        """
        left_out = [
            f"{run.label} is not compared: its dev {'set is' if len(run.evaluations) == 1 else 'sets are'} "
            f"{', '.join(list(run.evaluations)[:3])}{', ...' * (len(run.evaluations) > 3)}, and not "
            f"{', '.join(list(self.weights)[:3])}{', ...' * (len(self.weights) > 3)}."
            for run in self.others
        ]
        if self.both is None:
            return left_out
        ours, theirs = self.both
        change = (ours.best - theirs.best) / (abs(theirs.best) or 1.0)
        word = "level with" if abs(change) < _LEVEL else "better than" if change < 0 else "worse than"
        lower = sum(self.loss(ours, name) < self.loss(theirs, name) for name in self.weights)
        sets = f"; lower on {lower} of {len(self.weights)} dev sets" if len(self.weights) > 1 else ""
        return [
            f"{ours.run.label} is {word} {theirs.run.label}: {self.kind} {ours.best:.3f} against {theirs.best:.3f}, "
            f"{abs(change):.1%} {'lower' if change < 0 else 'higher'}{sets}"
            + ("." if self.until is None else f"; up to step {self.until:,.0f}, the last that all runs have."),
            *left_out,
        ]

    def tiles(self) -> list[tuple[str, str]]:
        return [(f"{one.best:.3f}", f"{self.kind}, {one.run.label}") for one in self.both or ()]

    def table(self, key: str) -> ReportTable:
        """Returns the losses on each dev set, at the evaluation with the lowest mean of each run."""
        table = ReportTable(key, "Dev losses of all runs", {one.run.label: one.run.label for one in self.runs})
        for name in self.weights:
            losses = {one.run.label: self.loss(one, name) for one in self.runs}
            lowest = min(losses.values())
            cells = {label: number(loss, ".4f", bold=loss == lowest) for label, loss in losses.items()}
            table.rows.append({"dev set": text(name)} | cells)
        means = {one.run.label: number(one.best, ".4f") for one in self.runs}
        steps = {one.run.label: number(one.step, ",.0f") for one in self.runs}
        table.rows += [{"dev set": text(self.kind)} | means, {"dev set": text("at step")} | steps]
        table.notes = ["Each run at its evaluation with the lowest mean. Bold: the lowest; one run each, no test."]
        return table

    def row(self) -> Row:
        lines = {one.run.label: sorted(one.means.items()) for one in self.runs[: charts.MOST]}
        chart = charts.lines(lines, self.kind, "mean dev loss of each run", first=0)
        return Row("Is it better?", "The mean over the dev sets that all runs have, by step.", [("", chart)])


def compared(runs: Sequence[MixtureRun]) -> Comparison | None:
    """Compares runs by the dev sets that all of them have; None if fewer than two were evaluated."""
    evaluated = [run for run in runs if run.evaluations]
    first = max(evaluated, key=lambda run: bool(run.updates)).evaluations if evaluated else {}  # of a learned run
    others = [run for run in evaluated if not run.evaluations.keys() & first.keys()]
    evaluated = [run for run in evaluated if run.evaluations.keys() & first.keys()]
    names = [name for name in first if all(name in run.evaluations for run in evaluated)]
    given = next((run.weights for run in evaluated if run.weights), {})
    weights = {name: given.get(name, 0.0 if given else 1.0) for name in names}
    if not any(weights.values()):
        weights = dict.fromkeys(names, 1.0)
    found = []
    for run in evaluated:
        losses = {name: dict(run.evaluations[name]) for name in names}
        steps = set.intersection(*(set(of) for of in losses.values())) if losses else set()
        if steps:
            at = {step: mean_of({name: losses[name][step] for name in names}, weights) for step in steps}
            found.append(Evaluated(run, at))
    if not found or len(found) + len(others) < 2:
        return None
    last = min(max(one.means) for one in found)  # a run may be under way
    common = [replace(one, means={s: mean for s, mean in one.means.items() if s <= last}) for one in found]
    until = last if any(max(one.means) > last for one in found) and all(one.means for one in common) else None
    return Comparison(found if until is None else common, weights, until, others)
