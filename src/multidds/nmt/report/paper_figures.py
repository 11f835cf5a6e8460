"""The figures of a report: every figure of the paper, and some that it lacks.

What is drawn is here, how it is drawn for papers in drawing.py and for the page in charts.py. One without a canvas has
nothing to draw.
"""

import math
import re
import statistics
from collections.abc import Iterator

from multidds.history import evenly

from ..common.escaping import drawable
from . import charts
from .drawing import (
    COLOURS,
    INK,
    MANY,
    MARKS,
    POINTS,
    Canvas,
    Figure,
    colour_bar,
    draw_series,
    drawn,
    legend,
    name_rows,
    over_steps,
)
from .runs import REWARDS, Run, Setting
from .tables import main_method

WINDOW = 10  # updates


def figures_of(setting: Setting) -> Iterator[Figure]:
    """All figures of one setting, the most telling first."""
    chosen = main_method(setting)
    main = next(iter(_first(setting, chosen)), None)
    others = [label for label in reversed(setting.labels) if label != chosen and setting.of(label)[0].learned]
    shown = [run for label in (chosen, *others) for run in _first(setting, label)]
    yield from (usage(setting, run) for run in shown[:4])
    yield usage_of_both(setting)
    yield passes_over_datasets(setting)
    yield mean_measure(setting, "dev_loss", "dev loss", "Per token, without label smoothing")
    yield mean_measure(setting, "expected_accuracy", "expected accuracy", "Mean probability of the correct token")
    for run in [main, *_first(setting, setting.best_baseline)] if main else _first(setting, setting.labels[0]):
        yield dev_losses(setting, run)
    for run in shown[:2]:
        yield rewards(setting, run)
        yield reward_variance(setting, run)
    if main is not None:
        yield alignment(setting, main)
    yield priority_differences(setting)
    yield cost(setting)


def usage(setting: Setting, run: Run) -> Figure:
    key = f"usage.{setting.name}.{_slug(run.label)}"
    title = f"{setting.name}: dataset usage, {run.label}"
    caption = f"Share of each language pair in the training draws, by step. Seed {run.seed}."
    mixtures = run.mixtures
    if not run.updates:
        return Figure(key, title, "No update of the mixture has been recorded yet.", None)
    steps = [step for step, _ in mixtures]
    series = {name: [100 * mixture[name] for _, mixture in mixtures] for name in run.names}
    return Figure(key, title, caption, over_steps(steps, series, "share of draws (%)", held=True))


def usage_of_both(setting: Setting) -> Figure:
    key, title = f"usage-both.{setting.name}", f"{setting.name}: usage of MultiDDS against MultiDDS-S"
    labels = [setting.learned_with(method) for method in ("multidds", "multidds-s")]
    runs = [run for label in labels for run in _first(setting, label) if run.updates]
    if len(runs) < 2:
        return Figure(key, title, "It takes a run with MultiDDS and one with MultiDDS-S.", None)

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots(2, 1, sharex=True, sharey=True)
        for panel, run in zip(axes, runs, strict=True):
            mixtures = run.mixtures
            steps = [step for step, _ in mixtures]
            series = {name: [100 * mixture[name] for _, mixture in mixtures] for name in run.names}
            image = draw_series(panel, steps, series, held=True)
            panel.set_title(drawable(run.label))
            panel.set_ylabel("share of draws (%)" if image is None else "language pair")
        axes[1].set_xlabel("step")
        if len(setting.pairs) <= MANY:
            legend(canvas, axes[0])
        else:
            colour_bar(canvas, axes[1], image, "share of draws (%)")

    return Figure(key, title, "The same data and settings with either reward.", drawn(draw, 5.0, len(setting.pairs), 2))


def rewards(setting: Setting, run: Run) -> Figure:
    key = f"rewards.{setting.name}.{_slug(run.label)}"
    title = f"{setting.name}: rewards by step, {run.label}"
    kept = run.alignments
    if not kept:
        if not run.updates:
            return Figure(key, title, "No update of the mixture has been recorded yet.", None)
        steps = [record.step for record in run.updates]
        series = {name: [record.reward[name] for record in run.updates] for name in run.names}
        caption = "The reward that this run used; the other one needs the alignment table ([mixture] sketch)."
        return Figure(key, title, caption, over_steps(steps, series, "reward"))
    steps = [step for step, _ in kept]

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots(2, 1, sharex=True)
        for panel, reward in zip(axes, REWARDS, strict=True):
            series = {name: [table.rewards[reward][name] for _, table in kept] for name in run.names}
            image = draw_series(panel, steps, series)
            panel.set_title(f"{REWARDS[reward]} reward")
            panel.set_ylabel("reward" if image is None else "language pair")
            if image is not None:
                colour_bar(canvas, panel, image, "reward")
        axes[1].set_xlabel("step")
        if len(setting.pairs) <= MANY:
            legend(canvas, axes[0])

    caption = f"Both rewards of every update, whichever the run used. Seed {run.seed}."
    return Figure(key, title, caption, drawn(draw, 5.0, len(setting.pairs), 2))


def reward_variance(setting: Setting, run: Run) -> Figure:
    key = f"reward-variance.{setting.name}.{_slug(run.label)}"
    title = f"{setting.name}: variance of the rewards, {run.label}"
    found = {reward: variances(run, reward) for reward in REWARDS}
    if not any(within for within, _ in found.values()):
        return Figure(key, title, "It takes two updates with an alignment table ([mixture] sketch).", None)

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for colour, (reward, (within, over)) in zip(COLOURS, found.items(), strict=False):
            for points, style, what in ((within, "-", "between datasets"), (over, "--", f"over {WINDOW} updates")):
                if points:
                    steps, values = zip(*points, strict=True)
                    panel.plot(steps, values, style, color=colour, label=f"{REWARDS[reward]}, {what}")
        panel.set_yscale("log")
        panel.set_xlabel("step")
        panel.set_ylabel("variance")
        legend(canvas, panel, 2)

    caption = (
        f"Between datasets: the variance over the datasets within an update. Over {WINDOW} updates: the variance of a "
        f"dataset's reward over a window of {WINDOW} updates, averaged over the datasets."
    )
    series = {
        f"{REWARDS[reward]}, {what}": [(float(step), value) for step, value in points]
        for reward, both in found.items()
        for points, what in zip(both, ("between datasets", f"over {WINDOW} updates"), strict=True)
        if points
    }
    return Figure(key, title, caption, drawn(draw), charts.lines(series, "variance", title))


def variances(run: Run, reward: str) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """(step, variance over datasets) and (step, mean over datasets of the variance over a window of updates)."""
    kept = [(step, table.rewards[reward]) for step, table in run.alignments]
    within = [(step, statistics.variance(found.values())) for step, found in kept if len(run.names) > 1]
    over = []
    for end in range(WINDOW, len(kept) + 1):
        window = kept[end - WINDOW : end]
        of_each = [statistics.variance(found[name] for _, found in window) for name in run.names]
        over.append((window[-1][0], statistics.fmean(of_each)))
    return within, over


def mean_measure(setting: Setting, measure: str, called: str, caption: str) -> Figure:
    key, title = f"{measure.replace('_', '-')}.{setting.name}", f"{setting.name}: mean {called}"
    runs = [run for label in setting.labels for run in setting.of(label)[:1] if run.validations]
    if not runs:
        return Figure(key, title, "No run has been validated yet.", None)

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for i, run in enumerate(runs):
            points = evenly([(record.step, record.means[measure]) for record in run.validations], POINTS)
            steps, values = zip(*points, strict=True)
            mark = MARKS[i % len(MARKS)] if len(points) < 15 else None
            panel.plot(steps, values, color=COLOURS[i % MANY], marker=mark, markersize=3.5, label=drawable(run.label))
        panel.set_xlabel("step")
        panel.set_ylabel(f"mean {called}")
        legend(canvas, panel, 2)

    series = {run.label: [(float(r.step), r.means[measure]) for r in run.validations] for run in runs}
    chart = charts.lines(series, f"mean {called}", title)
    return Figure(key, title, f"{caption}, averaged over the dev sets; first seeds.", drawn(draw), chart)


def dev_losses(setting: Setting, run: Run) -> Figure:
    key, title = (
        f"dev-losses.{setting.name}.{_slug(run.label)}",
        f"{setting.name}: dev loss per language pair, {run.label}",
    )
    if not run.validations:
        return Figure(key, title, "The run has not been validated yet.", None)
    steps = [record.step for record in run.validations]
    series = {name: [record.dev_loss[name] for record in run.validations] for name in run.names}
    return Figure(key, title, "Per token, without label smoothing.", over_steps(steps, series, "dev loss"))


def passes_over_datasets(setting: Setting) -> Figure:
    key, title = f"passes.{setting.name}", f"{setting.name}: passes over each dataset"
    runs = [run for label in setting.labels for run in setting.of(label)[:1] if run.validations][:MANY]
    if not runs:
        return Figure(key, title, "No run has been validated yet.", None)
    order = sorted(setting.pairs, key=lambda pair: float(runs[0].facts["pairs"][pair]["train"]["pairs"]))

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for i, run in enumerate(runs):
            last = run.validations[-1].passes
            panel.plot([last[pair] for pair in order], range(len(order)), MARKS[i], color=COLOURS[i], markersize=4,
                       label=drawable(run.label))  # fmt: skip
        panel.set_xscale("log")
        name_rows(panel, order)
        panel.set_xlabel("passes at the end of the run")
        panel.set_ylabel("language pair, smallest first")
        legend(canvas, panel, 2)

    caption = "How often each training set has been gone through, the smallest first; first seeds."
    last_passes = {run.label: run.validations[-1].passes for run in runs}
    chart = charts.dots(order, last_passes, "passes at the end of the run", title, log=True)
    return Figure(key, title, caption, drawn(draw, max(3.2, 0.15 * len(order) + 1.4)), chart)


def alignment(setting: Setting, run: Run) -> Figure:
    key = f"alignment.{setting.name}.{_slug(run.label)}"
    title = f"{setting.name}: alignment of training and dev gradients, {run.label}"
    kept = run.alignments
    if not kept:
        return Figure(key, title, "There is no alignment table; set [mixture] sketch, 65536 say.", None)
    places = sorted({round(i * (len(kept) - 1) / 3) for i in range(4)})
    shown = [kept[i] for i in places]
    size = len(setting.pairs)
    highest = max(abs(value) for _, table in shown for row in table.cosines for value in row) or 1.0

    def draw(canvas: Canvas) -> None:
        columns = 2 if len(shown) > 1 else 1
        axes = canvas.subplots(math.ceil(len(shown) / columns), columns, sharex=True, sharey=True, squeeze=False).flat
        image = None
        for panel, (step, table) in zip(axes, shown, strict=False):
            image = panel.imshow(table.cosines, cmap="RdBu", vmin=-highest, vmax=highest, interpolation="nearest")
            panel.set_title(f"step {step:,}")
            panel.grid(False)
            every = max(1, math.ceil(size / 25))
            small = 7 if size <= 12 else 5
            names = [drawable(name) for name in setting.pairs[::every]]
            panel.set_xticks(range(0, size, every), names, rotation=90, fontsize=small)
            panel.set_yticks(range(0, size, every), names, fontsize=small)
            panel.label_outer()
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("dev set")
            if panel.get_subplotspec().is_last_row():
                panel.set_xlabel("training dataset")
        for panel in list(axes)[len(shown) :]:
            panel.set_visible(False)
        colour_bar(canvas, [panel for panel in canvas.axes if panel.get_visible()], image, "cosine of the gradients")

    caption = f"Which training set helps which dev set, at {len(shown)} of {len(kept)} updates: blue helps, red harms."
    return Figure(key, title, caption, drawn(draw, 5.2 if len(shown) > 2 else 3.4))


def priority_differences(setting: Setting) -> Figure:
    key, title = f"priorities.{setting.name}", f"{setting.name}: BLEU of low and high priority against regular"
    others = setting.by_priority()
    regular = others.pop("regular")
    runs = {name: setting.scored(label)[0] for name, label in others.items() if label and setting.scored(label)}
    if regular is None or not setting.scored(regular) or not runs:
        return Figure(
            key, title, "It takes scored runs of one method with regular and with low or high priority.", None
        )
    base = setting.scored(regular)[0]
    perplexity = base.best.perplexity if base.best else {}
    ordered = sorted(setting.pairs, key=lambda pair: -perplexity.get(pair, 0.0))

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for i, (name, run) in enumerate(runs.items()):
            differences = [(run.bleu_of(pair) or 0.0) - (base.bleu_of(pair) or 0.0) for pair in ordered]
            places = [place + (i - 0.5) * 0.38 for place in range(len(ordered))]
            panel.barh(places, differences, 0.36, color=COLOURS[i], label=f"{name} - regular")
        panel.axvline(0, color=INK, linewidth=0.8)
        name_rows(panel, ordered)
        panel.invert_yaxis()
        panel.set_xlabel("difference in BLEU")
        panel.set_ylabel("language pair, worst perplexity first")
        legend(canvas, panel, 2)

    caption = "Ordered by the dev perplexity of the regular run's best model; the first seeds."
    gains = {
        f"{name} - regular": {pair: (run.bleu_of(pair) or 0.0) - (base.bleu_of(pair) or 0.0) for pair in ordered}
        for name, run in runs.items()
    }
    chart = charts.dots(ordered, gains, "difference in BLEU", title)
    return Figure(key, title, caption, drawn(draw, max(3.2, 0.15 * len(ordered) + 1.4)), chart)


def cost(setting: Setting) -> Figure:
    key, title = f"cost.{setting.name}", f"{setting.name}: BLEU against the cost of balancing"
    points = [
        (label, 100 * statistics.fmean(costs), mean)
        for label in setting.labels
        if (mean := setting.mean_bleu(label)) is not None
        and (costs := [run.overhead for run in setting.scored(label) if run.overhead is not None])
    ]
    if not points:
        return Figure(key, title, "No run has been scored yet.", None)

    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for i, (label, spent, bleu) in enumerate(points):
            panel.plot(
                [spent], [bleu], MARKS[i % len(MARKS)], color=COLOURS[i % MANY], label=drawable(label), markersize=6
            )
        panel.margins(0.15)
        panel.set_xlabel("seconds of updates, in % of the seconds of training steps")
        panel.set_ylabel("average BLEU")
        legend(canvas, panel, 2)

    rows = {f"{label}: {bleu:.2f} BLEU": spent for label, spent, bleu in points}
    chart = charts.dots(list(rows), {"updates": rows}, "seconds of updates, in % of the seconds of steps", title)
    return Figure(key, title, "Means over seeds where there are several.", drawn(draw), chart)


def _first(setting: Setting, label: str | None) -> list[Run]:
    return setting.of(label)[:1] if label is not None else []


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()
