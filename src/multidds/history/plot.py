"""A picture of a mixture that moves: its shares over the training, the rewards with their noise, dev losses, passes.

The only file of the core that imports matplotlib (extra: plot), and only when something is drawn. Without pyplot,
display or global state: what comes back is a Figure to save or to show in a notebook.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from .._base.text import percent, short
from .history import Moment, moments_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .update import Update

# Paul Tol's bright colours, which colour-blind people can tell apart, and two more: for light and dark backgrounds.
COLOURS = ("#4477aa", "#ee6677", "#44a06c", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#8c7bc6")
OTHERS, _OTHERS_COLOUR = "all others", "#a8acb3"
MOST = len(COLOURS)  # datasets with a band of their own
_TITLES = {
    "balance": "learned or drifted",
    "reward": "reward",
    "dev_loss": "dev loss of the probes",
    "passes": "passes over each dataset",
}
_FACTS = {  # of a moment: how they are drawn and called
    "signal": ("#8a8f98", ":", "signal: what is not noise"),
    "drift": (COLOURS[0], "-", "from the prior"),
    "unlearned": (COLOURS[3], "--", "without rewards"),
    "learned": (COLOURS[1], "-", "by rewards"),
}


def plot(
    history: "Iterable[Update] | str | PathLike[str]",
    start: Mapping[str, float] | None = None,
    ink: str = "#1c1c1e",
    panels: Sequence[str] | None = None,
) -> "Figure":
    """Draw what a mixture did over a training, as a matplotlib Figure: `.savefig("mixture.svg")` keeps it.

    history: updates (`balancer.history`, or what `.step()` returned); or the path of a run folder, of what
        `save_history` wrote, of a Trainer's checkpoint or output folder, or of a log of Lightning's CSVLogger.
    start: the mixture at step 0, where the history does not know it; `balancer.plot()` does.
    ink: the colour of text and axes.
    panels: which of "balance", "reward", "dev_loss" and "passes" to draw below the shares; None: all that is known.

    Above are the shares, with the prior to their left where it is another one. Below is what else is known: how far
    the mixture is from its prior and what of that is learned (total variation), rewards with their noise, dev losses,
    passes. With more than eight datasets those that moved most have a colour, and all others are one grey band.
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
    return _drawn(moments, top_movers(moments), below, ink)


def top_movers(moments: Sequence[Moment], most: int = MOST) -> list[str]:
    """The datasets with a colour of their own, the largest at the end first."""
    names = dict.fromkeys(name for moment in moments for name in moment.mixture)
    series = {name: shares_of(moments, name) for name in names}
    moved = {name: max(values) - min(values) for name, values in series.items()}
    chosen = sorted(moved, key=lambda name: (-moved[name], name))[: most if len(moved) > most else None]
    return sorted(chosen, key=lambda name: (-series[name][-1], name))


def shares_of(moments: Sequence[Moment], name: str) -> list[float]:
    """Its share at every moment. One that a log has left out has hardly moved: the share before, or else the next. One
    that is not in a whole mixture was not there: 0.
    """
    found = [m.mixture[name] if name in m.mixture else _left_out(m.mixture) for m in moments]
    last = next((share for share in found if share is not None), 0.0)
    values = []
    for share in found:
        last = last if share is None else share
        values.append(last)
    return values


def _left_out(mixture: Mapping[str, float]) -> float | None:
    """The share of a dataset that is not in a mixture; None: not known."""
    return 0.0 if sum(mixture.values()) > 1 - 1e-6 else None


def _drawn(moments: Sequence[Moment], names: Sequence[str], below: Sequence[str], ink: str) -> "Figure":
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot: it takes matplotlib: pip install 'multidds[plot]'.") from None
    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "multidds", "font.size": 9, "axes.spines.top": False,
        "axes.spines.right": False, "legend.frameon": False, "text.color": ink, "axes.edgecolor": ink,
        "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "figure.facecolor": "none",
        "axes.facecolor": "none", "savefig.facecolor": "none", "axes.linewidth": 0.6, "xtick.major.width": 0.6,
        "ytick.major.width": 0.6, "legend.fontsize": 8,
    }  # fmt: skip
    prior = next((moment.prior for moment in moments if moment.prior), {})
    if not prior or _same(prior, moments[0].mixture):
        prior = {}
    with mpl.rc_context(style):
        figure = Figure(figsize=(7.4, 3.2 + 1.6 * len(below)), layout="constrained")
        grid = figure.add_gridspec(
            1 + len(below), 2, width_ratios=[0.05 if prior else 0.001, 1], height_ratios=[3.0] + [1.5] * len(below)
        )
        panels = [figure.add_subplot(grid[0, 1])]
        panels += [figure.add_subplot(grid[i + 1, 1], sharex=panels[0]) for i in range(len(below))]
        _draw_shares(panels[0], moments, names, prior)
        if prior:
            _draw_prior(figure.add_subplot(grid[0, 0], sharey=panels[0]), prior, names)
            panels[0].tick_params(labelleft=False)
        else:
            panels[0].set_ylabel("share of the draws")
        for panel, group in zip(panels[1:], below, strict=True):
            if group == "balance":
                _draw_facts(panel, moments)
            else:
                _draw_lines(panel, moments, group, names)
        for panel in panels[:-1]:
            panel.tick_params(labelbottom=False)
        panels[-1].set_xlabel("step")
    return figure


def _bands(moments: Sequence[Moment], names: Sequence[str]) -> dict[str, list[float]]:
    bands = {name: shares_of(moments, name) for name in names}
    rest = [max(0.0, 1 - sum(values[i] for values in bands.values())) for i in range(len(moments))]
    if max(len(moment.mixture) for moment in moments) > len(names) or max(rest) > 1e-3:
        bands[OTHERS] = rest
    return bands


def _colours(count: int) -> list[str]:
    return [*COLOURS[: min(count, MOST)], _OTHERS_COLOUR]


def _draw_shares(panel: "Axes", moments: Sequence[Moment], names: Sequence[str], prior: Mapping[str, float]) -> None:
    """A stacked area, named at its right end. A mixture holds from its update on until the next one."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    bands = _bands(moments, names)
    began = {name: prior.get(name, values[0]) for name, values in bands.items()}
    if prior and OTHERS in bands:
        began[OTHERS] = max(0.0, 1 - sum(share for name, share in began.items() if name != OTHERS))
    steps = [moment.step for moment in moments]
    if len(steps) == 1:  # one moment has no width
        steps, bands = [0, max(1, steps[0])], {name: values * 2 for name, values in bands.items()}
    labels = [_shown(name) for name in bands]
    colours = _colours(len(names))
    panel.stackplot(steps, list(bands.values()), labels=labels, colors=colours, step="post", linewidth=0, alpha=0.9)
    limit = _limit(bands)
    panel.set_xlim(steps[0], steps[-1])
    panel.set_ylim(0, limit)
    panel.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    panel.spines["left"].set_visible(False)
    middles = [(top - size / 2) / limit for top, size in _tops([values[-1] for values in bands.values()])]
    places = _spread([min(middle, 1.0) for middle in middles])
    for (name, values), place, label, colour in zip(bands.items(), places, labels, colours, strict=False):
        first, last = percent(began[name], values[-1])
        told = f"{label}  {last}%" if first == last else f"{label}  {first}→{last}%"
        told += ", cut off here" if name == OTHERS and limit < 1 else ""
        panel.annotate("■", (1, place), (6, 0), "axes fraction", "offset points", va="center", color=colour, fontsize=8)
        panel.annotate(told, (1, place), (16, 0), "axes fraction", "offset points", va="center", fontsize=8.5)


def _limit(bands: Mapping[str, Sequence[float]]) -> float:
    """Where the axis of shares ends: at 1, or lower where what is named would be a thin line under all others."""
    named = [sum(shares) for shares in zip(*(band for name, band in bands.items() if name != OTHERS), strict=True)]
    return 1.0 if OTHERS not in bands or max(named) > 0.4 else 1.3 * max(named)


def _draw_prior(panel: "Axes", prior: Mapping[str, float], names: Sequence[str]) -> None:
    """One column: what the training was given, before it moved to a plan."""
    bottom = 0.0
    rest = max(0.0, 1 - sum(prior.get(name, 0.0) for name in names))
    for share, colour in zip([*(prior.get(name, 0.0) for name in names), rest], _colours(len(names)), strict=False):
        panel.bar([0], [share], 1.0, bottom, color=colour, linewidth=0, alpha=0.9)
        bottom += share
    panel.set_xlim(-0.5, 0.5)
    panel.set_xticks([0], ["prior"])
    panel.tick_params(length=0, axis="x", pad=7)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _draw_facts(panel: "Axes", moments: Sequence[Moment]) -> None:
    for fact, (colour, style, label) in _FACTS.items():
        points = [(moment.step, moment.facts[fact]) for moment in moments if fact in moment.facts]
        if points:
            panel.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.4, label=label)
    panel.set_ylim(0, 1.02)
    panel.set_ylabel(_TITLES["balance"])
    panel.grid(alpha=0.2, linewidth=0.5)
    panel.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handlelength=1.4)


def _draw_lines(panel: "Axes", moments: Sequence[Moment], group: str, names: Sequence[str]) -> None:
    known = [moment for moment in moments if group in moment.groups]
    there = known[-1].groups[group]
    colour_of = dict(zip(names, COLOURS, strict=False))
    shared = any(name in colour_of for name in there)
    mine = [name for name in names if name in there] if shared else sorted(there)[:MOST]
    for i, name in enumerate(mine[:MOST]):
        points = [(moment, moment.groups[group][name]) for moment in known if name in moment.groups[group]]
        steps, values = [moment.step for moment, _ in points], [value for _, value in points]
        colour = colour_of.get(name, COLOURS[i])
        panel.plot(steps, values, color=colour, linewidth=1.4, label=None if shared else _shown(name))
        if group == "reward":
            errors = [moment.groups.get("noise", {}).get(name, 0.0) for moment, _ in points]
            low, high = ([value + sign * e for value, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
    panel.set_ylabel(_TITLES[group])
    panel.grid(alpha=0.2, linewidth=0.5)
    if not shared:  # dev sets with names of their own
        panel.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), handlelength=1.4)


def _tops(sizes: Sequence[float]) -> list[tuple[float, float]]:
    """[(upper end, size)] of bands that lie on each other."""
    top, found = 0.0, []
    for size in sizes:
        top += size
        found.append((top, size))
    return found


def _spread(places: Sequence[float], least: float = 0.066) -> list[float]:
    """The places of labels, moved apart so far that they can be read, all within 0 to 1 as long as there is room."""
    moved = list(places)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + least)
    ceiling = max(1.0, (len(moved) - 1) * least)
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling - (len(moved) - 1 - i) * least)
    return moved


def _same(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    return all(abs(share - other.get(name, share)) < 1e-6 for name, share in one.items())


def _shown(name: str) -> str:
    """A name as a label: matplotlib reads dollars as mathematics and leaves out what begins with an underscore."""
    return short(name, 30).replace("$", r"\$").lstrip("_") or "(no name)"
