"""The callback: a `Balancer` on the Trainer's own loss, collator and dev sets, told of every optimizer step.

It says from which position on a new mixture rules (`mixed_dataset` draws) and keeps everything in the Trainer's
checkpoints. What probes take from a Trainer is in `probes`, what cannot be done in `refusals`.
"""

import copy
import logging
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import RemoveColumnsCollator

from ..._base.carrying import CALLBACK_HINT, advising
from ..._base.checks import check_whole
from ...balancer.balancer import Balancer
from ...probes.prober import Loss
from ...sampling import MixedDataset
from ..options import takes_options_of
from . import refusals
from .logs import lay_out, log_change, log_update
from .probes import dev_sets, loss_of, sources

_log = logging.getLogger("multidds")


def batches_ahead(args: TrainingArguments) -> int:
    """How many batches the workers of the Trainer's loader read ahead, by its arguments."""
    return int(args.dataloader_num_workers * (args.dataloader_prefetch_factor or 2))  # 2: the DataLoader's own default


@takes_options_of(Balancer, provided=("mixture", "model", "loss", "train", "dev"))
class BalanceCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Learns the mixture of the Trainer's `MixedDataset` while it trains: `trainer.add_callback(BalanceCallback(...))`.

    trainer: the Trainer, with its final arguments. It is not kept alive by the callback.
    dev: by default the Trainer's `eval_dataset`, a dict; or a list of some of its names, or a dict of other dev sets.
    batch_size: examples per probe batch; by default those of a training batch per device.
    loss: loss(model, batch), by default the Trainer's `compute_loss`.
    inexact_resume: let streams that cannot report their position start over after a resume, instead of an error.
    changed_data: let a training resume although datasets or dev sets were added or left out, or have another size,
        instead of an error. A new one starts at its prior share; the others keep what they learned. An option of its
        own, since by mistake it would go unnoticed; where nothing has changed, it changes nothing.

    `balancer` belongs to the current or the next training. A new mixture takes effect at a fixed position, after what
    the loader has read ahead: dataloader_num_workers * dataloader_prefetch_factor + 1 batches after the step.
    Each update is one line on the console. All details go to the Trainer's log and loggers, and to mixture.jsonl in the
    output_dir, which `multidds report` reads.
    """

    def __init__(
        self,
        trainer: Trainer,
        every: int | None = None,
        dev: Mapping[str, Any] | Iterable[str] | None = None,
        batch_size: int | None = None,
        loss: Loss | None = None,
        inexact_resume: bool = False,
        changed_data: bool = False,
        **options: Any,
    ) -> None:
        self._check(trainer)
        if batch_size is not None:
            check_whole("BalanceCallback", batch_size=batch_size)
        refusals.check_saving(trainer.args, options.get("reward"))
        # Weakly: a cycle would keep the model, and the workers of its loader, until garbage is collected.
        self._reference = weakref.ref(trainer)
        self._options = options if every is None else {"every": every, **options}
        self._loss = loss
        self._mixed = self._drawn_by(trainer)
        self._dev = self._dev_sets(trainer, dev)
        self._batch_size = batch_size or trainer.args.per_device_train_batch_size
        self._inexact_resume, self._inexact = inexact_resume, self._why_inexact(trainer)
        self._changed_data = changed_data
        self._prior = self._mixed.mixture.probabilities
        self._dev_losses: dict[str, float] = {}  # of an evaluation that is under way
        self._resumed_at: int | None = None  # the step of the checkpoint, if there was one
        if trainer.args.train_sampling_strategy == "random":
            # The MixedDataset does the drawing. In a copy: another Trainer with the same arguments still shuffles.
            trainer.args = copy.copy(trainer.args)
            trainer.args.train_sampling_strategy = "sequential"
        self._attach()
        self.balancer = self._new_balancer(trainer.data_collator)

    @property
    def _trainer(self) -> Any:
        return self._reference()

    # What depends on how a Trainer draws: here by examples of a MixedDataset. Callbacks for others have their own.

    def _check(self, trainer: Any, allowed: int = 0) -> None:
        refusals.check_trainer(trainer, type(self), allowed)

    def _drawn_by(self, trainer: Any) -> Any:
        mixed: MixedDataset = trainer.train_dataset
        return mixed

    def _dev_sets(self, trainer: Any, dev: Mapping[str, Any] | Iterable[str] | None) -> dict[str, Any]:
        return dev_sets(trainer, dev)

    def _why_inexact(self, trainer: Any) -> str | None:
        return refusals.why_inexact(trainer, self._dev)

    def _probed(self, trainer: Any) -> Any:
        return trainer.model  # the bare one: probes run eagerly, and average over processes themselves

    def _loss_of_probes(self) -> Loss:
        return loss_of(self._reference, self._loss)

    def _sources(self, sets: Mapping[str, Any], collate: Callable[[list[Any]], Any]) -> dict[str, Any]:
        return sources(sets, self._batch_size, collate)

    def _check_loader(self, loader: Any) -> None:
        refusals.check_loader(loader, self._mixed, self._batch)
        if self._loss is not None and isinstance(loader.collate_fn, RemoveColumnsCollator):
            refusals.check_columns(self._mixed.datasets, loader.collate_fn.signature_columns)

    def _attach(self) -> None:
        """Tell the dataset how the Trainer reads it, as far as its arguments say."""
        args = self._trainer.args
        workers = args.dataloader_num_workers
        ahead = batches_ahead(args)
        self._batch = args.train_batch_size * args.world_size  # examples of a batch, over all processes
        self._step = self._examples = self._batch * args.gradient_accumulation_steps  # of an optimizer step
        # One batch more: accelerate's loader reads it to know whether the one before is the last.
        self._lag = (ahead + 1) * self._batch
        # Streams are read by the first process for all, batch by batch, unless each process reads everything.
        each_reads_all = args.accelerator_config.dispatch_batches is False
        unit = self._batch if each_reads_all else args.train_batch_size
        # Of two batches of one worker, at the end of an epoch and in the next, up to 2 * workers lie apart.
        rounds = (ahead + 2 * workers + 2) // args.gradient_accumulation_steps
        self._mixed.attach(self._step, unit, rounds, whole=self._batch if args.dataloader_drop_last else 1)

    def _new_balancer(self, collate: Callable[[list[Any]], Any], steps: int | None = None) -> Balancer:
        """At construction, and anew for each training, when the Trainer knows how many steps it will have."""
        known: dict[str, Any] = {} if steps is None else {"steps": steps, "examples": steps * self._examples}
        if None not in self._mixed.sizes.values():
            known["sizes"] = self._mixed.sizes
        return Balancer(
            self._mixed.mixture,
            self._probed(self._trainer),
            self._loss_of_probes(),
            train=self._sources(self._mixed.datasets, collate),
            dev=self._sources(self._dev, collate),
            **known | self._options,
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin with the prior; or, in a resumed training, where the checkpoint says."""
        self._check(self._trainer, allowed=1)
        step, loader = self._step, kwargs["train_dataloader"]
        self._mixed.mixture.move(self._prior)
        self._attach()
        refusals.check_as_constructed(self._drawn_by(self._trainer) is self._mixed, step == self._step)
        self._check_loader(loader)
        # Before all others: one that saves when a step ends must find this step counted and its update done.
        callbacks = self._trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)
        self._options["priority"] = self.balancer.priority  # which may have been assigned
        self.balancer = self._new_balancer(loader.collate_fn, state.max_steps)
        self._mixed.restart()  # which may have moved the mixture to a plan
        self._dev_losses, self._resumed_at = {}, None
        if state.global_step > 0:
            self._resume(args, state)
            self._resumed_at = state.global_step

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        written = state.stateful_callbacks.get(type(self).__name__)
        refusals.check_checkpoint(written, args)
        saved = written["attributes"]
        inexact = None if self._inexact_resume else self._inexact or saved["inexact"]
        refusals.check_resuming(inexact, saved["position"], state.global_step, self._step)
        with advising(CALLBACK_HINT):
            self.balancer.load_state_dict(saved["balancer"], self._changed_data)
            self._mixed.load_state_dict(saved["dataset"])
        if self._changed_data:
            log_change(self._trainer, self.balancer.mixture.probabilities)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._mixed.consume(self._step)
        update = self.balancer.step()
        self._mixed.mixture_changed(self._mixed.position + self._lag)
        if update is not None:
            if len(self.balancer.history) == 1:
                lay_out(self._trainer)
            log_update(self._trainer, self.balancer, update, self._mixed.passes, examples=self._mixed.examples)
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
        refusals.check_json(self._mixed.places)
        balancer = self.balancer.state_dict()
        inexact = self._inexact
        if balancer.pop("direction", 0):  # of mixed batches: without it, it is averaged anew
            balancer, inexact = {**balancer, "tensors": {}}, inexact or refusals.NO_DIRECTION
        attributes = {
            "inexact": inexact,
            "position": self._mixed.position,
            "dataset": self._mixed.state_dict(),
            "balancer": None if balancer["tensors"] else balancer,
        }
        return {"args": {}, "attributes": attributes}
