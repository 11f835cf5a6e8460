"""Histories of mixtures: updates, files of them, pictures, loggers. Imports no torch.

A balancer keeps its updates as `balancer.history`. They can be saved, read from the files of any trainer, and drawn:

>>> import tempfile
>>> from multidds.history import Update, moments_of, save_history
>>> start, now = {"az": 0.2, "tr": 0.8}, {"az": 0.3, "tr": 0.7}
>>> update = Update(10, now, {"az": 0.2, "tr": 0.1}, {}, {}, {}, alignment=None, seconds=0.5, before=start)
>>> print(update)
step 10  tr 80→70%  az 20→30%
>>> with tempfile.TemporaryDirectory() as folder:
...     save_history([update], folder, start)
...     [(moment.step, moment.mixture["az"]) for moment in moments_of(folder)]
[(0, 0.2), (10, 0.3)]
"""

from .history import (
    FACTS,
    PLAIN,
    Moment,
    append_update,
    evaluations_of,
    evenly,
    find_history,
    line_of,
    moment_of,
    moments_of,
    save_history,
    shares_of,
    top_movers,
)
from .plot import COLOURS, OTHERS, bands_of, limit_of, plot, style
from .update import Relevance, Update, moved_by

__all__ = [
    "COLOURS",
    "FACTS",
    "OTHERS",
    "PLAIN",
    "Moment",
    "Relevance",
    "Update",
    "append_update",
    "bands_of",
    "evaluations_of",
    "evenly",
    "find_history",
    "limit_of",
    "line_of",
    "moment_of",
    "moments_of",
    "moved_by",
    "plot",
    "save_history",
    "shares_of",
    "style",
    "top_movers",
]
