"""Logs of an update through Lightning: all numbers in its loggers, one line on the console."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

from ...history.loggers import LAYOUT, TABLE, keep_history, on_console, table
from ...history.update import Update


def log_update(trainer: Trainer, balancer: Any, update: Update, passes: Mapping[str, float]) -> None:
    """Logs an update under the number of optimizer steps before it; all processes call it together."""
    folder = trainer.log_dir  # a collective
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
        bar: Any = trainer.progress_bar_callback
        on_console(update, bar.print if getattr(bar, "is_enabled", False) else rank_zero_info)
    if trainer.loggers and folder and Path(folder) != Path(trainer.default_root_dir) and Path(folder).is_dir():
        keep_history(balancer, folder, passes)
