"""Logs through the Trainer: all numbers of an update in its log and loggers, one line on the console."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]
from transformers import Trainer
from transformers.integrations import TensorBoardCallback, WandbCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ...history.loggers import LAYOUT, TABLE, keep_history, on_console, table
from ...history.update import MOST_NAMES, Update

_CONSOLES = (PrinterCallback, ProgressCallback)  # they would print every number


def log_start(trainer: Any, start: Mapping[str, float], prior: Mapping[str, float]) -> None:
    """Writes the mixture of step 0 into the Trainer's history, which its checkpoints keep; no logger gets a line."""
    if len(start) <= MOST_NAMES:
        groups = {"mixture": start, "prior": prior}
        flat = {f"{group}/{name}": share for group, shares in groups.items() for name, share in shares.items()}
        trainer.state.log_history.append({"epoch": 0, "step": 0, **flat})


def show_start(trainer: Any, balancer: Any) -> None:
    """Shows the line about the training that begins, as those of updates are shown."""
    folder, where = trainer.args.output_dir, "updates are in the Trainer's log"
    if _keeps_history(trainer.args):
        where = f"updates are in mixture.jsonl in {folder}; multidds report {folder} shows them"
    shown = any(isinstance(callback, _CONSOLES) for callback in trainer.callback_handler.callbacks)
    balancer.log_start(where, (lambda line: on_console(line, tqdm.write)) if shown else None)


def log_update(trainer: Any, balancer: Any, update: Update, passes: Mapping[str, float], **more: Any) -> None:
    """Logs an update through the Trainer. Does not disturb the Trainer's own logging schedule.

    more: further groups of numbers by dataset.
    """
    handler, control, args = trainer.callback_handler, trainer.control, trainer.args
    callbacks, due = handler.callbacks, control.should_log
    if len(balancer.history) == 1:
        _lay_out(callbacks)
    handler.callbacks = [callback for callback in callbacks if not isinstance(callback, _CONSOLES)]
    try:
        # The method of a subclass would add what it counted to this row, and reset its counts.
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
    if _keeps_history(args) and Path(args.output_dir).is_dir():
        keep_history(balancer, args.output_dir, passes)


def _keeps_history(args: Any) -> bool:
    return bool(args.output_dir) and args.save_strategy != "no"


def _lay_out(callbacks: list[Any]) -> None:
    """Makes one chart of the mixture on TensorBoard, instead of one per dataset."""
    for callback in callbacks:
        writer = getattr(callback, "tb_writer", None)
        if isinstance(callback, TensorBoardCallback) and writer is not None:
            writer.add_custom_scalars(LAYOUT)
