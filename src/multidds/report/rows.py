"""Rows of charts, each of several runs side by side: shares, what moved them, relevance, rewards, losses, passes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..history import COLOURS, Moment, bands_of, limit_of, top_movers
from . import charts
from .charts import Series
from .run import Run

NOTHING = Markup("")
_MOST_CELLS = 24  # rows and columns of a heat map
_FACTS = {"unlearned": "the plan", "learned": "learning", "drift": "both", "signal": "signal"}
_FACT_COLOURS = dict(zip(_FACTS.values(), (COLOURS[3], COLOURS[1], COLOURS[0], charts.GREY), strict=True))
_MOVED = (
    "The share of the draws that goes to other datasets than under the given mixture: moved by the plan for this "
    "length, by learning, by both. Signal: the share of the evidence that is not noise."
)
_RELEVANCE = (
    "What each dataset (column) is worth to each dev set (row), by gradients. The slider goes through the updates."
)
_BY_EVIDENCE = (
    "By all updates so far: 1 is the best dataset of a row, 0 the average one (no colour). Below 0 (red) a dataset is "
    "of less use than the average one."
)
_BY_COSINES = "Cosines of the gradients at one update: blue helps, no colour does not, red harms."
_OVER_TIME = (
    "The same relevance at every update, as the mean over the dev sets by their weights, with its standard error."
)
_REWARDS = "The reward of each dataset at every update, with its noise. What all have in common moves nothing."
_LOSSES = "Of whole dev sets if they were evaluated, else of the probes."
_PASSES = "Passes over each dataset so far."
_WORTH = (
    "One more pass over a dataset, in new examples of it: 1 is as good as new, 0 of no use, below 0 it harms. By the "
    "last four updates, with the standard error, for datasets with a dev set of their name. Beside it: passes so far."
)


@dataclass(frozen=True)
class ChartRow:
    """The same chart of several runs, side by side.

    panels: (label of the run, chart).
    folded: whether it is shown only if its heading is pressed.
    """

    title: str
    caption: str
    panels: list[tuple[str, Markup]]
    folded: bool = False


def rows_of(runs: Sequence[Run]) -> list[ChartRow]:
    """Returns the rows of charts of runs on the same datasets, in the same colours; without those that are empty."""
    if not runs:
        return []
    first = max(runs, key=lambda run: len(run.updates) > 0)  # the first that moved, if any did
    estimated = any(run.tables for run in runs)
    rewards = "Rewards: cosines of single updates" if estimated else "Rewards"
    names = top_movers(first.moments, charts.MOST)
    cells = top_movers(first.moments, _MOST_CELLS)
    colours = charts.colours_of(names)
    shares = "The share of each dataset in the draws, from the first step on."
    if len(first.names) > len(names):
        shares += f" The {len(names)} of {len(first.names):,} datasets that moved most; grey are all others."

    def group(key: str, errors: str = "") -> Callable[[Run], Markup]:
        return lambda run: _group(run, key, names, colours, errors)

    def worth(run: Run) -> Markup:
        chart = group("worth", "worth_error")(run)
        return Markup('<div class="side-by-side">{}{}</div>').format(chart, group("passes")(run)) if chart else NOTHING

    makers: list[tuple[str, str, Callable[[Run], Markup]]] = [
        ("What the mixture did", shares, lambda run: _shares(run, names, runs)),
        ("Which data helps which goal?", _RELEVANCE, lambda run: _relevance(run, cells)),
        ("Relevance over time", _OVER_TIME, lambda run: _relevance_lines(run, names, colours)),
        (rewards, _REWARDS, group("reward", "noise")),
        ("What moved the mixture", _MOVED, _facts),
        ("Dev losses", _LOSSES, lambda run: _dev_losses(run, names, colours)),
        ("What is one more pass worth?", _WORTH, worth),
        ("Passes over the data", _PASSES, lambda run: NOTHING if worth(run) else group("passes")(run)),
    ]
    rows: list[ChartRow] = []
    for title, caption, make in makers:
        panels = [(run.label, chart) for run in runs if (chart := make(run))]
        if panels:
            rows.append(ChartRow(title, caption, panels, folded=estimated and title == rewards))
    return rows


def _shares(run: Run, names: Sequence[str], runs: Sequence[Run]) -> Markup:
    if not run.updates:
        return NOTHING
    limit = max(limit_of(bands_of(one.moments, names)) for one in runs if one.moments)
    steps = [moment.step for moment in run.moments]
    return charts.area(steps, bands_of(run.moments, names), run.prior, f"{run.label}: shares by step", limit)


def _facts(run: Run) -> Markup:
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


def _group(run: Run, key: str, names: Sequence[str], colours: Mapping[str, str], errors: str) -> Markup:
    series = _points(run.moments, key, names)
    if not series:
        return NOTHING
    noise = {
        name: [m.groups.get(errors, {}).get(name, 0.0) for m in run.moments if name in m.groups.get(key, {})]
        for name in series
    }
    noise = {name: values for name, values in noise.items() if any(values)}
    return charts.lines(series, key, f"{run.label}: {key}", noise, colours=colours, first=0)


def _dev_losses(run: Run, names: Sequence[str], colours: Mapping[str, str]) -> Markup:
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


def _relevance(run: Run, train: Sequence[str]) -> Markup:
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
    caption = _BY_EVIDENCE if run.tables else _BY_COSINES
    return charts.heat(dev, train, cells, f"{run.label}: which data helps which goal", caption)


def _relevance_lines(run: Run, names: Sequence[str], colours: Mapping[str, str]) -> Markup:
    """Returns the mean relevance at every update: the numbers of the heat map."""
    means = [(float(step), run.mean_relevance(table)) for step, table in run.tables]
    shown = [name for name in names if len([0 for _, values in means if name in values]) > 1]
    if not shown:
        return NOTHING
    series = {name: [(step, values[name][0]) for step, values in means if name in values] for name in shown}
    noise = {name: [values[name][1] for _, values in means if name in values] for name in shown}
    return charts.lines(series, "relevance", f"{run.label}: relevance over time", noise, colours=colours, first=0)
