"""How Lightning hears of an update: all of it in its loggers, one line of it on the console."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_info

from ...history.loggers import LAYOUT, TABLE, keep_change, keep_history, on_console, table
from ...history.update import Update


def log_update(trainer: Trainer, balancer: Any, update: Update, passes: Mapping[str, float]) -> None:
    """On all processes together. Updates are numbered by the optimizer steps before them, as in every trainer."""
    folder = trainer.log_dir  # which asks the other processes
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
    if _keeps_history(folder, trainer):
        keep_history(balancer, folder, passes)


def log_change(trainer: Trainer, step: int, mixture: Mapping[str, float]) -> None:
    """On all processes together: the training goes on after `step` with other datasets, drawn from this mixture."""
    folder = trainer.log_dir
    if trainer.is_global_zero and _keeps_history(folder, trainer):
        keep_change(folder, step, mixture)


def _keeps_history(folder: str | None, trainer: Trainer) -> TypeGuard[str]:
    return bool(trainer.loggers and folder and Path(folder) != Path(trainer.default_root_dir) and Path(folder).is_dir())
