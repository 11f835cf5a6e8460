"""What probes take from a Trainer: its dev sets, its collator over examples or streams, and its loss."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import RemoveColumnsCollator

from ..._base.checks import listed, refuse
from ...probes.prober import Loss
from ...sampling import StreamReader, batches_of, is_stream
from ..restored_attributes import attributes_put_back
from .refusals import OWNER, check_json

_MODELS = ("model", "model_wrapped", "ref_model")  # attributes of Trainers


def dev_sets(trainer: Trainer, dev: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
    if isinstance(dev, Mapping):
        return dict(dev)
    given = trainer.eval_dataset
    what = "there is none" if given is None else f"it is a {type(given).__name__}"
    no_dict = (
        f"the Trainer's eval_dataset must be {{name: dev set}}, but {what}. "
        "Give it as a dict, or give dev={name: dev set}."
    )
    refuse(OWNER, [(not isinstance(given, dict), no_dict)], TypeError)
    names = [dev] if isinstance(dev, str) else list(given if dev is None else dev)
    missing = [name for name in names if name not in given]
    refuse(OWNER, [(missing, f"the dev sets {listed(missing)} are missing from eval_dataset; it has {listed(given)}.")])
    return {name: given[name] for name in names}


def sources(sets: Mapping[str, Any], batch_size: int, collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Probe batches of datasets and streams, by the Trainer's collator."""
    collate = _without_generator(collate)
    return {
        name: _StreamBatches(name, d, batch_size, collate) if is_stream(d) else batches_of(d, batch_size, collate)
        for name, d in sets.items()
    }


class _StreamBatches:
    """Probe batches of a stream, by a reader of its own."""

    def __init__(self, name: str, stream: Any, batch_size: int, collate: Callable[[list[Any]], Any]) -> None:
        self._name, self._stream = name, StreamReader(name, stream)
        self._batch_size, self._collate = batch_size, collate

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._collate([next(self._stream) for _ in range(self._batch_size)])

    def state_dict(self) -> dict[str, Any]:
        place = self._stream.state_dict()
        check_json({self._name: place})
        return place

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stream.load_state_dict(state)


def loss_of(reference: Callable[[], Any], own: Loss | None) -> Loss:
    """The loss of a batch that is first put where the model is, as in a training step."""

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
    """What a Trainer counts, collects or logs meanwhile, in attributes of its own or of its metrics, is forgotten."""
    with attributes_put_back([trainer, *_modules_of(trainer)], leave=("train_dataset", "eval_dataset")):
        trainer.log = _silent
        yield


def _modules_of(trainer: Any) -> Iterator[nn.Module]:
    """Modules that it keeps beside the model, such as losses and metrics; whole models are the prober's or nobody's."""
    values = [value for key, value in vars(trainer).items() if key not in _MODELS]
    pending = [*values, *(inner for value in values if type(value) in (dict, list) for inner in _values(value))]
    seen = {id(getattr(trainer, key, None)) for key in _MODELS}
    while pending:
        module = pending.pop()
        if isinstance(module, nn.Module) and id(module) not in seen:
            seen.add(id(module))
            yield module
            pending.extend(module.children())


def _values(container: dict[Any, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def _silent(*args: Any, **kwargs: Any) -> None: ...


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
