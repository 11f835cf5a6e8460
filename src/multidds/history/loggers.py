"""An update in the words of other people's loggers: charts of TensorBoard, a table of Weights & Biases, a console line.

Imports none of them, nor torch: what is given is theirs. Numbers that every logger takes are `Update.scalars`.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any

from .history import change_history, save_history

if TYPE_CHECKING:
    from .update import Update

# What TensorBoard's tab "Custom Scalars" shows: one chart per group, whatever prefix a trainer gives the tags.
LAYOUT = {
    "multidds": {
        "mixture": ["Multiline", ["(.*/)?mixture/.*"]],
        "learned or drifted": ["Multiline", ["(.*/)?balance/.*"]],
        "rewards": ["Multiline", ["(.*/)?reward/.*"]],
        "dev loss of the probes": ["Multiline", ["(.*/)?dev_loss/.*"]],
        "passes": ["Multiline", ["(.*/)?passes/.*"]],
    }
}
TABLE = "multidds/mixture"  # what the table is called
_ROWS = 1000  # of a table: of more datasets those that have moved furthest
_log = logging.getLogger("multidds")


def table(update: "Update", passes: Mapping[str, float]) -> tuple[list[str], list[list[Any]]]:
    """(columns, rows): a row for each dataset, the largest share first; None where a number is not known."""
    columns = ["dataset", "prior", "before", "share", "reward", "noise", "passes"]
    known = (update.prior, update.before, update.mixture, update.rewards, update.noise, passes)
    names = sorted(update.movers(_ROWS), key=lambda name: (-update.mixture[name], name))
    return columns, [[name, *(values.get(name) for values in known)] for name in names]


def on_console(update: "Update", write: Callable[[str], object] = print) -> None:
    """Write the line of an update, in letters that standard output has."""
    line, encoding = str(update), getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        line = line.replace("→", "->").encode(encoding, "replace").decode(encoding)
    write(line)


def keep_history(balancer: Any, folder: str | PathLike[str], passes: Mapping[str, float]) -> None:
    """Write mixture.jsonl into a folder of a trainer. A disk that is full must not end the training."""
    with _warning():
        save_history(balancer, folder, passes=passes)


def keep_change(folder: str | PathLike[str], step: int, mixture: Mapping[str, float]) -> None:
    """The same where a training goes on with other datasets."""
    with _warning():
        change_history(folder, step, mixture)


@contextmanager
def _warning() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        _log.warning("BalanceCallback: the history of the mixture is not written: %s", error)
