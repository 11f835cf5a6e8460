"""The callback of sentence-transformers: that of the Hugging Face Trainer, for draws of batches instead of examples.

It differs in who draws (`batches.py`), in the unit that draws are counted in, in how a probe batch is made, and in
losses, which are modules that hold the model and may have parameters of their own.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..._base.checks import Refusal, listed, refuse
from ...probes.probed_model import Loss
from ...rules import Rule
from ..balancer_arguments import with_balancer_arguments
from ..huggingface.callback import BalanceCallback as HuggingFaceCallback
from ..huggingface.callback import batches_ahead
from ..huggingface.probes import dev_sets
from ..huggingface.refusals import NO_TRAINER, OWNER
from .batches import MixedBatches, probe_batches


@with_balancer_arguments
class BalanceCallback(HuggingFaceCallback):
    """Learns the mixture of `mixed_batches` while a trainer trains: `trainer.add_callback(BalanceCallback(trainer))`.

    trainer: a SentenceTransformerTrainer, or the trainer of another kind of model, with its final arguments, including
        `multi_dataset_batch_sampler=mixed_batches(mixture)`. The callback does not keep it alive.
    loss: (model, batch) -> mean loss, a scalar tensor. Default None: the trainer's loss for the dataset of the batch.
    every, dev, batch_size, inexact_resume: as in the callback of `multidds.integrations.huggingface`.
    **arguments: of `Balancer`.

    The trainer's `batch_sampler` makes probe batches, too. A new mixture takes effect after what the loader has read
    ahead: dataloader_num_workers * dataloader_prefetch_factor + 1 batches of each process after the step.
    """

    def _check_kinds(self, trainer: Any) -> None:
        refuse(OWNER, _wrong_kinds(trainer), TypeError)
        dispatched = trainer.args.accelerator_config.dispatch_batches
        refuse(OWNER, [(dispatched, "dispatch_batches=True in accelerator_config is not supported; leave it out.")])

    def _drawn_by(self, trainer: Any) -> Any:
        return trainer.args.multi_dataset_batch_sampler

    def _dev_sets(self, trainer: Any, dev: Mapping[str, Any] | Collection[str] | None) -> dict[str, Any]:
        chosen = dev_sets(trainer, dev)
        if not isinstance(dev, Mapping):
            return chosen
        losses = trainer.loss if isinstance(trainer.loss, dict) else chosen
        without = [name for name in chosen if name not in losses]
        refuse(OWNER, [(without, f"dev {listed(without)} has no loss of its name; there are {listed(losses)}.")])
        # In objects of its own, to which the trainer adds the names of the datasets.
        together = type(trainer.train_dataset)({name: copy.copy(dataset) for name, dataset in chosen.items()})
        return dict(trainer.preprocess_dataset(together, dataset_name="eval"))

    def _probe_batch_size(self, trainer: Any, rule: Rule) -> int:
        """Returns a whole training batch: losses may compare its examples with each other."""
        return int(trainer.args.per_device_train_batch_size)

    def _probed(self, trainer: Any) -> Any:
        """Returns the model, with the losses if they have parameters of their own."""
        losses = _losses(trainer)
        parameters = set(trainer.model.parameters())
        if all(p in parameters for loss in losses for p in loss.parameters()):
            return trainer.model
        return nn.ModuleList([trainer.model, *losses]).train(trainer.model.training)

    def _loss_of_probes(self) -> Loss:
        loss, reference = super()._loss_of_probes(), self._reference

        def with_the_bare_model(model: nn.Module, batch: Any) -> Tensor:
            trainer: Any = reference()
            with _bare(trainer):
                return loss(trainer.model, batch)

        return with_the_bare_model

    def _sources(self, sets: Mapping[str, Any], collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return {name: probe_batches(self._trainer, d, self._batch_size, collate) for name, d in sets.items()}

    def _reads_all(self, loader: Any) -> bool:
        return bool(len(loader) * self._trainer.args.world_size == self._mixed.length)

    def _attach(self) -> None:
        args = self._trainer.args
        self._step = args.world_size * args.gradient_accumulation_steps  # batches of an optimizer step
        self._examples = self._step * args.train_batch_size
        self._lag = batches_ahead(args) * args.world_size
        self._mixed.attach(self._trainer.train_dataset, self._step)


def _wrong_kinds(trainer: Any) -> Iterator[Refusal]:
    yield trainer is None, NO_TRAINER
    yield (
        not hasattr(trainer, "get_multi_dataset_batch_sampler"),
        f"trainer must be one of sentence-transformers, got {type(trainer).__name__}.",
    )
    data, drawn = trainer.train_dataset, trainer.args.multi_dataset_batch_sampler
    yield not isinstance(data, dict), f"train_dataset must be {{name: dataset}}, got {type(data).__name__}."
    yield (
        not isinstance(drawn, MixedBatches),
        f"multi_dataset_batch_sampler must be mixed_batches(mixture) in the trainer's arguments, but it is {drawn!r}.",
    )


def _losses(trainer: Any) -> list[nn.Module]:
    return list(trainer.loss.values()) if isinstance(trainer.loss, dict) else [trainer.loss]


@contextmanager
def _bare(trainer: Any) -> Iterator[None]:
    """Lets losses hold the bare model in the block: the wrapped one would average over processes in a probe."""
    wrapped = trainer.model_wrapped
    modules = [module for loss in _losses(trainer) for module in loss.modules()] if wrapped is not trainer.model else []
    holders = [(m, name) for m in modules for name, child in m.named_children() if child is wrapped]
    for module, name in holders:
        setattr(module, name, trainer.model)
    try:
        yield
    finally:
        for module, name in holders:
            setattr(module, name, wrapped)
