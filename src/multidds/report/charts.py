"""Charts of the page as plain SVG and HTML: areas, lines, dots and heat maps, with their values for the page's script.

Only the drawing stretches with the page; text is text of the page, so that it has the same size on a phone and on a
wide screen. Pure functions from numbers to markup; names are escaped here.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from markupsafe import Markup, escape

from ..history import COLOURS, OTHERS, evenly

Points: TypeAlias = Sequence[tuple[float, float]]
Series: TypeAlias = Mapping[str, Points]
Estimate: TypeAlias = tuple[float, float | None]  # a value and its standard error

GREY = "#9aa0a8"
MOST = len(COLOURS)  # series of a chart
_POINTS = 240  # of a line; more cannot be seen
_TABLES = 60  # of a heat map, for its slider
_WIDTH, _HEIGHT = 1000, 400  # of the drawing's own coordinates


def area(
    steps: Sequence[float],
    bands: Mapping[str, Sequence[float]],
    prior: Mapping[str, float],
    title: str,
    limit: float = 1.0,
) -> Markup:
    """Returns shares on top of each other, and before them the prior as a column. A mixture holds until the next one.

    bands: {name: share at every step}.
    prior: {name: share}; empty: there is no column.
    limit: the end of the axis, for shares that are small.
    """
    kept = evenly(range(len(steps)), _POINTS)
    xs = [steps[i] for i in kept] if len(steps) > 1 else [0, max(1, steps[0])]
    values = {name: [band[i] for i in kept] if len(steps) > 1 else [band[0]] * 2 for name, band in bands.items()}
    colours, place = colours_of(bands), _placed(xs[0], xs[-1], 0, limit)
    below, paths = [0.0] * len(xs), []
    for name, band in values.items():
        above = [low + share for low, share in zip(below, band, strict=True)]
        corners = [*_stairs(xs, above), *reversed(_stairs(xs, below))]
        paths.append(f'<path fill="{colours[name]}" d="{_path(map(place, corners))}Z"/>')
        below = above
    starts = {name: prior.get(name, band[0]) for name, band in values.items()}
    if prior and OTHERS in bands:
        starts[OTHERS] = 1 - sum(share for name, share in starts.items() if name != OTHERS)
    legend = {name: f"{percent(starts[name])} → {percent(band[-1])}" for name, band in values.items()}
    data = {"x": xs, "low": xs[0], "held": True, "percent": True, "series": _series(values, colours)}
    column = [(colours[name], starts[name] / limit) for name in bands] if prior else []
    axes = _y_axis(0, limit, percent) + _x_axis(xs[0], xs[-1], "step")
    return _framed("area", title, "share of the draws", paths, axes, legend, colours, data, column)


def lines(
    series: Series,
    what: str,
    title: str,
    noise: Mapping[str, Sequence[float]] | None = None,
    between: tuple[float, float] | None = None,
    colours: Mapping[str, str] | None = None,
    first: float | None = None,
    shares: bool = False,
) -> Markup:
    """Returns one line for each of the series.

    series: {name: [(step, value), ...]}.
    what: the y axis.
    noise: {name: standard error at every step}, drawn as a band.
    between: the ends of the y axis; None: those of the values.
    colours: {name: colour}, if others have chosen them.
    first: the beginning of the x axis; None: that of the values.
    shares: whether values are shares, to be shown in per cent.
    """
    colours = colours_of(series) | dict(colours or {})
    shown = {name: evenly(points, _POINTS) for name, points in series.items() if points}
    errors = {name: evenly(noise[name], _POINTS) for name in shown if noise and name in noise}
    bands = {  # [(x, upper), ...] and [(x, lower), ...] of each
        name: [[(x, y + sign * e) for (x, y), e in zip(shown[name], of, strict=True)] for sign in (1, -1)]
        for name, of in errors.items()
    }
    xs = sorted({x for points in shown.values() for x, _ in points})
    left = xs[0] if first is None else first
    if between is None:
        edges = [edge for both in bands.values() for edge in both]
        ys = [y for points in (*shown.values(), *edges) for _, y in points]
        margin = 0.04 * (max(ys) - min(ys)) or 0.5
        between = (min(ys) - margin, max(ys) + margin)
    place = _placed(left, xs[-1], *between)
    paths = [
        f'<path class="noise" fill="{colours[name]}" d="{_path(map(place, [*upper, *reversed(lower)]))}Z"/>'
        for name, (upper, lower) in bands.items()
    ]
    for name, points in shown.items():
        visible = points if len(points) > 1 else [points[0], (points[0][0] + 1e-9, points[0][1])]
        paths.append(f'<path class="line" stroke="{colours[name]}" d="{_path(map(place, visible))}"/>')
    show = percent if shares else _short
    legend = {name: show(points[-1][1]) for name, points in shown.items()}
    at_step = {name: dict(points) for name, points in shown.items()}
    values = {name: [at_step[name].get(x) for x in xs] for name in shown}
    data = {"x": xs, "low": left, "held": False, "percent": shares, "series": _series(values, colours)}
    axes = _y_axis(*between, percent if shares else lambda y: f"{y:g}") + _x_axis(left, xs[-1], "step")
    return _framed("lines", title, what, paths, axes, legend, colours, data)


def heat(
    dev: Sequence[str],
    train: Sequence[str],
    tables: Sequence[tuple[int, list[list[Estimate]]]],
    title: str,
    caption: str,
) -> Markup:
    """Returns values with their errors, [dev, train], at several steps: a table in colours, a slider over the steps."""
    tables = evenly(tables, _TABLES)
    highest = max((abs(value) for _, table in tables for row in table for value, _ in row), default=1.0) or 1.0
    head = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in train)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td style="{heat_colour(value / highest)}">{value:.2f}</td>' for value, _ in row)
        + "</tr>"
        for name, row in zip(dev, tables[-1][1], strict=True)
    )
    flat = [
        [(round(value, 3), error and round(error, 3)) for row in table for value, error in row] for _, table in tables
    ]
    data = {"steps": [step for step, _ in tables], "tables": flat, "highest": highest}
    slider = (
        f'<label class="slider">step <output>{tables[-1][0]:,}</output>'
        f'<input type="range" min="0" max="{len(tables) - 1}" value="{len(tables) - 1}" aria-label="update"></label>'
    )
    small = " many" if len(train) > 12 else ""
    return Markup(
        f'<div class="chart heat{small}" role="group" aria-label="{escape(title)}">{slider if len(tables) > 1 else ""}'
        f'<div class="wide"><table>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="note">{escape(caption)}</p>{_embedded(data)}</div>'
    )


def heat_colour(value: float) -> str:
    """Returns the background of a cell for a value from -1 to 1: blue above 0, red below."""
    colour = "68,119,170" if value >= 0 else "221,84,98"
    return f"background:rgba({colour},{abs(value):.2f})"


def colours_of(names: Iterable[str]) -> dict[str, str]:
    named = [name for name in names if name != OTHERS]
    return {name: COLOURS[i % MOST] for i, name in enumerate(named)} | {OTHERS: GREY}


def percent(share: float) -> str:
    """Formats a share: '67%', '2.5%', '0.031%'."""
    value = 100 * share
    return f"{value:.0f}%" if value >= 9.95 or abs(value - round(value)) < 1e-9 else f"{value:.2g}%"


def _framed(
    kind: str,
    title: str,
    what: str,
    paths: Sequence[str],
    axes: str,
    legend: Mapping[str, str],
    colours: Mapping[str, str],
    data: Mapping[str, Any],
    column: Sequence[tuple[str, float]] = (),
) -> Markup:
    parts = "".join(f'<i style="background:{colour};height:{100 * max(0, h):.2f}%"></i>' for colour, h in column)
    prior = f'<div class="prior" title="the prior"><div>{parts}</div><span>prior</span></div>' if column else ""
    frame = "frame with-prior" if column else "frame"
    return Markup(
        f'<div class="chart {kind}"><p class="what">{escape(what)}</p><div class="{frame}">'
        f'{prior}<div class="plot" tabindex="0" role="img" aria-label="{escape(title)}">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{"".join(paths)}</svg>'
        f"{axes}</div></div>{_legend(legend, colours)}{_embedded(data)}</div>"
    )


def _legend(entries: Mapping[str, str], colours: Mapping[str, str]) -> str:
    rows = "".join(
        f'<li><i style="background:{colours[name]}"></i><span>{escape(name)}</span><b>{value}</b></li>'
        for name, value in entries.items()
    )
    return f'<ul class="legend">{rows}</ul>'


def _embedded(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    return f'<script type="application/json">{text}</script>'


def _series(values: Mapping[str, Sequence[float | None]], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "colour": colours[name], "y": [None if y is None else float(f"{y:.4g}") for y in ys]}
        for name, ys in values.items()
    ]


def _placed(x0: float, x1: float, y0: float, y1: float) -> Callable[[tuple[float, float]], tuple[float, float]]:
    """Returns the function from values to the drawing's own coordinates; values above the axis are cut off there."""
    wide, tall = (x1 - x0) or 1.0, (y1 - y0) or 1.0
    return lambda xy: (
        _WIDTH * (xy[0] - x0) / wide,
        _HEIGHT * (1 - min(max((xy[1] - y0) / tall, -0.01), 1.0)),
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points)


def _stairs(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    corners = [(xs[0], ys[0])]
    for x, before, y in zip(xs[1:], ys, ys[1:], strict=False):
        corners += [(x, before), (x, y)]
    return corners


def _y_axis(low: float, high: float, label: Callable[[float], str]) -> str:
    return "".join(
        f'<i class="grid" style="bottom:{at}"></i><span class="y" style="bottom:{at}">{text}</span>'
        for at, text in ((_share(tick, low, high), label(tick)) for tick in _ticks(low, high))
    )


def _x_axis(low: float, high: float, what: str) -> str:
    ticks = [tick for tick in _ticks(low, high) if tick == int(tick)] or [low, high]
    labels = "".join(f'<span class="x" style="left:{_share(tick, low, high)}">{tick:,g}</span>' for tick in ticks)
    return f'{labels}<span class="of">{escape(what)}</span>'


def _share(value: float, low: float, high: float) -> str:
    return f"{100 * (value - low) / ((high - low) or 1.0):.2f}%"


def _ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Returns round numbers from low to high."""
    size = (high - low) / about
    if not size > 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(size))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= size * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
