"""Refusals of the callback: tables of (condition, sentence that says what to change).

Under these settings the mixture would be wrong without a message, or a resumed training would differ.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import Trainer

from ..._base.checks import Refusal, first_violation, refuse
from ...sampling import MixedDataset, is_stateful, is_stream

OWNER = "BalanceCallback"
NO_TRAINER = "it needs its trainer, so callbacks= cannot take it. Use trainer.add_callback(BalanceCallback(trainer))."


def check_kinds(trainer: Any) -> None:
    def rows() -> Iterator[Refusal]:
        yield trainer is None, NO_TRAINER
        yield not isinstance(trainer, Trainer), f"trainer must be a Trainer, got {type(trainer).__name__}."
        data = trainer.train_dataset
        yield not isinstance(data, MixedDataset), f"train_dataset must be a MixedDataset, got {type(data).__name__}."

    refuse(OWNER, rows(), TypeError)


def check_trainer(trainer: Any, kind: type, allowed: int) -> None:
    """kind: the class of the callback. allowed: how many of it the Trainer may have."""
    there = sum(isinstance(callback, kind) for callback in trainer.callback_handler.callbacks)
    refuse(OWNER, [(there > allowed, "the Trainer has one already; remove it with trainer.remove_callback.")])
    refuse(OWNER, _of_model(trainer))
    refuse(OWNER, _of_arguments(trainer.args))


def _of_model(trainer: Any) -> Iterator[Refusal]:
    args = trainer.args
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    fsdp1 = trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2
    used = {
        "FSDP1": fsdp1 or (args.fsdp and not trainer.is_fsdp_enabled),
        "DeepSpeed": trainer.is_deepspeed_enabled or args.deepspeed,
        "parallelism_config": args.parallelism_config is not None,
        "tensor parallelism": (getattr(trainer.model, "tp_size", None) or 1) > 1,
        "torch.nn.DataParallel": args.n_gpu > 1,
    }
    for name, is_used in used.items():
        instead = "whole replicas (torchrun), FSDP2 (fsdp=True), or a mixture that was learned before (Replay)"
        yield is_used, f"{name} is not supported; use {instead}."


def _of_arguments(args: Any) -> Iterator[Refusal]:
    strategy = args.train_sampling_strategy
    reordered = strategy not in ("random", "sequential")
    yield reordered, f"train_sampling_strategy={strategy!r} would reorder the draws; set it to 'sequential'."
    in_order = getattr(args, "dataloader_in_order", True)  # not in all versions
    yield not in_order, "with dataloader_in_order=False draws depend on timing; set it to True."
    wrong_if_true = {
        "auto_find_batch_size": (args, "change the draws"),
        "split_batches": (args.accelerator_config, "divide the draws otherwise"),
        "restore_callback_states_from_checkpoint": (args, "construct callbacks without their Trainer"),
    }
    for name, (owner, effect) in wrong_if_true.items():
        yield getattr(owner, name), f"{name}=True would {effect}; set it to False."


def check_shards(datasets: Mapping[str, Any], workers: int) -> None:
    """Workers without a shard of their own would read the same examples, or none."""
    shards = {name: getattr(dataset, "num_shards", None) for name, dataset in datasets.items() if is_stream(dataset)}
    what = f"dataloader_num_workers={workers} is too many for the stream"
    rows = [
        (workers > max(1, count or 0), f"{what} {name!r}, with num_shards={count}.") for name, count in shards.items()
    ]
    refuse(OWNER, rows)


def check_loader(its_own: bool) -> None:
    """its_own: whether the loader reads what the callback counts; otherwise the lag and the place would be wrong."""
    other = (
        "the loader does not read the train_dataset as the Trainer's arguments said when the callback was constructed. "
        "Construct it after all of them are final, and do not override get_train_dataloader."
    )
    refuse(OWNER, [(not its_own, other)])


def check_resuming(saved: Mapping[str, Any], args: Any, steps: int, step: int, inexact: str | None) -> None:
    """Refuses a checkpoint with which training would not continue where it was.

    saved: the state in the checkpoint. steps: optimizer steps before it. step: draws of one step now. inexact: why the
    resume would not be exact.
    """

    def rows() -> Iterator[Refusal]:
        yield not saved, "the checkpoint was written without a BalanceCallback, so it has no mixture to continue with."
        yield args.ignore_data_skip, "ignore_data_skip=True would count positions anew; set it to False."
        changed = "the batch size, gradient_accumulation_steps or the number of processes has changed"
        draws = f"after {steps} steps it is at draw {saved['position']}, but now a step has {step} draws"
        yield saved["position"] != steps * step, f"{changed}: {draws}."
        yield inexact, f"this training cannot be resumed exactly: {inexact} inexact_resume=True continues inexactly."

    refuse(OWNER, rows())


def check_json(name: str, place: Any) -> None:
    """JSON would turn other keys into strings without a message, and raise an error that names no stream."""
    try:
        survives = json.loads(json.dumps(place)) == place
    except TypeError:
        survives = False
    refuse(OWNER, [(not survives, f"the state of the stream {name!r} does not survive JSON: {place!r}.")])


def why_inexact(mixed: Any, workers: int, dev: Mapping[str, Any]) -> str | None:
    """Returns why a resumed training would differ from the uninterrupted one, and what to change; None: it is equal."""

    def rows() -> Iterator[Refusal]:
        read_by_workers = is_stream(mixed) and workers
        yield read_by_workers, "the workers' places in the streams are not saved; set dataloader_num_workers=0."
        for name, stream in [*mixed.datasets.items(), *dev.items()]:
            no_state = is_stream(stream) and not is_stateful(stream)
            yield no_state, f"the stream {name!r} has no state_dict and load_state_dict."
            buffered = _has_shuffle_buffer(getattr(stream, "_ex_iterable", None))
            yield buffered, f"the shuffle buffer of {name!r} is not in its state; shuffle before streaming."

    return first_violation(rows())


def _has_shuffle_buffer(part: Any) -> bool:
    """Returns whether a stream of `datasets` has a shuffle buffer, which its state leaves out."""
    if part is None:
        return False
    inner = [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", [])]
    return type(part).__name__ == "BufferShuffledExamplesIterable" or any(map(_has_shuffle_buffer, inner))
