"""The figures of the paper, and some that it lacks: each as a chart of the page and as a matplotlib figure for files.

Nothing here uses pyplot, a display or global state.
"""

import io
import math
import re
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from multidds.history import COLOURS, evenly, plot, style

from ..common.escaping import drawable
from . import charts
from .charts import Series
from .mixture_runs import NOTHING
from .runs import REWARDS, Run, Setting
from .tables import main_method

WINDOW = 10  # updates
_INK = "#1c1c1e"
_MARKS = "os^Dv<>P"
_MOST = len(COLOURS)  # series of a panel
_POINTS = 300  # of a line; more cannot be seen
_WIDTH = 4.9  # inches
_STYLE: Any = {
    **style(_INK),
    "font.family": "sans-serif",
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
}


@dataclass(frozen=True)
class Figure:
    """A figure of a setting.

    key: its name as a file.
    title: the heading on the page.
    caption: the text below it.
    canvas: the figure for files.
    chart: the same for the page; empty if a row of charts shows it already.
    """

    key: str
    title: str
    caption: str
    canvas: Canvas
    chart: Markup = NOTHING


def figures_of(setting: Setting) -> Iterator[Figure]:
    """Yields all figures that the runs of a setting can fill."""
    chosen = main_method(setting)
    others = [label for label in reversed(setting.labels) if label != chosen and setting.of(label)[0].learned]
    learned = [run for label in (chosen, *others) for run in _first(setting, label)]
    compared = [*learned[:1], *_first(setting, setting.best_baseline)] if chosen else _first(setting, setting.labels[0])
    figures = [
        *(mixture(setting, run) for run in learned[:4]),
        usage_of_both(setting),
        passes_over_datasets(setting),
        mean_measure(setting, "dev_loss", "dev loss", "Per token, without label smoothing"),
        mean_measure(setting, "expected_accuracy", "expected accuracy", "Mean probability of the correct token"),
        *(dev_losses(setting, run) for run in compared),
        *(make(setting, run) for run in learned[:2] for make in (rewards, reward_variance)),
        *(alignment(setting, run) for run in learned[:1]),
        priority_differences(setting),
        cost(setting),
    ]
    yield from (figure for figure in figures if figure is not None)


def mixture(setting: Setting, run: Run) -> Figure | None:
    if not run.updates:
        return None
    title = f"{setting.name}: mixture, rewards, dev losses, {run.label}"
    return Figure(f"mixture.{setting.name}.{_slug(run.label)}", title, f"Seed {run.seed}.", plot(run.folder))


def usage_of_both(setting: Setting) -> Figure | None:
    labels = [setting.learned_with(method) for method in REWARDS]
    runs = [run for label in labels for run in _first(setting, label) if run.updates]
    if len(runs) < 2:
        return None
    title = f"{setting.name}: usage of MultiDDS against MultiDDS-S"
    panels = {run.label: _by_name(run, [(step, _percent(shares)) for step, shares in run.mixtures]) for run in runs}
    canvas = line_figure(panels, "share of draws (%)", held=True)
    return Figure(f"usage-both.{setting.name}", title, "The same data and settings with either reward.", canvas)


def rewards(setting: Setting, run: Run) -> Figure | None:
    """Returns both rewards of every update, which take its alignment table."""
    if not run.alignments:
        return None
    panels = {
        f"{name} reward": _by_name(run, [(step, table.rewards[key]) for step, table in run.alignments])
        for key, name in REWARDS.items()
    }
    title = f"{setting.name}: rewards by step, {run.label}"
    caption = f"Both rewards of every update, whichever the run used. Seed {run.seed}."
    return Figure(f"rewards.{setting.name}.{_slug(run.label)}", title, caption, line_figure(panels, "reward"))


def reward_variance(setting: Setting, run: Run) -> Figure | None:
    series: dict[str, list[tuple[float, float]]] = {}
    for key, name in REWARDS.items():
        within, over = variances(run, key)
        series |= {f"{name}, between datasets": within, f"{name}, over {WINDOW} updates": over}
    series = {name: points for name, points in series.items() if points}
    if not series:
        return None
    title = f"{setting.name}: variance of the rewards, {run.label}"
    caption = (
        f"Between datasets: the variance over the datasets within an update. Over {WINDOW} updates: the variance of a "
        f"dataset's reward over a window of {WINDOW} updates, averaged over the datasets."
    )
    canvas = line_figure({"": series}, "variance", log=True)
    chart = charts.lines(series, "variance", title)
    return Figure(f"reward-variance.{setting.name}.{_slug(run.label)}", title, caption, canvas, chart)


def variances(run: Run, reward: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Returns the variance over datasets by step, and the variance over a window of updates, averaged over datasets."""
    values = [(step, table.rewards[reward]) for step, table in run.alignments]
    within = [(float(step), statistics.variance(of.values())) for step, of in values if len(run.names) > 1]
    over = []
    for end in range(WINDOW, len(values) + 1):
        window = values[end - WINDOW : end]
        of_each = [statistics.variance(of[name] for _, of in window) for name in run.names]
        over.append((float(window[-1][0]), statistics.fmean(of_each)))
    return within, over


def mean_measure(setting: Setting, measure: str, name: str, caption: str) -> Figure | None:
    runs = [run for label in setting.labels for run in setting.of(label)[:1] if run.validations]
    if not runs:
        return None
    series = {run.label: [(float(r.step), r.means[measure]) for r in run.validations] for run in runs}
    title, what = f"{setting.name}: mean {name}", f"mean {name}"
    return Figure(
        f"{measure.replace('_', '-')}.{setting.name}",
        title,
        f"{caption}, averaged over the dev sets; first seeds.",
        line_figure({"": series}, what),
        charts.lines(series, what, title),
    )


def dev_losses(setting: Setting, run: Run) -> Figure | None:
    if not run.validations:
        return None
    series = _by_name(run, [(record.step, record.dev_loss) for record in run.validations])
    title = f"{setting.name}: dev loss per language pair, {run.label}"
    canvas = line_figure({"": series}, "dev loss")
    return Figure(f"dev-losses.{setting.name}.{_slug(run.label)}", title, "Per token, without label smoothing.", canvas)


def passes_over_datasets(setting: Setting) -> Figure | None:
    runs = [run for label in setting.labels for run in setting.of(label)[:1] if run.validations][:_MOST]
    if not runs:
        return None
    rows = sorted(setting.pairs, key=lambda pair: float(runs[0].facts["pairs"][pair]["train"]["pairs"]))
    passes = {run.label: run.validations[-1].passes for run in runs}
    title, what = f"{setting.name}: passes over each dataset", "passes at the end of the run"
    return Figure(
        f"passes.{setting.name}",
        title,
        "Passes over each training set, the smallest first; first seeds.",
        dot_figure(rows, passes, what, log=True),
        charts.dots(rows, passes, what, title, log=True),
    )


def alignment(setting: Setting, run: Run) -> Figure | None:
    tables = evenly(run.alignments, 4)
    if not tables:
        return None
    title = f"{setting.name}: alignment of training and dev gradients, {run.label}"
    caption = f"At {len(tables)} of {len(run.alignments)} updates: blue helps, red harms."
    cosines = {f"step {step:,}": table.cosines for step, table in tables}
    return Figure(f"alignment.{setting.name}.{_slug(run.label)}", title, caption, heat_figure(setting.pairs, cosines))


def priority_differences(setting: Setting) -> Figure | None:
    labels = setting.by_priority()
    regular = [run for run in _first(setting, labels.pop("regular")) if run.bleu is not None]
    runs = {name: run for name, label in labels.items() for run in _first(setting, label) if run.bleu is not None}
    if not regular or not runs:
        return None
    base = regular[0]
    perplexity = base.best.perplexity if base.best else {}
    rows = sorted(setting.pairs, key=lambda pair: -perplexity.get(pair, 0.0))
    gains = {
        f"{name} - regular": {pair: (run.bleu_of(pair) or 0.0) - (base.bleu_of(pair) or 0.0) for pair in rows}
        for name, run in runs.items()
    }
    title = f"{setting.name}: BLEU of low and high priority against regular"
    return Figure(
        f"priorities.{setting.name}",
        title,
        "Ordered by the dev perplexity of the regular run's best model, the worst first; the first seeds.",
        dot_figure(rows, gains, "difference in BLEU"),
        charts.dots(rows, gains, "difference in BLEU", title),
    )


def cost(setting: Setting) -> Figure | None:
    rows = {
        f"{label}: {mean:.2f} BLEU": 100 * statistics.fmean(costs)
        for label in setting.labels
        if (mean := setting.mean_bleu(label)) is not None
        and (costs := [run.overhead for run in setting.scored(label) if run.overhead is not None])
    }
    if not rows:
        return None
    title, what = f"{setting.name}: BLEU against the cost of balancing", "updates, in % of the time of steps"
    return Figure(
        f"cost.{setting.name}",
        title,
        "Means over seeds if there are several.",
        dot_figure(list(rows), {"updates": rows}, what),
        charts.dots(list(rows), {"updates": rows}, what, title),
    )


def _by_name(run: Run, values: Sequence[tuple[int, Mapping[str, float]]]) -> Series:
    return {name: [(float(step), of[name]) for step, of in values] for name in run.names}


def _percent(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: 100 * share for name, share in shares.items()}


def _first(setting: Setting, label: str | None) -> list[Run]:
    return setting.of(label)[:1] if label is not None else []


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()


# ------------------------------------------------------------------------------------------ drawing


def saved(canvas: Canvas, kind: str) -> bytes:
    """Writes a figure as "svg" or "pdf", the same bytes every time."""
    file = io.BytesIO()
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with _styled():
        canvas.savefig(file, format=kind, metadata=dates[kind])
    return file.getvalue()


@contextmanager
def _styled() -> Iterator[None]:
    """Letters that matplotlib has no font for are boxes in a PDF; in an SVG the reader's fonts show them."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


def drawn(draw: Callable[[Canvas], None], height: float = 3.4) -> Canvas:
    """Returns a canvas that `draw` has drawn on. height: in inches."""
    with _styled():
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once; saving would do it again for every format
    return canvas


def line_figure(panels: Mapping[str, Series], what: str, held: bool = False, log: bool = False) -> Canvas:
    """Draws panels of lines below each other. Of many series in a panel those are drawn that changed most.

    panels: {title: {name: [(step, value), ...]}}.
    what: the y axis.
    held: whether a value holds until the next one, as a mixture does.
    log: whether the y axis is logarithmic.
    """

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, (title, series) in zip(axes, panels.items(), strict=True):
            shown = _most_changed(series)
            for i, (name, points) in enumerate(shown.items()):
                steps, values = zip(*evenly(points, _POINTS), strict=True)
                panel.plot(
                    steps,
                    values,
                    color=COLOURS[i],
                    label=drawable(name),
                    marker=_MARKS[i] if len(steps) < 15 else None,
                    markersize=3.5,
                    drawstyle="steps-post" if held else "default",
                )
            panel.set_title(drawable(title))
            panel.set_ylabel(what if len(shown) == len(series) else f"{what}, {len(shown)} of {len(series)}")
            if log:
                panel.set_yscale("log")
        axes[-1].set_xlabel("step")
        _legend(canvas, axes[0])

    return drawn(draw, 3.4 if len(panels) == 1 else 5.0)


def _most_changed(series: Series) -> Series:
    if len(series) <= _MOST:
        return series
    ranges = {name: max(y for _, y in points) - min(y for _, y in points) for name, points in series.items()}
    chosen = sorted(series, key=lambda name: -ranges[name])[:_MOST]
    return {name: points for name, points in series.items() if name in chosen}


def dot_figure(rows: Sequence[str], series: Mapping[str, Mapping[str, float]], what: str, log: bool = False) -> Canvas:
    """Draws a row for each name, and in it a dot for each of the series {label: {row: value}}."""

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for i, (label, values) in enumerate(series.items()):
            points = [(values[row], place) for place, row in enumerate(rows) if row in values]
            panel.plot(*zip(*points, strict=True), _MARKS[i], color=COLOURS[i], markersize=4, label=drawable(label))
        if log:
            panel.set_xscale("log")
        elif any(value < 0 for values in series.values() for value in values.values()):
            panel.axvline(0, color=_INK, linewidth=0.8)
        _name_places(panel.set_yticks, rows)
        panel.invert_yaxis()
        panel.set_xlabel(what)
        _legend(canvas, panel)

    return drawn(draw, max(3.2, 0.15 * len(rows) + 1.4))


def heat_figure(names: Sequence[str], tables: Mapping[str, list[list[float]]]) -> Canvas:
    """Draws tables [dev set, dataset] of cosines beside each other, in colours around 0."""
    highest = max(abs(cosine) for table in tables.values() for row in table for cosine in row) or 1.0

    def draw(canvas: Canvas) -> None:
        columns = min(2, len(tables))
        shape = (math.ceil(len(tables) / columns), columns)
        axes = list(canvas.subplots(*shape, sharex=True, sharey=True, squeeze=False).flat)
        for panel, (title, table) in zip(axes, tables.items(), strict=False):
            image = panel.imshow(table, cmap="RdBu", vmin=-highest, vmax=highest, interpolation="nearest")
            panel.set_title(title)
            panel.grid(False)
            _name_places(panel.set_xticks, names, rotation=90)
            _name_places(panel.set_yticks, names)
            panel.set(xlabel="training dataset", ylabel="dev set")
            panel.label_outer()
        for panel in axes[len(tables) :]:
            panel.set_visible(False)
        canvas.colorbar(image, ax=axes[: len(tables)], location="bottom", label="cosine of the gradients", aspect=40)

    return drawn(draw, 5.2 if len(tables) > 2 else 3.4)


def _name_places(set_ticks: Callable[..., Any], names: Sequence[str], **options: Any) -> None:
    """Names the places 0, 1, ... of an axis; of very many every second one, and so on."""
    every = max(1, math.ceil(len(names) / 130))
    labels = [drawable(name) for name in names[::every]]
    set_ticks(range(0, len(names), every), labels, fontsize=8 if len(names) <= 15 else 5, **options)


def _legend(canvas: Canvas, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    columns = max(1, min(4, 70 // (max(map(len, labels)) + 6)))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns)
