"""What the callback refuses, with what to change: tables of (condition, sentence).

Under any of these settings the method would be wrong without a word, or a resumed training another one.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transformers import Trainer, TrainingArguments

from ..._base.checks import Refusal, first_violation, listed, refuse
from ...sampling import MixedDataset, is_stateful, is_stream

OWNER = "BalanceCallback"


def check_trainer(trainer: Any, kind: type, allowed: int = 0) -> None:
    """kind: of the callback, of which the Trainer may have as many as are allowed."""
    is_none = (not isinstance(trainer, Trainer), f"the first argument must be the Trainer, got {_kind(trainer)}.")
    refuse(OWNER, [is_none], TypeError)
    data = trainer.train_dataset
    other_data = f"the Trainer's train_dataset must be a MixedDataset, got {_kind(data)}."
    refuse(OWNER, [(not isinstance(data, MixedDataset), other_data)], TypeError)
    there = sum(isinstance(callback, kind) for callback in trainer.callback_handler.callbacks)
    twice = (there > allowed, "the Trainer has one already; remove it with trainer.remove_callback.")
    refuse(OWNER, [twice])
    check_model(trainer)
    check_arguments(trainer.args)
    refuse(OWNER, _of_shards(trainer))


def check_model(trainer: Any) -> None:
    args = trainer.args
    split = (
        "models that are split over processes ({}) are not supported. Train with whole replicas (torchrun without it), "
        "with fsdp=True in TrainingArguments, which is FSDP2, or on a mixture that was learned before: Replay."
    )
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    first = trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) != 2
    rows = [
        (first or (args.fsdp and not trainer.is_fsdp_enabled), split.format("FSDP1 or XLA's FSDP")),
        (trainer.is_deepspeed_enabled or args.deepspeed, split.format("DeepSpeed")),
        (args.parallelism_config is not None, split.format("parallelism_config")),
        ((getattr(trainer.model, "tp_size", None) or 1) > 1, split.format("tensor parallelism")),
        (args.n_gpu > 1, "torch.nn.DataParallel is not supported; start one process per GPU: torchrun."),
    ]
    refuse(OWNER, rows)


def check_arguments(args: TrainingArguments) -> None:
    rows = [
        (
            args.auto_find_batch_size,
            "auto_find_batch_size would change the batch size, and with it the draws. "
            "Set it to False and per_device_train_batch_size to what fits.",
        ),
        (
            args.train_sampling_strategy not in ("random", "sequential"),
            f"train_sampling_strategy={args.train_sampling_strategy!r} would reorder the draws of the mixture. "
            "Set it to 'sequential'.",
        ),
        (
            args.accelerator_config.split_batches,
            "split_batches=True in accelerator_config is not supported; set it to False.",
        ),
        (
            not getattr(args, "dataloader_in_order", True),
            "with dataloader_in_order=False draws depend on timing; set it to True.",
        ),
        (
            args.restore_callback_states_from_checkpoint,
            "restore_callback_states_from_checkpoint=True would make callbacks without their Trainer. "
            "Set it to False; the mixture is restored anyway.",
        ),
    ]
    refuse(OWNER, rows)


def _of_shards(trainer: Any) -> Iterator[Refusal]:
    workers = trainer.args.dataloader_num_workers
    for name, stream in _streams(trainer.train_dataset.datasets):
        shards = getattr(stream, "num_shards", None)
        has = "does not say how many shards it has (num_shards)" if shards is None else f"has num_shards={shards}"
        yield (
            workers > max(1, shards or 0),
            f"{workers} workers cannot share the stream {name!r}, which {has}: some would read the same examples or "
            f"none. Set dataloader_num_workers to at most {shards or 1}, or split it further.",
        )


NO_DIRECTION = (
    "the average of what the dev sets want, which batches that mix datasets need, does not fit into the Trainer's JSON "
    "state. Leave out losses, which takes gradients of single datasets instead."
)


def check_saving(args: TrainingArguments, reward: object) -> None:
    too_large = (
        "reward 'moving-average' keeps gradients, which do not fit into the Trainer's JSON state. "
        "Choose another reward, or set save_strategy='no' in TrainingArguments."
    )
    refuse(OWNER, [(reward == "moving-average" and args.save_strategy != "no", too_large)])


def check_as_constructed(same_dataset: bool, same_step: bool) -> None:
    rows = [
        (
            not same_dataset,
            "the Trainer's train_dataset is another one than at its construction. Set the dataset first, then make a "
            "new callback.",
        ),
        (
            not same_step,
            "the batch size, gradient_accumulation_steps or number of processes changed since its construction. Make "
            "the Trainer with its final arguments, then a new callback.",
        ),
    ]
    refuse(OWNER, rows)


def check_loader(loader: Any, dataset: MixedDataset, batch: int) -> None:
    """With one that reads otherwise than the arguments say, the lag and the place to resume at would be wrong.

    batch: examples of a batch, over all processes.
    """
    its_own = hasattr(loader, "set_epoch") and (is_stream(dataset) or len(loader) * batch == len(dataset))  # type: ignore[arg-type]
    other = (
        "the loader of get_train_dataloader does not read as the Trainer's own, with its batch size and epochs. "
        "Do not override the method: a MixedDataset does the drawing."
    )
    refuse(OWNER, [(not its_own, other)])


def check_columns(datasets: Mapping[str, Any], kept: list[str]) -> None:
    def rows() -> Iterator[Refusal]:
        for name, part in datasets.items():
            # By an example: a format or a transform may hide or make columns.
            example = dict.fromkeys(getattr(part, "column_names", None) or []) if is_stream(part) else part[0]
            removed = [column for column in example if column not in kept] if isinstance(example, dict) else []
            yield (
                removed,
                f"the Trainer would remove {listed(removed)} from the examples of {name!r} before the loss sees them. "
                "Set remove_unused_columns=False in TrainingArguments, or remove them from the data.",
            )

    refuse(OWNER, rows())


def check_checkpoint(saved: object, args: TrainingArguments) -> None:
    rows = [
        (
            saved is None,
            "the checkpoint was written without a BalanceCallback, so it has no mixture to go on with. "
            "Load its model and start a new training, or go on without the callback.",
        ),
        (
            args.ignore_data_skip,
            "with ignore_data_skip=True the Trainer would count positions from the start of the epoch again. "
            "Set it to False: what is skipped is not read.",
        ),
    ]
    refuse(OWNER, rows)


def check_resuming(inexact: str | None, position: int, steps: int, step: int) -> None:
    """inexact: why it would not be exact; position: examples before the checkpoint; steps: steps before it, of `step`
    examples each.
    """
    rows = [
        (inexact, f"this training cannot be resumed exactly: {inexact} Or set inexact_resume."),
        (
            position != steps * step,
            f"after {steps} steps the checkpoint is at example {position}, but now a step has {step}. Resume with the "
            "same batch size, gradient_accumulation_steps and number of processes.",
        ),
    ]
    refuse(OWNER, rows)


def check_json(places: Mapping[str, Any]) -> None:
    """JSON would turn other keys into strings without a word, and a tensor into an error that names no stream."""
    rows = (
        (
            True,
            f"the state_dict of the stream {name!r} does not fit into the Trainer's JSON state: it holds {value!r}. "
            "Make it of numbers, strings, lists and dicts with string keys.",
        )
        for name, place in places.items()
        for value in _not_json(place)
    )
    refuse(OWNER, rows)


def _not_json(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _not_json(item)
    elif not (value is None or isinstance(value, (str, int, float))):
        yield value


def why_inexact(trainer: Any, dev: Mapping[str, Any]) -> str | None:
    """Why a resumed training would not be the uninterrupted one, and what to change; None: it is."""

    def rows() -> Iterator[Refusal]:
        yield (
            is_stream(trainer.train_dataset) and trainer.args.dataloader_num_workers,
            "the workers' places in the streams are not saved. Set dataloader_num_workers=0.",
        )
        for name, stream in [*_streams(trainer.train_dataset.datasets), *_streams(dev)]:
            yield (
                not is_stateful(stream),
                f"the stream {name!r} has no state_dict and load_state_dict. Give it both, or a map-style dataset.",
            )
            yield (
                _has_shuffle_buffer(getattr(stream, "_ex_iterable", None)),
                f"the shuffle buffer of {name!r} is not in its state. Shuffle before streaming, without a buffer.",
            )

    return first_violation(rows())


def _has_shuffle_buffer(part: Any) -> bool:
    """`datasets` loses the examples in a shuffle buffer, as it says; only the parts of a stream show one."""
    if part is None:
        return False
    inner = [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", [])]
    return type(part).__name__ == "BufferShuffledExamplesIterable" or any(map(_has_shuffle_buffer, inner))


def _streams(datasets: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    return [(name, dataset) for name, dataset in datasets.items() if is_stream(dataset)]


def _kind(value: object) -> str:
    return type(value).__name__
