"""Parts of a Trainer that probes use: its dev sets, its collator over examples or streams, and its loss."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import RemoveColumnsCollator

from ..._base.checks import listed, refuse
from ...probes.probed_model import Loss
from ...sampling import StreamReader, batches_of, is_stream
from ...sampling.sources import SINGLE
from ..restored_attributes import restored_attributes
from .refusals import OWNER, check_json

_MODELS = ("model", "model_wrapped", "ref_model")  # attributes of Trainers


def dev_sets(trainer: Trainer, dev: Mapping[str, Any] | Collection[str] | None) -> dict[str, Any]:
    """Returns {name: dev set}. dev: as `BalanceCallback` takes it."""
    given = dev if isinstance(dev, Mapping) else trainer.eval_dataset
    kind = type(dev).__name__
    wrong_kinds = [
        (given is None, "eval_dataset is None; give the Trainer a dev set, or the callback dev={name: dev set}."),
        (
            not (dev is None or (isinstance(dev, Collection) and all(isinstance(name, str) for name in dev))),
            f"dev must be {{name: dev set}}, or names in eval_dataset, got {kind}; give dev={{{SINGLE!r}: ...}}.",
        ),
    ]
    refuse(OWNER, wrong_kinds, TypeError)
    given = given if isinstance(given, Mapping) else {SINGLE: given}
    names = [dev] if isinstance(dev, str) else list(given if dev is None else dev)
    missing = [name for name in names if name not in given]
    rows = [
        (not names, "dev is empty; there must be at least one dev set."),
        (missing, f"dev {listed(missing)} is not in eval_dataset, which has {listed(given)}."),
    ]
    refuse(OWNER, rows)
    return {name: given[name] for name in names}


def sources(sets: Mapping[str, Any], batch_size: int, collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Returns {name: source of probe batches} of datasets and streams, by the Trainer's collator."""
    collate = _without_generator(collate)
    return {
        name: _StreamBatches(name, d, batch_size, collate) if is_stream(d) else batches_of(d, batch_size, collate)
        for name, d in sets.items()
    }


class _StreamBatches:
    """Probe batches of a stream, by a reader of its own."""

    def __init__(self, name: str, stream: Any, batch_size: int, collate: Callable[[list[Any]], Any]) -> None:
        self._name, self.dataset = name, stream
        self._stream = StreamReader(name, stream)
        self.batch_size, self._collate = batch_size, collate

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._collate([next(self._stream) for _ in range(self.batch_size)])

    def state_dict(self) -> dict[str, Any]:
        place = self._stream.state_dict()
        check_json(self._name, place)
        return place

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stream.load_state_dict(state)


def loss_of(reference: Callable[[], Any], own: Loss | None) -> Loss:
    """Returns the loss of probes: `own`, or the Trainer's, of a batch that is moved to the model's device first."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        trainer = reference()
        with without_logging(trainer):
            inputs = trainer._prepare_inputs(batch)
            if own is not None:
                return own(model, inputs)
            with trainer.compute_loss_context_manager():
                value: Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=_items(trainer, inputs))
        return value

    return loss


@contextmanager
def without_logging(trainer: Any) -> Iterator[None]:
    """Drops what a Trainer logs, and restores what it counts or collects in attributes, its own or of its modules."""
    with restored_attributes([trainer, *_modules_of(trainer)], leave=("train_dataset", "eval_dataset")):
        trainer.log = lambda *args, **kwargs: None
        yield


def _modules_of(trainer: Any) -> Iterator[nn.Module]:
    """Yields the modules that a Trainer keeps beside its models, such as losses and metrics."""
    seen: set[Any] = {getattr(trainer, key, None) for key in _MODELS}
    for value in list(vars(trainer).values()):
        inner = value.values() if type(value) is dict else value if type(value) is list else [value]
        for module in inner:
            if isinstance(module, nn.Module):
                yield from (part for _, part in module.named_modules(seen))


def _without_generator(collate: Any) -> Any:
    """Returns the collator for probes, without a generator of its own.

    `DataCollatorForLanguageModeling(seed=...)` has one, which probes would advance: training would get other masks.
    The global generators are seeded for every probe batch.
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
    """Returns the number of labels of a batch, for losses that divide by those of the step; None: for no such loss.

    The Trainer's own method would sum over all processes, but here each batch has a mean of its own.
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
