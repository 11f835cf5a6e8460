"""The callback of the Hugging Face Trainer: a `Balancer` that is stepped after every optimizer step.

It sets the position from which a new mixture takes effect (`MixedDataset` draws), and writes all states into the
Trainer's checkpoints. `probes.py` has the loss and the batches of probes, `refusals.py` the refusals.
"""

import copy
import logging
import math
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, Unpack

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from ..._base.checks import check_whole
from ...balancer import Balancer, Budget
from ...mixture import Mixture
from ...probes.probed_model import Loss
from ...rules import Rule
from ...sampling import is_stream
from ..balancer_arguments import (
    BalancerArguments,
    checked_balancer_arguments,
    probe_batch_size,
    with_balancer_arguments,
)
from . import refusals
from .checkpoint_tensors import FILE, are_shards, checkpoint_of, resumed_folder, with_tensors, write_tensors
from .logs import log_start, log_update, show_start
from .probes import dev_sets, loss_of, sources, without_logging

_log = logging.getLogger("multidds")


def batches_ahead(args: TrainingArguments) -> int:
    """Returns how many batches the Trainer's loader reads ahead, by its arguments."""
    read_by_workers = args.dataloader_num_workers * (
        args.dataloader_prefetch_factor or 2
    )  # 2: the DataLoader's default
    return int(read_by_workers) + 1  # accelerate reads one more, to find out whether a batch is the last


@with_balancer_arguments
class BalanceCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Learns the mixture of the Trainer's `MixedDataset` while it trains: `trainer.add_callback(BalanceCallback(...))`.

    trainer: the Trainer, with its final arguments. The callback does not keep it alive.
    every: optimizer steps between updates, or the `Budget` from which they follow. Default: 2% of the training.
    dev: the dev sets: a dict, or a list of names in the Trainer's `eval_dataset`. Default None: all of `eval_dataset`;
        if that is one dataset, the dev set is called "dev".
    batch_size: examples per probe batch. Default None: half of a training batch per device, because the default rule
        compares two of them; a whole one for rules that do not.
    loss: (model, batch) -> mean loss, a scalar tensor. Default None: the Trainer's `compute_loss`.
    inexact_resume: True: after a resume, streams that cannot report their position start over.
    **arguments: of `Balancer`.

    `balancer` is the Balancer of the current or the last training; None before the first. A new mixture takes effect at
    a fixed position, after what the loader has read ahead: dataloader_num_workers * dataloader_prefetch_factor + 1
    batches after the step. Each update is one line on the console. All details go to the Trainer's log and loggers, and
    to mixture.jsonl in the output_dir, which `multidds report` reads.
    """

    def __init__(
        self,
        trainer: Any = None,  # `callbacks=[BalanceCallback]` gives none, which is refused
        every: int | Budget = Budget(),
        dev: Mapping[str, Any] | Collection[str] | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        inexact_resume: bool = False,
        **arguments: Unpack[BalancerArguments],
    ) -> None:
        self._check_kinds(trainer)
        refusals.check_trainer(trainer, type(self), allowed=0)
        if batch_size is not None:
            check_whole(refusals.OWNER, batch_size=batch_size)
        self.balancer: Balancer | None = None
        # Weakly: a cycle would keep the model, and the workers of its loader, until garbage is collected.
        self._reference = weakref.ref(trainer)
        self._loss, self._inexact_resume = loss, inexact_resume
        self._mixed = self._drawn_by(trainer)
        self._prior = self.mixture.probabilities
        self._dev = self._dev_sets(trainer, dev)
        self._arguments = checked_balancer_arguments(self.mixture, self._dev, loss, every, arguments)
        self._batch_size = batch_size or self._probe_batch_size(trainer, self._arguments["rule"])
        named = isinstance(dev, Mapping) or isinstance(trainer.eval_dataset, Mapping)
        self._metrics = {name: f"eval_{name}_loss" if named else "eval_loss" for name in self._dev}  # of evaluations
        self._dev_losses: dict[str, float] = {}  # of an evaluation that is under way
        self._resumed_at: int | None = None  # the step of the checkpoint, if there was one
        if trainer.args.train_sampling_strategy == "random":
            # The MixedDataset does the drawing. In a copy: another Trainer with the same arguments still shuffles.
            trainer.args = copy.copy(trainer.args)
            trainer.args.train_sampling_strategy = "sequential"
        self._attach()
        refusals.check_shards(self._mixed.datasets, trainer.args.dataloader_num_workers)
        self._inexact = refusals.why_inexact(self._mixed, trainer.args.dataloader_num_workers, self._dev)

    @property
    def mixture(self) -> Mixture:
        """The mixture that is learned."""
        mixture: Mixture = self._mixed.mixture
        return mixture

    @property
    def _trainer(self) -> Any:
        return self._reference()

    # What depends on who draws: here a MixedDataset, by examples. The callback of sentence-transformers overrides it.

    def _check_kinds(self, trainer: Any) -> None:
        refusals.check_kinds(trainer)

    def _drawn_by(self, trainer: Any) -> Any:
        return trainer.train_dataset

    def _dev_sets(self, trainer: Any, dev: Mapping[str, Any] | Collection[str] | None) -> dict[str, Any]:
        return dev_sets(trainer, dev)

    def _probed(self, trainer: Any) -> Any:
        return trainer.model  # not the wrapped one: probes run eagerly, and average over processes themselves

    def _loss_of_probes(self) -> Loss:
        return loss_of(self._reference, self._loss)

    def _sources(self, sets: Mapping[str, Any], collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return sources(sets, self._batch_size, collate)

    def _probe_batch_size(self, trainer: Any, rule: Rule) -> int:
        return probe_batch_size(trainer.args.per_device_train_batch_size, rule)

    def _reads_all(self, loader: Any) -> bool:
        """Returns whether the loader reads every draw in order."""
        return is_stream(self._mixed) or len(loader) * self._batch == len(self._mixed)

    def _attach(self) -> None:
        """Sets how the Trainer will read the dataset, by its arguments."""
        args = self._trainer.args
        ahead, accumulation = batches_ahead(args), args.gradient_accumulation_steps
        self._batch = args.train_batch_size * args.world_size  # examples of a batch, over all processes
        self._step = self._examples = self._batch * accumulation  # of an optimizer step
        self._lag = ahead * self._batch
        # Streams are read by the first process for all, batch by batch, unless each process reads everything.
        each_reads_all = args.accelerator_config.dispatch_batches is False
        unit = self._batch if each_reads_all else args.train_batch_size
        # Of two batches of one worker, at the end of an epoch and in the next, up to 2 * workers lie apart.
        rounds = (ahead + 2 * args.dataloader_num_workers + 1) // accumulation
        self._mixed.attach(self._step, unit, rounds, whole=self._batch if args.dataloader_drop_last else 1)

    # Events of the Trainer.

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins with the prior; or, in a resumed training, with the state of the checkpoint."""
        trainer, loader = self._trainer, kwargs["train_dataloader"]
        if self.mixture.probabilities != self._prior:  # learned in an earlier training of this Trainer
            self.mixture.move(self._prior)
        self.balancer = self._new_balancer(self.mixture, loader, state.max_steps)
        # Before all others: a callback that saves at the end of a step must find the step counted and its update made.
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)
        self._mixed.restart()  # with the mixture, which the balancer may have moved to a plan
        self._dev_losses, self._resumed_at = {}, None
        if state.global_step > 0:
            self._resume(self.balancer, args, state)
        else:
            log_start(trainer, self.balancer.start, self._prior)
        show_start(trainer, self.balancer)

    def preview(self) -> str:
        """Shows the start line of the training to come. Returns its mixture, its updates and their cost, for `print`.

        Raises the errors that the training would begin with. Makes no step, and leaves the Trainer as it was.
        """
        trainer = self._trainer
        with without_logging(trainer):
            loader = trainer.get_train_dataloader()
            steps = trainer.set_initial_training_values(trainer.args, loader)[-1]
        balancer = self._new_balancer(Mixture(self._prior), loader, steps)
        show_start(trainer, balancer)
        return str(balancer)

    def _new_balancer(self, mixture: Mixture, loader: Any, steps: int) -> Balancer:
        trainer = self._trainer
        self._check_kinds(trainer)
        refusals.check_trainer(trainer, type(self), allowed=1)
        self._attach()
        same = self._drawn_by(trainer) is self._mixed and hasattr(loader, "set_epoch")
        refusals.check_loader(same and self._reads_all(loader))
        if None not in self._mixed.sizes.values():  # those of streams are unknown
            mixture.sizes = self._mixed.sizes
        return Balancer(
            mixture,
            self._probed(trainer),
            self._loss_of_probes(),
            train=self._sources(self._mixed.datasets, loader.collate_fn),
            dev=self._sources(self._dev, loader.collate_fn),
            steps=steps,
            examples_per_step=self._examples,
            **self._arguments,
        )

    def _resume(self, balancer: Balancer, args: Any, state: Any) -> None:
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {})
        inexact = None if self._inexact_resume else self._inexact or saved.get("inexact")
        refusals.check_resuming(saved, args, state.global_step, self._step, inexact)
        folder = resumed_folder(self._trainer) or checkpoint_of(args, state)
        balancer.load_state_dict(with_tensors(saved["balancer"], balancer, folder / FILE, saved.get("digest")))
        self._mixed.load_state_dict(saved["dataset"])
        self._resumed_at = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.balancer is not None
        if state.global_step > state.max_steps:
            _log.warning(
                "BalanceCallback: the resumed training was finished, but the Trainer made step %s of %s. "
                "Use the checkpoint, or raise max_steps.",
                state.global_step,
                state.max_steps,
            )
        self._mixed.consume(self._step)
        update = self.balancer.step()
        self._mixed.mixture_changed(self._mixed.position + self._lag)
        if update is not None:
            log_update(self._trainer, self.balancer, update, self._mixed.passes, examples=self._mixed.examples)
            if update.skipped is not None:
                _log.warning("BalanceCallback: %s.", update)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gathers shards of averages, which every process has to do, and writes them beside the checkpoint."""
        if self.balancer is not None and are_shards(saved := self.balancer.state_dict()):
            write_tensors(saved, checkpoint_of(args, state), first=args.should_save)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Collects the losses of a full evaluation, which rank the dev sets for low and high; one call per dev set."""
        # At the resumed step eval_on_start evaluates, but the uninterrupted training does not.
        if self.balancer is None or state.global_step == self._resumed_at:
            return
        losses = {name: (metrics or {}).get(key) for name, key in self._metrics.items()}
        self._dev_losses |= {name: loss for name, loss in losses.items() if loss is not None}
        if self._dev_losses.keys() == self._dev.keys():
            if all(map(math.isfinite, self._dev_losses.values())):
                self.balancer.dev_losses = self._dev_losses
            self._dev_losses = {}

    def state(self) -> dict[str, Any]:
        """Returns what the Trainer writes into trainer_state.json; `on_train_begin` reads it back.

        Averages, which do not fit into JSON, are written beside it, if they are no shards: not every checkpoint of a
        Trainer is followed by `on_save`.
        """
        if self.balancer is None:
            return {"args": {}, "attributes": {}}
        for name, place in self._mixed.places.items():
            refusals.check_json(name, place)
        args, balancer = self._trainer.args, self.balancer.state_dict()
        digest = None
        if not are_shards(balancer):
            digest = write_tensors(balancer, checkpoint_of(args, self._trainer.state), first=args.should_save)
        attributes = {
            "inexact": self._inexact,
            "position": self._mixed.position,
            "dataset": self._mixed.state_dict(),
            "balancer": {**balancer, "tensors": {}},
            "digest": digest,
        }
        return {"args": {}, "attributes": attributes}
