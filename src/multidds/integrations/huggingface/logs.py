"""How a Trainer hears of an update: all of it in its log and its loggers, one line of it on the console."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import Trainer
from transformers.integrations import TensorBoardCallback, WandbCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ...history.loggers import LAYOUT, TABLE, keep_change, keep_history, on_console, table
from ...history.update import Update

_CONSOLES = (PrinterCallback, ProgressCallback)  # they would print every number


def log_update(trainer: Any, balancer: Any, update: Update, passes: Mapping[str, float], **more: Any) -> None:
    """Log an update. What is due to be logged by the Trainer itself stays due.

    more: further groups of numbers by dataset.
    """
    handler, control = trainer.callback_handler, trainer.control
    callbacks, due = handler.callbacks, control.should_log
    handler.callbacks = [callback for callback in callbacks if not isinstance(callback, _CONSOLES)]
    try:
        # By the Trainer's own method: that of a subclass would add what it counted to this row, and forget it.
        Trainer.log(trainer, update.scalars(passes=passes, **more))
    finally:
        handler.callbacks = callbacks
    trainer.control.should_log = control.should_log = due
    if not trainer.state.is_world_process_zero:
        return
    if update.skipped is None and any(isinstance(callback, _CONSOLES) for callback in callbacks):
        on_console(update, tqdm.write)
    for callback in callbacks:
        if isinstance(callback, WandbCallback) and callback._wandb is not None:
            columns, rows = table(update, passes)
            shown = callback._wandb.Table(columns=columns, data=rows)
            callback._wandb.log({TABLE: shown, "train/global_step": trainer.state.global_step})
    if _keeps_history(trainer):
        keep_history(balancer, trainer.args.output_dir, passes)


def log_change(trainer: Any, mixture: Mapping[str, float]) -> None:
    """The training goes on with other datasets, drawn from this mixture."""
    if trainer.state.is_world_process_zero and _keeps_history(trainer):
        keep_change(trainer.args.output_dir, trainer.state.global_step, mixture)


def _keeps_history(trainer: Any) -> bool:
    args = trainer.args
    return bool(args.output_dir and args.save_strategy != "no" and Path(args.output_dir).is_dir())


def lay_out(trainer: Any) -> None:
    """One chart of the mixture on TensorBoard, instead of one per dataset."""
    for callback in trainer.callback_handler.callbacks:
        writer = getattr(callback, "tb_writer", None)
        if isinstance(callback, TensorBoardCallback) and writer is not None:
            writer.add_custom_scalars(LAYOUT)
