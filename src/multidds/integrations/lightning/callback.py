"""The callback that learns the mixture of a `mixed_loader`: when Lightning's loop meets loader and balancer.

Draws are the loader's (`loading`) and updates the balancer's; here is that they are told of each step and fit, and that
Lightning's checkpoints carry them. What probes take from Lightning is in `probes`, what cannot be done in `refusals`.
"""

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ..._base.carrying import CALLBACK_HINT, advising, carried_shares
from ..._base.randomness import random_states, set_random_states
from ..._base.ranks import Ranks
from ...balancer.balancer import Balancer
from ...history.update import Update
from ...mixture.mixture import Mixture
from ...probes.prober import Loss
from ...sampling.loader import MixedLoader
from ..options import takes_options_of
from . import refusals
from .logs import log_change, log_update
from .probes import loss_of, sources, sources_of

_log = logging.getLogger("multidds")


@takes_options_of(Balancer, provided=("mixture", "model", "loss", "train", "dev"))
class BalanceCallback(Callback):
    """Learns the mixture of a `mixed_loader` while a Trainer fits: one more callback, the module stays as it is.

    mixture: the loader's mixture, the same object.
    dev: {name: map-style dataset, or a source of probe batches as `Balancer` takes them}.
    loss: (module, batch) -> mean loss; by default the module's `training_step`, whose logs, metrics and collected
        outputs are restored after a probe.
    train: sources of probe batches other than the loader's datasets.
    batch_size: examples per probe batch; by default those of the loader's batches.
    dev_metrics: {dev set: name of a logged validation loss}; the priorities low and high then rank by these.
    changed_data: let `fit(ckpt_path=...)` continue although datasets or dev sets were added or left out, or have
        another size, instead of an error. A new one starts at its prior share; the others keep what they learned.

    `balancer` exists from the start of training. Each update is one line on the console. All details go to the
    trainer's loggers, under the number of optimizer steps, and to mixture.jsonl beside their logs, which
    `multidds report` reads. The state is in Lightning's checkpoints; `fit(ckpt_path=...)` continues bit for bit,
    including random states if the number of processes is the same.
    """

    def __init__(
        self,
        mixture: Mixture,
        dev: Mapping[str, Any],
        every: int | None = None,
        *,
        loss: Loss | None = None,
        train: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        dev_metrics: Mapping[str, str] | None = None,
        changed_data: bool = False,
        **options: Any,
    ) -> None:
        refusals.check_arguments(mixture, dev, loss, train, dev_metrics, every=every, batch_size=batch_size)
        self._options = options if every is None else {"every": every, **options}
        inspect.signature(Balancer).bind(mixture, None, loss, train=train, dev=dev, **self._options)
        self.mixture = mixture
        self.balancer: Balancer | None = None
        self._dev, self._train, self._batch_size = dict(dev), train, batch_size
        self._loss, self._dev_metrics, self._changed_data = loss, dev_metrics, changed_data
        self._module: LightningModule | None = None  # the balancer's
        self._loader: MixedLoader | None = None
        self._steps = 0  # optimizer steps that the balancer has been told of, in the trainer's count
        self._loaded: Mapping[str, Any] | None = None  # a state that waits for the start of training

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded = None
        if stage == "fit":
            refusals.check_fit(trainer, pl_module, self._loss, *map(self._options.get, ("reward", "losses")))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        before, loader = self._loader, refusals.checked_loader(trainer.train_dataloader, self.mixture)
        if self._module is pl_module and before is not None and loader.is_fresh_copy_of(before):
            loader.load_state_dict(before.state_dict())  # a datamodule has made it again for another fit
        self._loader = loader
        if self.balancer is None or self._module is not pl_module:
            self._module, self.balancer = pl_module, self._new_balancer(pl_module, loader)
        if self._loaded is None:
            self._steps = trainer.global_step
            return
        state, self._loaded = self._loaded, None
        with advising(CALLBACK_HINT):
            self.balancer.load_state_dict(state["balancer"], self._changed_data)
            loader.load_state_dict(state["loader"])
        self._steps = int(state["steps"])
        if self._changed_data:
            log_change(trainer, self._steps, self.mixture.probabilities)
        replicas = Ranks(pl_module.device)
        if len(state["random"]) == replicas.size:
            set_random_states(pl_module.device, state["random"][replicas.rank])
        self._step_balancer(trainer)  # saved after an optimizer step, but before this callback heard of it

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = refusals.checked_loader(trainer.train_dataloader, self.mixture)
        if self._loader is not None and loader is not self._loader:  # reload_dataloaders_every_n_epochs
            loader.load_state_dict(self._loader.state_dict())
        self._loader = loader

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step_balancer(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.balancer is None or self._dev_metrics is None or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        known = trainer.callback_metrics
        refusals.check_metrics(self._dev_metrics, known)
        losses = {name: float(known[key]) for name, key in self._dev_metrics.items()}
        if bad := [key for name, key in self._dev_metrics.items() if not math.isfinite(losses[name])]:
            if trainer.is_global_zero:
                _log.warning("BalanceCallback: %r is %s: the dev sets keep their ranks.", bad[0], float(known[bad[0]]))
            return
        self.balancer.dev_losses = losses

    def state_dict(self) -> dict[str, Any]:
        """On all ranks together, as Lightning saves: it holds the random states of each."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self.balancer is None or self._loader is None or self._module is None:
            return {}
        device = self._module.device
        # A batch in which an exception was raised: Lightning will ask for it again.
        progress = self._module.trainer.fit_loop.epoch_loop.batch_progress.current
        unfinished = progress.ready - progress.processed  # type: ignore[attr-defined]
        return {
            "steps": self._steps,
            "mixture": self.mixture.state_dict(),
            "balancer": self.balancer.state_dict(),
            "loader": self._loader.state_dict(unfinished),
            # What Lightning does not save: without it dropout after a resume is not that of an uninterrupted run.
            "random": Ranks(device).gather(random_states(device)),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._loaded is not None:  # the checkpoint left nothing to train
            if self._changed_data:
                self.mixture.move(
                    carried_shares(Mixture.shares_in(self._loaded["mixture"]), self.mixture.probabilities)
                )
            else:
                self.mixture.load_state_dict(self._loaded["mixture"])

    def _current_loader(self) -> MixedLoader:
        assert self._loader is not None
        return self._loader

    def _new_balancer(self, module: LightningModule, loader: MixedLoader) -> Balancer:
        """At the start of a fit, when the trainer knows how long it will be."""

        def loss(module: LightningModule, batch: Any) -> Any:
            return loss_of(module.trainer, module, batch, self._loss)  # the next fit may have another trainer

        batch_size = self._batch_size or loader.batch_size
        known: dict[str, Any] = {"sizes": {name: len(dataset) for name, dataset in loader.train_sets.items()}}
        steps = module.trainer.estimated_stepping_batches
        if math.isfinite(steps) and steps > 0:
            known |= {
                "steps": int(steps),
                "examples": steps * loader.examples_of(module.trainer.accumulate_grad_batches),
            }
        return Balancer(
            self.mixture,
            module,
            loss,
            train=sources_of(self._current_loader, self.mixture.names, batch_size)
            if self._train is None
            else sources(self._train, batch_size, loader.collate_fn),
            dev=sources(self._dev, batch_size, loader.collate_fn),
            **known | self._options,
        )

    def _step_balancer(self, trainer: Trainer) -> None:
        """Tell the balancer of every optimizer step that the trainer has made."""
        assert self.balancer is not None
        while self._steps < trainer.global_step:
            if self.balancer.steps_until_update == 1 and not self.balancer.knows_the_parameters:
                self.balancer.refresh_parameters()  # BackboneFinetuning and its like unfreeze some in the middle
            update = self.balancer.step()
            self._steps += 1
            if update is not None:
                self._report(trainer, update)

    def _report(self, trainer: Trainer, update: Update) -> None:
        assert self.balancer is not None
        if update.skipped is not None and trainer.is_global_zero:
            _log.warning("BalanceCallback: the mixture did not move at step %d: %s.", update.step, update.skipped)
        passes = self._current_loader().passes
        log_update(trainer, self.balancer, update, passes)
        metrics = update.scalars(passes=passes)
        trainer.callback_metrics.update({key: torch.tensor(value) for key, value in metrics.items()})
