"""Logs through Lightning: all numbers of an update in its loggers, one line on the console."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

from ...history.loggers import LAYOUT, TABLE, keep_history, on_console, table
from ...history.update import Update


def show_start(trainer: Trainer, balancer: Any) -> None:
    """Shows the line about the training that begins, as those of updates are shown; all processes call it together."""
    folder, where = _history_folder(trainer), "updates are in callback.balancer.history"
    if folder is not None:
        where = f"updates are in mixture.jsonl in {folder}; multidds report {folder} shows them"
    balancer.log_start(where, lambda line: on_console(line, _console(trainer)))


def log_update(trainer: Trainer, balancer: Any, update: Update, passes: Mapping[str, float]) -> None:
    """Logs an update under the number of optimizer steps before it; all processes call it together."""
    folder = _history_folder(trainer)
    for logger in trainer.loggers:
        if len(balancer.history) == 1 and isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            logger.experiment.add_custom_scalars(LAYOUT)
        logger.log_metrics(update.scalars(passes=passes), step=update.step)
        if isinstance(logger, WandbLogger):
            columns, rows = table(update, passes)
            logger.log_table(TABLE, columns, rows, step=update.step)
    if not trainer.is_global_zero:
        return
    if update.skipped is None:
        on_console(update, _console(trainer))
    if folder is not None and folder.is_dir():
        keep_history(balancer, folder, passes)


def _console(trainer: Trainer) -> Any:
    bar: Any = trainer.progress_bar_callback
    return bar.print if getattr(bar, "is_enabled", False) else rank_zero_info


def _history_folder(trainer: Trainer) -> Path | None:
    """Returns the folder for mixture.jsonl: that of the first logger, if it has one; all processes call it together."""
    folder = trainer.log_dir  # a collective
    if not trainer.loggers or not folder or Path(folder) == Path(trainer.default_root_dir):
        return None
    return Path(folder)
