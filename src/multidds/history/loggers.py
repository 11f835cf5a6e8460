"""Updates for the loggers of other libraries: charts of TensorBoard, tables of Weights & Biases, console lines.

Imports none of these libraries, nor torch. `Update.scalars` has the numbers that every logger takes.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from .history import save_history
from .update import Update

# Charts of TensorBoard's tab "Custom Scalars", one per group, whatever prefix a trainer gives the tags.
LAYOUT = {
    "multidds": {
        "mixture": ["Multiline", ["(.*/)?mixture/.*"]],
        "what moved the mixture": ["Multiline", ["(.*/)?balance/.*"]],
        "rewards": ["Multiline", ["(.*/)?reward/.*"]],
        "dev loss of the probes": ["Multiline", ["(.*/)?dev_loss/.*"]],
        "passes": ["Multiline", ["(.*/)?passes/.*"]],
    }
}
TABLE = "multidds/mixture"  # the name of the table
_MOST_ROWS = 1000  # of a table; of more datasets, those that moved furthest
_log = logging.getLogger("multidds")


def table(update: Update, passes: Mapping[str, float]) -> tuple[list[str], list[list[Any]]]:
    """Returns (columns, rows): a row for each dataset, the largest share first; None for unknown numbers."""
    columns = ["dataset", "prior", "before", "share", "reward", "noise", "passes"]
    groups = (update.prior, update.before, update.mixture, update.rewards, update.noise, passes)
    names = sorted(update.movers(_MOST_ROWS), key=lambda name: (-update.mixture[name], name))
    return columns, [[name, *(values.get(name) for values in groups)] for name in names]


def on_console(update: Update | str, write: Callable[[str], object] = print) -> None:
    """Writes the line of an update, or another one, in letters that standard output has."""
    line, encoding = str(update), getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        line = line.replace("→", "->").encode(encoding, "replace").decode(encoding)
    write(line)


def keep_history(balancer: Any, folder: str | PathLike[str], passes: Mapping[str, float]) -> None:
    """Writes mixture.jsonl into a folder of a trainer; if it cannot (a full disk), the training continues."""
    try:
        save_history(balancer, folder, passes=passes)
    except (OSError, ValueError) as error:
        _log.warning("BalanceCallback: the history of the mixture is not written: %s", error)
