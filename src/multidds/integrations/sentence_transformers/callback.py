"""The callback: that of the Hugging Face Trainer, where batches are drawn instead of examples.

What differs is here: who draws (`batches`), in which unit a training is counted, how a probe batch is made, and that
losses are modules, which may have parameters of their own and hold the model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from ..._base.checks import refuse
from ...balancer.balancer import Balancer
from ...probes.prober import Loss
from ..huggingface.callback import BalanceCallback as HuggingFaceCallback
from ..huggingface.callback import batches_ahead
from ..huggingface.probes import dev_sets
from ..huggingface.refusals import OWNER, check_arguments, check_model
from ..options import takes_options_of
from .batches import MixedBatches, probe_batches, untransformed_copies


@takes_options_of(Balancer, provided=("mixture", "model", "loss", "train", "dev"))
class BalanceCallback(HuggingFaceCallback):
    """Learns the mixture of `mixed_batches` while a trainer trains: `trainer.add_callback(BalanceCallback(trainer))`.

    trainer: a SentenceTransformerTrainer, or the trainer of another kind of model, with its final arguments, including
        `multi_dataset_batch_sampler=mixed_batches(mixture)`. It is not kept alive by the callback.
    dev: by default the trainer's `eval_dataset`, a dict; or a list of some of its names, or a dict of other dev sets.
    batch_size: examples per probe batch; by default those of a training batch per device.
    loss: loss(model, batch); by default the trainer's own loss for the dataset of the batch.
    changed_data: let a training resume although datasets or dev sets were added or left out, or have another size,
        instead of an error. A new one starts at its prior share; the others keep what they learned.

    `balancer` belongs to the current or the next training. The trainer's `batch_sampler` makes probe batches, too. A
    new mixture takes effect after what the loader has read ahead: dataloader_num_workers * dataloader_prefetch_factor
    + 1 batches of each process after the step. Each update is one line on the console. All details go to the trainer's
    log and loggers, and to mixture.jsonl in the output_dir, which `multidds report` reads.
    """

    def __init__(
        self,
        trainer: Any,
        every: int | None = None,
        dev: Mapping[str, Any] | Iterable[str] | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        changed_data: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(trainer, every, dev, batch_size, loss, changed_data=changed_data, **options)

    def _check(self, trainer: Any, allowed: int = 0) -> None:
        refuse(OWNER, _wrong_kinds(trainer), TypeError)
        there = sum(isinstance(callback, type(self)) for callback in trainer.callback_handler.callbacks)
        rows = [
            (there > allowed, "the trainer has one already; remove it with trainer.remove_callback."),
            (
                trainer.args.accelerator_config.dispatch_batches,
                "dispatch_batches=True in accelerator_config is not supported; leave it out.",
            ),
        ]
        refuse(OWNER, rows)
        check_model(trainer)
        check_arguments(trainer.args)

    def _drawn_by(self, trainer: Any) -> Any:
        return trainer.args.multi_dataset_batch_sampler

    def _dev_sets(self, trainer: Any, dev: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
        found = dev_sets(trainer, dev)
        if isinstance(dev, Mapping):
            losses = trainer.loss if isinstance(trainer.loss, dict) else found
            without = [name for name in found if name not in losses]
            refuse(
                OWNER, [(without, f"the dev sets {without} have no loss of their name; the losses are {[*losses]}.")]
            )
            together = type(trainer.train_dataset)(untransformed_copies(found))
            found = dict(trainer.preprocess_dataset(together, dataset_name="eval"))
        return found

    def _why_inexact(self, trainer: Any) -> str | None:
        return None

    def _probed(self, trainer: Any) -> Any:
        """With the losses, where they have parameters that are trained, too."""
        losses = _losses(trainer)
        ours = set(trainer.model.parameters())
        if not any(p not in ours for loss in losses for p in loss.parameters()):
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

    def _check_loader(self, loader: Any) -> None:
        its_own = self._mixed.reads(len(loader), self._trainer.args.world_size)
        other = "the loader of get_train_dataloader does not read mixed_batches. Do not override the method."
        refuse(OWNER, [(not its_own, other)])

    def _attach(self) -> None:
        args = self._trainer.args
        processes = args.world_size
        self._step = processes * args.gradient_accumulation_steps  # batches of an optimizer step
        self._examples = self._step * args.train_batch_size
        self._lag = (batches_ahead(args) + 1) * processes  # one more: accelerate's loader reads it
        self._mixed.attach(self._trainer.train_dataset, self._step)


def _wrong_kinds(trainer: Any) -> Iterator[tuple[object, str]]:
    yield (
        not hasattr(trainer, "get_multi_dataset_batch_sampler"),
        f"the first argument must be a trainer of sentence-transformers, got {type(trainer).__name__}.",
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
    """Losses call the model that they hold: in a probe not the wrapped one, which would average over processes."""
    wrapped, found = trainer.model_wrapped, []
    if wrapped is not trainer.model:
        modules = [module for loss in _losses(trainer) for module in loss.modules()]
        found = [(m, name) for m in modules for name, child in m.named_children() if child is wrapped]
    for module, name in found:
        setattr(module, name, trainer.model)
    try:
        yield
    finally:
        for module, name in found:
            setattr(module, name, wrapped)
