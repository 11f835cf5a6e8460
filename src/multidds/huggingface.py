"""Balancing inside the Hugging Face Trainer: one dataset, one callback, and the Trainer as it is.

`MixedDataset` is the `train_dataset`; `BalanceCallback` runs a `Balancer` on the Trainer's own loss, collator and dev
sets, says from which position on a new mixture rules, and keeps all of it in the Trainer's checkpoints.
"""

import copy
import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import RemoveColumnsCollator

from .balancer import Balancer
from .checks import check_whole, listed
from .mixed_dataset import MixedDataset, StreamReader, is_stateful, is_stream
from .priorities import Priority
from .probing import Loss
from .sources import batches_of

__all__ = ["BalanceCallback", "MixedDataset"]

_log = logging.getLogger("multidds")


class BalanceCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Learns the mixture of the Trainer's `MixedDataset` while it trains: `trainer.add_callback(BalanceCallback(...))`.

    every: optimizer steps between updates. dev: by default all of the Trainer's `eval_dataset`, a dict; or some of its
    names, or a dict of other dev sets. batch_size: examples of a probe batch, by default those of a training batch per
    device. loss: loss(model, batch), by default the Trainer's `compute_loss`. inexact_resume: streams that cannot tell
    their place begin anew when a training is resumed, instead of an error. The other options, and priority, are those
    of `Balancer`; `balancer` is that of the current or next training.

    A new mixture rules from a fixed position on: behind what the loader has read ahead when the step ends, which is
    dataloader_num_workers * dataloader_prefetch_factor + 1 batches. Each update is logged by `Trainer.log`.
    """

    def __init__(
        self,
        trainer: Trainer,
        every: int,
        dev: Mapping[str, Any] | Iterable[str] | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        priority: Priority = "regular",
        inexact_resume: bool = False,
        **options: Any,
    ) -> None:
        _check_trainer(trainer)
        if batch_size is not None:
            check_whole("BalanceCallback", batch_size=batch_size)
        if options.get("reward") == "moving-average" and trainer.args.save_strategy != "no":
            raise ValueError(
                "BalanceCallback: reward 'moving-average' keeps gradients, which do not fit into the Trainer's JSON "
                "state. Choose another reward, or set save_strategy='no' in TrainingArguments."
            )
        # Weakly: a cycle would keep the model, and the workers of its loader, until garbage is collected.
        self._reference = weakref.ref(trainer)
        self._every, self._loss, self._options = every, loss, options
        self._dataset: MixedDataset = trainer.train_dataset
        self._dev = _dev_sets(trainer, dev)
        self._batch_size = batch_size or trainer.args.per_device_train_batch_size
        self._inexact_resume, self._inexact = inexact_resume, _why_inexact(trainer, self._dev)
        self._prior = self._dataset.mixture.probabilities
        self._dev_losses: dict[str, float] = {}  # of an evaluation that is under way
        self._resumed_at: int | None = None  # the step of the checkpoint, if there was one
        if trainer.args.train_sampling_strategy == "random":
            # The MixedDataset does the drawing. In a copy: another Trainer with the same arguments still shuffles.
            trainer.args = copy.copy(trainer.args)
            trainer.args.train_sampling_strategy = "sequential"
        self._attach()
        self.balancer = self._new_balancer(trainer.data_collator, priority)

    @property
    def _trainer(self) -> Any:
        return self._reference()

    def _attach(self) -> None:
        """Tell the dataset how the Trainer reads it, as far as its arguments say."""
        args = self._trainer.args
        workers = args.dataloader_num_workers
        ahead = workers * (args.dataloader_prefetch_factor or 2)  # batches; 2 is the DataLoader's own default
        everyone = args.train_batch_size * args.world_size
        self._step = everyone * args.gradient_accumulation_steps  # examples of an optimizer step
        # One batch more: accelerate's loader reads it to know whether the one before is the last.
        self._lag = (ahead + 1) * everyone
        # Streams are read by the first process for all, batch by batch, unless each process reads everything.
        each_reads_all = args.accelerator_config.dispatch_batches is False
        unit = everyone if each_reads_all else args.train_batch_size
        # Of two batches of one worker, at the end of an epoch and in the next, up to 2 * workers lie apart.
        rounds = (ahead + 2 * workers + 2) // args.gradient_accumulation_steps
        self._dataset.attach(self._step, unit, rounds, whole=everyone if args.dataloader_drop_last else 1)

    def _new_balancer(self, collate: Callable[[list[Any]], Any], priority: Priority) -> Balancer:
        collate = _without_generator(collate)

        def sources(sets: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: _StreamBatches(name, d, self._batch_size, collate)
                if is_stream(d)
                else batches_of(d, self._batch_size, collate)
                for name, d in sets.items()
            }

        train, dev = sources(self._dataset.datasets), sources(self._dev)
        # The bare model, not trainer.model_wrapped: probes run eagerly, and average over processes themselves.
        return Balancer(
            self._dataset.mixture,
            self._trainer.model,
            _prepared(self._reference, self._loss),
            train=train,
            dev=dev,
            every=self._every,
            priority=priority,
            **self._options,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin with the prior; or, in a resumed training, where the checkpoint says."""
        _check_trainer(self._trainer, added=True)
        if self._trainer.train_dataset is not self._dataset:
            raise ValueError(
                "BalanceCallback: the Trainer's train_dataset is another one than at its construction. Set the dataset "
                "first, then make a new callback."
            )
        # Before all others: one that saves when a step ends must find this step counted and its update done.
        callbacks = self._trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)
        collate = kwargs["train_dataloader"].collate_fn
        if self._loss is not None and isinstance(collate, RemoveColumnsCollator):
            _check_columns(self._dataset, collate.signature_columns)
        self._dataset.mixture.move(self._prior)
        step = self._step
        self._attach()
        if step != self._step:
            raise ValueError(
                "BalanceCallback: the batch size, gradient_accumulation_steps or number of processes changed since its "
                "construction. Make the Trainer with its final arguments, then a new callback."
            )
        self._check_loader(kwargs["train_dataloader"])
        self.balancer = self._new_balancer(collate, self.balancer.priority)
        self._dev_losses, self._resumed_at = {}, None
        if state.global_step > 0:
            self._resume(args, state)
            self._resumed_at = state.global_step

    def _check_loader(self, loader: Any) -> None:
        """With one that reads otherwise than the arguments say, the lag and the place to resume at would be wrong."""
        args, dataset = self._trainer.args, self._dataset
        its_own = hasattr(loader, "set_epoch")
        if its_own and not is_stream(dataset):
            its_own = len(loader) * args.train_batch_size * args.world_size == len(dataset)  # type: ignore[arg-type]
        if not its_own:
            raise ValueError(
                "BalanceCallback: the loader of get_train_dataloader does not read as the Trainer's own, with its "
                "batch size and epochs. Do not override the method: a MixedDataset does the drawing."
            )

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__)
        if saved is None:
            raise ValueError(
                "BalanceCallback: the checkpoint was written without a BalanceCallback, so it has no mixture to go on "
                "with. Load its model and start a new training, or go on without the callback."
            )
        if args.ignore_data_skip:
            raise ValueError(
                "BalanceCallback: with ignore_data_skip=True the Trainer would count positions from the start of the "
                "epoch again. Set it to False: what is skipped is not read."
            )
        saved = saved["attributes"]
        if (why := self._inexact or saved["inexact"]) and not self._inexact_resume:
            raise ValueError(f"BalanceCallback: this training cannot be resumed exactly: {why} Or set inexact_resume.")
        if saved["dataset"]["position"] != state.global_step * self._step:
            raise ValueError(
                f"BalanceCallback: after {state.global_step} steps the checkpoint is at example "
                f"{saved['dataset']['position']}, but now a step has {self._step}. Resume with the same batch size, "
                "gradient_accumulation_steps and number of processes."
            )
        self.balancer.load_state_dict(saved["balancer"])
        self._dataset.load_state_dict(saved["dataset"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._dataset.consume(self._step)
        update = self.balancer.step()
        self._dataset.rule_from(self._dataset.position + self._lag)
        if update is not None:
            due = control.should_log  # which logging sets back, though the Trainer's own log is still to come
            self._trainer.log(update.scalars(passes=self._dataset.passes, examples=self._dataset.examples))
            control.should_log = due
            if update.skipped:
                _log.warning("BalanceCallback: step %d: no update, because %s.", update.step, update.skipped)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """The losses of a full evaluation, by which the priorities low and high rank; one call per dev set."""
        if state.global_step == self._resumed_at:  # eval_on_start, where the uninterrupted training has no evaluation
            return
        for name in self._dev:
            if (loss := (metrics or {}).get(f"eval_{name}_loss")) is not None:
                self._dev_losses[name] = loss
        if self._dev_losses.keys() == self._dev.keys():
            if all(map(math.isfinite, self._dev_losses.values())):
                self.balancer.dev_losses = self._dev_losses
            self._dev_losses = {}

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into trainer_state.json; `on_train_begin` reads it back."""
        attributes: dict[str, Any] = {"inexact": self._inexact, "dataset": self._dataset.state_dict()}
        _check_json(attributes["dataset"].get("places", {}))
        if self._options.get("reward") != "moving-average":
            attributes["balancer"] = self.balancer.state_dict()
        return {"args": {}, "attributes": attributes}


class _StreamBatches:
    """Probe batches of a stream, by a reader of its own."""

    def __init__(self, name: str, stream: Any, batch_size: int, collate: Callable[[list[Any]], Any]) -> None:
        self._name, self._stream, self._batch_size, self._collate = (
            name,
            StreamReader(name, stream),
            batch_size,
            collate,
        )

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._collate([next(self._stream) for _ in range(self._batch_size)])

    def state_dict(self) -> dict[str, Any]:
        place = self._stream.state_dict()
        _check_json({self._name: place})
        return place

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stream.load_state_dict(state)


def _prepared(reference: Callable[[], Any], own: Loss | None) -> Loss:
    """The loss of a batch that is first put where the model is, as in a training step."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        trainer = reference()
        inputs = trainer._prepare_inputs(batch)
        if own is not None:
            return own(model, inputs)
        with trainer.compute_loss_context_manager():
            value: Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=_items(trainer, inputs))
        return value

    return loss


def _without_generator(collate: Any) -> Any:
    """The collator for probes. One with a generator of its own, as `DataCollatorForLanguageModeling(seed=...)`, would
    be moved on by them, and training would see other masks; the global ones are seeded for every probe batch.
    """
    if isinstance(collate, RemoveColumnsCollator):
        twin = copy.copy(collate)
        twin.data_collator = _without_generator(collate.data_collator)
        return twin
    if getattr(collate, "seed", None) is None or not hasattr(collate, "generator"):
        return collate
    twin = copy.copy(collate)
    twin.seed = twin.generator = None
    return twin


def _items(trainer: Any, inputs: Any) -> Tensor | None:
    """The labels of a batch, counted where the Trainer counts those of a step, for losses that divide by them.

    Not by the Trainer's own method, which asks all processes: here each batch has a mean of its own.
    """
    counted = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
    if not (counted and isinstance(inputs, Mapping) and isinstance(inputs.get("labels"), Tensor)):
        return None
    labels: Tensor = inputs["labels"]
    if "shift_labels" in inputs:
        labels = inputs["shift_labels"]
    elif getattr(trainer, "_loss_shifts_labels", False):
        labels = labels[..., 1:]
    # With average_tokens_across_devices the Trainer multiplies the loss by the number of processes.
    processes: int = trainer.accelerator.num_processes if trainer.args.average_tokens_across_devices else 1
    return labels.ne(-100).sum() * processes


def _dev_sets(trainer: Trainer, dev: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    if isinstance(dev, Mapping):
        return dict(dev)
    given = trainer.eval_dataset
    if not isinstance(given, dict):
        what = "there is none" if given is None else f"it is a {type(given).__name__}"
        raise TypeError(
            f"BalanceCallback: the Trainer's eval_dataset must be {{name: dev set}}, but {what}. "
            "Give it as a dict, or give dev={name: dev set}."
        )
    if isinstance(dev, str):
        dev = [dev]
    names = list(given) if dev is None else list(dev)
    if missing := [name for name in names if name not in given]:
        raise ValueError(
            f"BalanceCallback: the dev sets {listed(missing)} are missing from eval_dataset; it has {listed(given)}."
        )
    return {name: given[name] for name in names}


def _check_trainer(trainer: Trainer, added: bool = False) -> None:
    """Refuse settings under which the method would be wrong, with what to change."""
    if not isinstance(trainer, Trainer):
        raise TypeError(f"BalanceCallback: the first argument must be the Trainer, got {type(trainer).__name__}.")
    args = trainer.args
    if not isinstance(trainer.train_dataset, MixedDataset):
        raise TypeError(
            "BalanceCallback: the Trainer's train_dataset must be a MixedDataset, "
            f"got {type(trainer.train_dataset).__name__}."
        )
    if sum(isinstance(callback, BalanceCallback) for callback in trainer.callback_handler.callbacks) > added:
        raise ValueError("BalanceCallback: the Trainer has one already; remove it with trainer.remove_callback.")
    sharded = {
        "FSDP": trainer.is_fsdp_enabled or args.fsdp,
        "DeepSpeed": trainer.is_deepspeed_enabled or args.deepspeed,
        "parallelism_config": args.parallelism_config is not None,
        "tensor parallelism": (getattr(trainer.model, "tp_size", None) or 1) > 1,
    }
    if used := [name for name, value in sharded.items() if value]:
        raise ValueError(
            f"BalanceCallback: models that are split over processes ({used[0]}) are not supported. "
            "Train with whole replicas (torchrun without it)."
        )
    if args.n_gpu > 1:
        raise ValueError(
            "BalanceCallback: torch.nn.DataParallel is not supported; start one process per GPU: torchrun."
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "BalanceCallback: auto_find_batch_size would change the batch size, and with it the draws. "
            "Set it to False and per_device_train_batch_size to what fits."
        )
    if args.train_sampling_strategy not in ("random", "sequential"):
        raise ValueError(
            f"BalanceCallback: train_sampling_strategy={args.train_sampling_strategy!r} would reorder the draws of the "
            "mixture. Set it to 'sequential'."
        )
    if args.accelerator_config.split_batches:
        raise ValueError("BalanceCallback: split_batches=True in accelerator_config is not supported; set it to False.")
    if not getattr(args, "dataloader_in_order", True):
        raise ValueError("BalanceCallback: with dataloader_in_order=False draws depend on timing; set it to True.")
    if args.restore_callback_states_from_checkpoint:
        raise ValueError(
            "BalanceCallback: restore_callback_states_from_checkpoint=True would make callbacks without their Trainer. "
            "Set it to False; the mixture is restored anyway."
        )
    _check_shards(trainer)


def _check_shards(trainer: Trainer) -> None:
    workers = trainer.args.dataloader_num_workers
    for name, stream in trainer.train_dataset.datasets.items():
        if not is_stream(stream) or workers <= 1:
            continue
        shards = getattr(stream, "num_shards", None)
        if shards is None or shards < workers:
            has = "does not say how many shards it has (num_shards)" if shards is None else f"has num_shards={shards}"
            raise ValueError(
                f"BalanceCallback: {workers} workers cannot share the stream {name!r}, which {has}: some would read "
                f"the same examples or none. Set dataloader_num_workers to at most {shards or 1}, or split it further."
            )


def _check_columns(dataset: MixedDataset, kept: list[str]) -> None:
    for name, part in dataset.datasets.items():
        # By an example: a format or a transform may hide or make columns.
        example = dict.fromkeys(getattr(part, "column_names", None) or []) if is_stream(part) else part[0]
        if not isinstance(example, dict):
            continue
        if removed := [column for column in example if column not in kept]:
            raise ValueError(
                f"BalanceCallback: the Trainer would remove {listed(removed)} from the examples of {name!r} before the "
                "loss sees them. Set remove_unused_columns=False in TrainingArguments, or remove them from the data."
            )


def _check_json(places: Mapping[str, Any]) -> None:
    """JSON would turn other keys into strings without a word, and a tensor into an error that names no stream."""
    for name, place in places.items():
        pending = [place]
        while pending:
            value = pending.pop()
            if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
                pending.extend(value.values())
            elif isinstance(value, (list, tuple)):
                pending.extend(value)
            elif not (value is None or isinstance(value, (str, int, float))):
                raise ValueError(
                    f"BalanceCallback: the state_dict of the stream {name!r} does not fit into the Trainer's JSON "
                    f"state: it holds {value!r}. Make it of numbers, strings, lists and dicts with string keys."
                )


def _why_inexact(trainer: Trainer, dev: Mapping[str, Any]) -> str | None:
    """Why a resumed training would not be the uninterrupted one, and what to change; None: it is."""
    if is_stream(trainer.train_dataset) and trainer.args.dataloader_num_workers:
        return "the workers' places in the streams are not saved. Set dataloader_num_workers=0."
    for name, stream in [*trainer.train_dataset.datasets.items(), *dev.items()]:
        if not is_stream(stream):
            continue
        if not is_stateful(stream):
            return f"the stream {name!r} has no state_dict and load_state_dict. Give it both, or a map-style dataset."
        if _has_shuffle_buffer(getattr(stream, "_ex_iterable", None)):
            return f"the shuffle buffer of {name!r} is not in its state. Shuffle before streaming, without a buffer."
    return None


def _has_shuffle_buffer(part: Any) -> bool:
    """`datasets` loses the examples in a shuffle buffer, as it says; only the parts of a stream show one."""
    if part is None:
        return False
    inner = [getattr(part, "ex_iterable", None), *getattr(part, "ex_iterables", [])]
    return type(part).__name__ == "BufferShuffledExamplesIterable" or any(map(_has_shuffle_buffer, inner))
