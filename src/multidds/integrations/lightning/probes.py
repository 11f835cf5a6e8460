"""What probes take from Lightning: batches of datasets, and the loss of a batch as the trainer would have it."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils.data import DataLoader

from ...probes.prober import Loss
from ...sampling.loader import MixedLoader
from ...sampling.sources import batches_of
from ..restored_attributes import attributes_put_back


def sources(sets: Mapping[str, Any], batch_size: int, collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Datasets in batches; what already gives batches as it is."""
    return {name: batches_of(d, batch_size, collate) if _is_dataset(d) else d for name, d in sets.items()}


def sources_of(loader: Callable[[], MixedLoader], names: Iterable[str], batch_size: int) -> dict[str, Any]:
    """The datasets of the loader of this epoch: another fit, or reloading, may bring other data."""

    def source(name: str) -> Callable[[torch.Generator], Any]:
        def batch(generator: torch.Generator) -> Any:
            return batches_of(loader().train_sets[name], batch_size, loader().collate_fn)(generator)

        return batch

    return {name: source(name) for name in names}


def _is_dataset(given: Any) -> bool:
    """Map-style data, as opposed to something that already gives batches."""
    if isinstance(given, (DataLoader, list, tuple)) or callable(given) or hasattr(given, "load_state_dict"):
        return False
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def loss_of(trainer: Trainer, module: LightningModule, batch: Any, loss: Loss | None) -> Any:
    """The loss of a batch as the trainer would have it: the same hooks, device and precision."""
    with _unheard(trainer, module):
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        with trainer.precision_plugin.train_step_context():
            if loss is not None:
                return loss(module, batch)
            kinds = [p.kind for p in inspect.signature(module.training_step).parameters.values()]
            alone = len(kinds) == 1 and kinds[0] is not inspect.Parameter.VAR_POSITIONAL
            output = module.training_step(batch) if alone else module.training_step(batch, 0)
    if output is None:  # Lightning leaves out such a batch; here the update is left out, and says so
        return torch.stack([p.sum() for p in module.parameters() if p.requires_grad]).sum() * torch.nan
    return output["loss"] if isinstance(output, Mapping) else output


@contextmanager
def _unheard(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """What `training_step` logs, counts in metrics or collects in attributes meanwhile is forgotten."""
    loggers = trainer.loggers
    with attributes_put_back(module.modules()):
        vars(module).update(log=_silent, log_dict=_silent)
        trainer.loggers = [DummyLogger() for _ in loggers]
        try:
            yield
        finally:
            trainer.loggers = loggers


def _silent(*args: Any, **kwargs: Any) -> None: ...
