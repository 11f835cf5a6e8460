"""Figures of experiments as files: one style, no pyplot, no display, the same bytes every time."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from multidds.history import style

__all__ = ["Canvas", "drawn", "saved"]
_INK = "#1c1c1e"
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


def saved(canvas: Canvas) -> bytes:
    """Returns a figure as SVG."""
    file = io.BytesIO()
    with _styled():
        canvas.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def drawn(draw: Callable[[Canvas], None], height: float = 3.4) -> Canvas:
    """Returns a canvas that `draw` has drawn on. height: in inches."""
    with _styled():
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(canvas)
        draw(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once; saving would do it again
    return canvas


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield
