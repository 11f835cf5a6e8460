"""How the figures of a report are drawn with matplotlib: lines for up to ten datasets, a heat map for more.

Nothing here uses pyplot, a display or global state. A figure knows its SVG and its PDF.
"""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from multidds.history import evenly, style

from ..common.escaping import drawable

__all__ = [
    "COLOURS",
    "INK",
    "MANY",
    "MARKS",
    "POINTS",
    "Canvas",
    "Figure",
    "colour_bar",
    "draw_series",
    "drawn",
    "legend",
    "name_rows",
    "over_steps",
    "saved",
]

INK = "#1c1c1e"  # text and axes; on a page it becomes the colour of the page's text
# Okabe and Ito's colours, which colour-blind people can tell apart, and three more; legible on white and on black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7b52ab", "#e69f00", "#8c564b", "#808080")
MARKS = "os^Dv<>Ph*"
MANY = len(COLOURS)  # more datasets than this are drawn as a heat map
_WIDTH = 4.9  # inches: at one point per pixel a phone's screen
POINTS = 300  # of a line; more cannot be seen
_STYLE: Any = {
    **style(INK),
    "font.family": "sans-serif",
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
}


NOTHING = Markup("")


@dataclass(frozen=True)
class Figure:
    key: str  # its name as a file
    title: str
    caption: str
    canvas: Canvas | None  # None: there is nothing to draw
    chart: Markup = NOTHING  # the same on a page; empty where a row of charts shows it already

    @cached_property
    def svg(self) -> str:
        assert self.canvas is not None
        return saved(self.canvas, "svg").decode("utf-8")

    def pdf(self) -> bytes:
        assert self.canvas is not None
        return saved(self.canvas, "pdf")


def saved(canvas: Canvas, kind: str) -> bytes:
    """A figure as SVG or PDF, the same bytes every time."""
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


def drawn(draw: Callable[[Canvas], None], height: float = 3.4, datasets: int = 0, panels: int = 1) -> Canvas:
    """A canvas that `draw` has drawn on. Heat maps grow with the number of datasets."""
    if datasets > MANY:
        height = panels * (0.11 * datasets + 1.0)
    with _styled():
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once; saving would do it again for every format
    return canvas


def over_steps(steps: Sequence[int], series: dict[str, list[float]], what: str, held: bool = False) -> Canvas:
    def draw(canvas: Canvas) -> None:
        panel = canvas.subplots()
        image = draw_series(panel, steps, series, held)
        panel.set_xlabel("step")
        panel.set_ylabel(what if image is None else "language pair")
        if image is None:
            legend(canvas, panel)
        else:
            colour_bar(canvas, panel, image, what)

    return drawn(draw, datasets=len(series))


def draw_series(panel: Axes, steps: Sequence[int], series: dict[str, list[float]], held: bool = False) -> Any:
    """Lines (None), or the heat map of many series. `held`: a value holds until the next one, as a mixture does."""
    if len(series) <= MANY:
        for i, (name, values) in enumerate(series.items()):
            points = evenly(list(zip(steps, values, strict=True)), POINTS)
            mark = MARKS[i % len(MARKS)] if len(points) < 15 else None
            panel.plot(*zip(*points, strict=True), color=COLOURS[i], label=drawable(name), marker=mark,
                       markersize=3.5, drawstyle="steps-post" if held else "default")  # fmt: skip
        return None
    columns = evenly(range(len(steps)), POINTS)
    table = [[series[name][column] for column in columns] for name in series]
    image = panel.imshow(table, aspect="auto", cmap="viridis", interpolation="nearest")
    panel.grid(False)
    ticks = sorted({round(i * (len(columns) - 1) / 4) for i in range(5)})
    panel.set_xticks(ticks, [f"{steps[columns[i]]:,}" for i in ticks])
    name_rows(panel, list(series))
    return image


def name_rows(panel: Axes, names: Sequence[str]) -> None:
    every = max(1, math.ceil(len(names) / 130))
    shown = [drawable(name) for name in names[::every]]
    panel.set_yticks(range(0, len(names), every), shown, fontsize=8 if len(names) <= 15 else 6)


def legend(canvas: Canvas, panel: Axes, columns: int = 4) -> None:
    handles, labels = panel.get_legend_handles_labels()
    longest = max(map(len, labels))
    columns = max(1, min(columns, 70 // (longest + 6)))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns)


def colour_bar(canvas: Canvas, panels: Any, image: Any, what: str) -> None:
    bar = canvas.colorbar(image, ax=panels, location="bottom", label=what, aspect=40, pad=0.02)
    bar.ax.set_gid("legend_bar")
    bar.outline.set_visible(False)
