"""Parts of Lightning that probes use: batches of datasets, and the loss of a batch as the trainer computes it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils.data import DataLoader

from ...probes.probed_model import Loss
from ...sampling.loader import MixedLoader
from ...sampling.sources import BatchesOf, Part, batches_of
from ..restored_attributes import restored_attributes


def sources(sets: Mapping[str, Any], batch_size: int, collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Returns {name: source of probe batches}: datasets in batches; a source that gives batches already, as it is."""
    return {name: batches_of(d, batch_size, collate) if _is_dataset(d) else d for name, d in sets.items()}


def sources_of(loader: Callable[[], MixedLoader], names: Iterable[str], batch_size: int) -> dict[str, Any]:
    """Returns {name: source of probe batches} of the datasets of the loader of the moment."""
    return {name: _LoaderBatches(loader, name, batch_size) for name in names}


class _LoaderBatches:
    """The `batches_of` one dataset of the loader of the moment: another fit, or reloading, may bring other data."""

    splittable = True

    def __init__(self, loader: Callable[[], MixedLoader], name: str, batch_size: int) -> None:
        self._loader, self._name, self.batch_size = loader, name, batch_size

    @property
    def dataset(self) -> Any:
        return self._loader().train_sets[self._name]

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        return self._loader().collate_fn

    def __call__(self, generator: torch.Generator) -> Any:
        return self._batches()(generator)

    @property
    def size(self) -> int:
        return self._batches().size

    def of_part(self, key: int, part: Part) -> Any:
        return self._batches().of_part(key, part)

    def _batches(self) -> BatchesOf:
        return batches_of(self.dataset, self.batch_size, self.collate_fn)


def _is_dataset(given: Any) -> bool:
    """Returns whether this is map-style data, as opposed to a source of batches."""
    if isinstance(given, (DataLoader, list, tuple)) or callable(given) or hasattr(given, "load_state_dict"):
        return False
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def loss_of(trainer: Trainer, module: LightningModule, batch: Any, loss: Loss | None) -> Any:
    """Returns the loss of a batch under the trainer's hooks, device and precision."""
    with without_logging(trainer, module):
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        with trainer.precision_plugin.train_step_context():
            if loss is not None:
                return loss(module, batch)
            kinds = [p.kind for p in inspect.signature(module.training_step).parameters.values()]
            alone = len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_POSITIONAL
            output = module.training_step(batch) if alone else module.training_step(batch, 0)
    if output is None:  # Lightning skips such a batch; a loss of NaN skips the update
        return torch.stack([p.sum() for p in module.parameters() if p.requires_grad]).sum() * torch.nan
    return output["loss"] if isinstance(output, Mapping) else output


@contextmanager
def without_logging(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """Drops what `training_step` logs, and restores what it counts in metrics or collects in attributes."""
    loggers = trainer.loggers
    with restored_attributes(module.modules()):
        vars(module).update(log=_silent, log_dict=_silent)
        trainer.loggers = [DummyLogger() for _ in loggers]
        try:
            yield
        finally:
            trainer.loggers = loggers


def _silent(*args: Any, **kwargs: Any) -> None: ...
