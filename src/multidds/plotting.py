"""A picture of a mixture that moves: its shares over the training, the rewards with their noise, dev losses, passes.

The only file of the core that imports matplotlib (extra: plot), and only when something is drawn. Without pyplot,
display or global state: what comes back is a Figure to save or to show in a notebook.
"""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from .history import Moment, moments_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .update import Update

# Okabe and Ito's colours, which colour-blind people can tell apart, and two more.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7b52ab", "#8c564b")
_OTHERS, _OTHERS_COLOUR = "all others", "#a0a0a0"
_MOST = len(_COLOURS)  # datasets with a band of their own
_LONGEST = 30  # characters of a name
_TITLES = {"reward": "reward", "dev_loss": "dev loss of the probes", "passes": "passes over each dataset"}


def plot(
    history: "Iterable[Update] | str | PathLike[str]", start: Mapping[str, float] | None = None, ink: str = "#1c1c1e"
) -> "Figure":
    """Draw what a mixture did over a training, as a matplotlib Figure: `.savefig("mixture.svg")` keeps it.

    history: updates (`balancer.history`, or what `.step()` returned); or the path of a run folder, of a Trainer's
        checkpoint or output folder, or of a log of Lightning's CSVLogger.
    start: the mixture at step 0, where the history does not know it; `balancer.plot()` does.
    ink: the colour of text and axes.

    Above are the shares; below, what else is known: rewards with their noise, dev losses, passes. With more than eight
    datasets those that moved most have a colour, and all others are one grey band.
    """
    moments = moments_of(history)
    if start is not None:
        moments = [Moment(0, {"mixture": dict(start)}), *moments]
    if not moments:
        raise ValueError("plot: there is no update to draw yet.")
    names = _movers(moments)
    below = [group for group in _TITLES if sum(group in moment.groups for moment in moments) > 1]
    return _drawn(moments, names, below, ink)


def _movers(moments: Sequence[Moment]) -> list[str]:
    """The datasets with a colour of their own, the largest at the end first."""
    shares = [moment.groups["mixture"] for moment in moments]
    moved = {name: max(one[name] for one in shares) - min(one[name] for one in shares) for name in shares[-1]}
    chosen = sorted(moved, key=lambda name: (-moved[name], name))[: _MOST if len(moved) > _MOST else None]
    return sorted(chosen, key=lambda name: (-shares[-1][name], name))


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
        "axes.facecolor": "none", "savefig.facecolor": "none",
    }  # fmt: skip
    with mpl.rc_context(style):
        figure = Figure(figsize=(7, 3.2 + 1.6 * len(below)), layout="constrained")
        heights = [3.0] + [1.5] * len(below)
        panels = figure.subplots(1 + len(below), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_shares(panels[0], moments, names)
        for panel, group in zip(panels[1:], below, strict=True):
            _draw_lines(panel, moments, group, names)
        panels[-1].set_xlabel("step")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper")
    return figure


def _draw_shares(panel: "Axes", moments: Sequence[Moment], names: Sequence[str]) -> None:
    """A stacked area. A mixture holds from its update on until the next one."""
    shares = [moment.groups["mixture"] for moment in moments]
    steps = [moment.step for moment in moments]
    bands = {_shown(name): [one[name] for one in shares] for name in names}
    colours = [*_COLOURS[: len(names)]]
    if len(names) < len(shares[-1]):
        bands[_OTHERS] = [1 - sum(one[name] for name in names) for one in shares]
        colours.append(_OTHERS_COLOUR)
    if len(steps) == 1:  # one moment has no width
        steps, bands = [0, max(1, steps[0])], {name: values * 2 for name, values in bands.items()}
    panel.stackplot(steps, list(bands.values()), labels=list(bands), colors=colours, step="post", linewidth=0)
    panel.set_xlim(steps[0], steps[-1])
    panel.set_ylim(0, 1)
    panel.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    panel.set_ylabel("share of the draws")


def _draw_lines(panel: "Axes", moments: Sequence[Moment], group: str, names: Sequence[str]) -> None:
    known = [moment for moment in moments if group in moment.groups]
    there = known[-1].groups[group]
    colour_of = dict(zip(names, _COLOURS, strict=False))
    mine = [name for name in names if name in there] or sorted(there)[:_MOST]  # dev sets may have names of their own
    for i, name in enumerate(mine):
        points = [(moment, moment.groups[group][name]) for moment in known if name in moment.groups[group]]
        steps, values = [moment.step for moment, _ in points], [value for _, value in points]
        colour = colour_of.get(name, _COLOURS[i])
        panel.plot(steps, values, color=colour, linewidth=1.4)
        if group == "reward":
            errors = [moment.groups.get("noise", {}).get(name, 0.0) for moment, _ in points]
            low, high = ([value + sign * e for value, e in zip(values, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.set_ylabel(_TITLES[group])
    panel.grid(alpha=0.2, linewidth=0.5)


def _shown(name: str) -> str:
    """A name as a label: matplotlib reads dollars as mathematics and leaves out what begins with an underscore."""
    short = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return short.replace("$", r"\$").lstrip("_") or "(no name)"
