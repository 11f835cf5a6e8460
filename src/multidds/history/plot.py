"""Pictures of a mixture over a training: shares, rewards with their noise, dev losses, passes.

Imports matplotlib (extra: plot) only when something is drawn, without pyplot, display or global state.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from .._base.text import percent, short
from .history import Moment, moments_of, shares_of, top_movers
from .update import Update

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's bright colours, which colour-blind people can tell apart, and two more: for light and dark backgrounds.
COLOURS = ("#4477aa", "#ee6677", "#44a06c", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#8c7bc6")
OTHERS = "all others"
_OTHERS_COLOUR = "#a8acb3"
_TITLES = {
    "balance": "draws\nmoved by",
    "reward": "reward",
    "dev_loss": "dev loss\n(probes)",
    "passes": "passes",
}
_FACTS = {  # {fact: (colour, line, label)}
    "signal": ("#8a8f98", ":", "signal in the evidence"),
    "drift": (COLOURS[0], "-", "both"),
    "unlearned": (COLOURS[3], "--", "the plan"),
    "learned": (COLOURS[1], "-", "learning"),
}
_LABEL_HEIGHT = 0.066  # of the upper panel: the least distance of two labels


def plot(
    history: Iterable[Update] | str | PathLike[str],
    start: Mapping[str, float] | None = None,
    ink: str = "#1c1c1e",
    panels: Sequence[str] | None = None,
) -> "Figure":
    """Draws a mixture over a training as a matplotlib Figure: `.savefig("mixture.svg")` keeps it.

    history: updates (`balancer.history`, or those that `.step()` returned); or the path of a run folder, of what
        `save_history` wrote, of a Trainer's checkpoint or output folder, or of a log of Lightning's CSVLogger.
    start: the mixture at step 0, if the history does not have it; `balancer.plot()` gives it.
    ink: the colour of text and axes.
    panels: those of "balance", "reward", "dev_loss" and "passes" to draw below the shares; None: all that are known.

    Above are the shares, with the prior to their left if it is another one. Below are the distance of the mixture from
    its prior and its learned part (total variation), rewards with their noise, dev losses and passes. With more than
    eight datasets those that moved most have a colour, and all others are one grey band.
    """
    moments = moments_of(history)
    if start is not None and (not moments or moments[0].step > 0):
        moments = [Moment(0, {"mixture": dict(start)}), *moments]
    if not moments:
        raise ValueError("plot: there is no update to draw yet.")
    if panels is not None and (unknown := [panel for panel in panels if panel not in _TITLES]):
        raise ValueError(f"plot: panels must be among {', '.join(_TITLES)}, but one is {unknown[0]!r}.")
    known = {group: sum(group in moment.groups for moment in moments) for group in _TITLES}
    known["balance"] = sum(bool(moment.facts) for moment in moments)
    below = [group for group in (_TITLES if panels is None else panels) if known[group] > 1]
    try:
        import matplotlib as mpl
    except ImportError:
        raise ImportError("plot: it takes matplotlib: pip install 'multidds[plot]'.") from None
    settings: Any = style(ink)
    settings |= dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6)
    with mpl.rc_context(settings):
        return _draw(moments, top_movers(moments, len(COLOURS)), below)


def style(ink: str) -> dict[str, Any]:
    """Returns the settings of matplotlib that all figures share: plain axes in one colour, text that stays text.

    ink: the colour of text and axes.
    """
    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    transparent = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    return {
        **dict.fromkeys(coloured, ink),
        **dict.fromkeys(transparent, "none"),
        "svg.fonttype": "none",
        "svg.hashsalt": "multidds",
        "pdf.fonttype": 42,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }


def _draw(moments: Sequence[Moment], names: Sequence[str], below: Sequence[str]) -> "Figure":
    from matplotlib.figure import Figure

    prior = next((moment.prior for moment in moments if moment.prior), {})
    first = moments[0].mixture
    if all(abs(share - first.get(name, share)) < 1e-6 for name, share in prior.items()):
        prior = {}
    rows = 1 + len(below)
    figure = Figure(figsize=(7.4, 3.2 + 1.6 * len(below)), layout="constrained")
    widths, heights = [0.05 if prior else 0.001, 1], [3.0] + [1.5] * len(below)
    grid = figure.add_gridspec(rows, 2, width_ratios=widths, height_ratios=heights)
    shares = figure.add_subplot(grid[0, 1])
    panels = [shares, *(figure.add_subplot(grid[row, 1], sharex=shares) for row in range(1, rows))]
    _draw_shares(shares, moments, names, prior)
    if prior:
        _draw_prior(figure.add_subplot(grid[0, 0], sharey=shares), prior, names)
        shares.tick_params(labelleft=False)
    else:
        shares.set_ylabel("share of the draws")
    for panel, group in zip(panels[1:], below, strict=True):
        if group == "balance":
            _draw_facts(panel, moments)
        else:
            _draw_lines(panel, moments, group, names)
        panel.set_ylabel(_TITLES[group])
        panel.grid(alpha=0.2, linewidth=0.5)
    for panel in panels[:-1]:
        panel.tick_params(labelbottom=False)
    panels[-1].set_xlabel("step")
    return figure


def _draw_shares(panel: "Axes", moments: Sequence[Moment], names: Sequence[str], prior: Mapping[str, float]) -> None:
    """Draws a stacked area, labelled at its right end. A mixture is in effect from its update until the next one."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    bands = bands_of(moments, names)
    starts = {name: prior.get(name, values[0]) for name, values in bands.items()}
    if prior and OTHERS in bands:
        starts[OTHERS] = max(0.0, 1 - sum(share for name, share in starts.items() if name != OTHERS))
    steps = [moment.step for moment in moments]
    if len(steps) == 1:  # one moment has no width
        steps, bands = [0, max(1, steps[0])], {name: values * 2 for name, values in bands.items()}
    labels = [_label(name) for name in bands]
    colours = _colours(names)
    panel.stackplot(steps, list(bands.values()), labels=labels, colors=colours, step="post", linewidth=0, alpha=0.9)
    limit = limit_of(bands)
    panel.set_xlim(steps[0], steps[-1])
    panel.set_ylim(0, limit)
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    panel.spines["left"].set_visible(False)
    top, middles = 0.0, []
    for values in bands.values():
        top += values[-1]
        middles.append(min((top - values[-1] / 2) / limit, 1.0))
    rows = zip(bands.items(), _spread(middles), labels, colours, strict=False)
    for (name, values), height, label, colour in rows:
        first, last = percent(starts[name], values[-1])
        text = f"{label}  {last}%" if first == last else f"{label}  {first}→{last}%"
        if name == OTHERS and limit < 1:
            text += ", cut off here"
        panel.annotate(
            "■", (1, height), (6, 0), "axes fraction", "offset points", va="center", color=colour, fontsize=8
        )
        panel.annotate(text, (1, height), (16, 0), "axes fraction", "offset points", va="center", fontsize=8.5)


def bands_of(moments: Sequence[Moment], names: Sequence[str]) -> dict[str, list[float]]:
    """Returns {name: share at every moment} of these datasets and, if there are more, of all others together."""
    bands = {name: shares_of(moments, name) for name in names}
    rest = [max(0.0, 1 - sum(shares)) for shares in zip(*bands.values(), strict=True)]
    if max(len(moment.mixture) for moment in moments) > len(names) or max(rest) > 1e-3:
        bands[OTHERS] = rest
    return bands


def limit_of(bands: Mapping[str, Sequence[float]]) -> float:
    """Returns the end of the axis of shares: 1, or less if the named datasets would be a thin line below the others."""
    named = [sum(shares) for shares in zip(*(band for name, band in bands.items() if name != OTHERS), strict=True)]
    return 1.0 if OTHERS not in bands or max(named) > 0.4 else 1.3 * max(named)


def _spread(heights: Sequence[float]) -> list[float]:
    """Returns heights of labels, moved apart until they can be read; within 0 to 1 if there is room."""
    moved = list(heights)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + _LABEL_HEIGHT)
    ceiling = max(1.0, (len(moved) - 1) * _LABEL_HEIGHT)
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling - (len(moved) - 1 - i) * _LABEL_HEIGHT)
    return moved


def _draw_prior(panel: "Axes", prior: Mapping[str, float], names: Sequence[str]) -> None:
    """Draws one column: the mixture that the training was given, before it moved to a plan."""
    shares = [prior.get(name, 0.0) for name in names]
    bottom = 0.0
    for share, colour in zip([*shares, max(0.0, 1 - sum(shares))], _colours(names), strict=True):
        panel.bar([0], [share], 1.0, bottom, color=colour, linewidth=0, alpha=0.9)
        bottom += share
    panel.set_xlim(-0.5, 0.5)
    panel.set_xticks([0], ["prior"])
    panel.tick_params(length=0, axis="x", pad=7)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _draw_facts(panel: "Axes", moments: Sequence[Moment]) -> None:
    for fact, (colour, line, label) in _FACTS.items():
        points = [(moment.step, moment.facts[fact]) for moment in moments if fact in moment.facts]
        if points:
            panel.plot(*zip(*points, strict=True), line, color=colour, linewidth=1.4, label=label)
    panel.set_ylim(0, 1.02)
    panel.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handlelength=1.4)


def _draw_lines(panel: "Axes", moments: Sequence[Moment], group: str, names: Sequence[str]) -> None:
    """Draws a line for each dataset in its colour; dev sets with names of their own get a legend."""
    known = [moment for moment in moments if group in moment.groups]
    there = known[-1].groups[group]
    colours = dict(zip(names, COLOURS, strict=False))
    drawn = [name for name in names if name in there]
    if not drawn:
        drawn = sorted(there)[: len(COLOURS)]
        colours = dict(zip(drawn, COLOURS, strict=False))
    for name in drawn:
        points = [(moment, moment.groups[group][name]) for moment in known if name in moment.groups[group]]
        steps, values = [moment.step for moment, _ in points], [value for _, value in points]
        panel.plot(steps, values, color=colours[name], linewidth=1.4, label=_label(name))
        if group == "reward":
            errors = [moment.groups.get("noise", {}).get(name, 0.0) for moment, _ in points]
            low, high = ([value + sign * e for value, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(steps, low, high, color=colours[name], alpha=0.18, linewidth=0)
    if not any(name in names for name in drawn):
        panel.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handlelength=1.4)


def _colours(names: Sequence[str]) -> list[str]:
    return [*COLOURS[: len(names)], _OTHERS_COLOUR]


def _label(name: str) -> str:
    """Returns a name as a label: matplotlib reads dollars as mathematics and hides names that begin with '_'."""
    return short(name, 30).replace("$", r"\$").lstrip("_") or "(no name)"
