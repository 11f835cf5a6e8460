"""The callback of Lightning: a `Balancer` that is stepped after every optimizer step of a fit.

The draws are those of the loader (`mixed_loader`). The callback keeps loader and balancer in step over fits, and writes
both into Lightning's checkpoints. `probes.py` has the loss and the batches of probes, `refusals.py` the refusals.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ..._base.randomness import random_states, set_random_states
from ..._base.ranks import Ranks
from ...balancer import Balancer, Budget
from ...mixture import Mixture
from ...probes.probed_model import Loss
from ...sampling.loader import MixedLoader
from ...sampling.sources import named_dev_sets
from ..balancer_arguments import (
    BalancerArguments,
    checked_balancer_arguments,
    probe_batch_size,
    with_balancer_arguments,
)
from . import refusals
from .logs import log_update, show_start
from .probes import loss_of, sources, sources_of

_log = logging.getLogger("multidds")


@with_balancer_arguments
class BalanceCallback(Callback):
    """Learns the mixture of a `mixed_loader` while a Trainer fits: one more callback, the module stays as it is.

    mixture: the loader's mixture, the same object.
    dev: {name: map-style dataset, or a source of probe batches as `Balancer` takes them}; or one of these, which is
        then called "dev".
    every: optimizer steps between updates, or the `Budget` from which they follow. Default: 2% of the training.
    loss: (module, batch) -> mean loss, a scalar tensor. Default None: the module's `training_step`, whose logs, metrics
        and collected outputs are restored after a probe.
    train: {dataset: source of probe batches}, other than the loader's datasets. Default None: those.
    batch_size: examples per probe batch. Default None: half of the loader's batches, because the default rule compares
        two of them; whole ones for rules that do not.
    dev_metrics: {dev set: name of a logged validation loss}, by which the priorities "low", "high" and functions then
        rank. Default None: they rank by losses of probes.
    **arguments: of `Balancer`.

    `balancer` exists from the start of training. Each update is one line on the console. All details go to the
    trainer's loggers, under the number of optimizer steps, and to mixture.jsonl beside their logs, which
    `multidds report` reads. The state is in Lightning's checkpoints; `fit(ckpt_path=...)` continues bit for bit,
    including random states if the number of processes is the same.
    """

    def __init__(
        self,
        mixture: Mixture,
        dev: Any,
        every: int | Budget = Budget(),
        *,
        loss: Loss | None = None,
        train: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        dev_metrics: Mapping[str, str] | None = None,
        **arguments: Unpack[BalancerArguments],
    ) -> None:
        dev = named_dev_sets(refusals.OWNER, dev)
        refusals.check_arguments(mixture, dev, train, dev_metrics, batch_size)
        self._arguments = checked_balancer_arguments(mixture, dev, loss, every, arguments)
        self.mixture = mixture
        self.balancer: Balancer | None = None
        self._dev, self._train, self._batch_size = dict(dev), train, batch_size
        self._loss, self._dev_metrics = loss, dev_metrics
        self._module: LightningModule | None = None  # the balancer's
        self._loader: Any = None  # the MixedLoader of the present epoch
        self._steps = 0  # optimizer steps that the balancer has counted, in the trainer's count
        self._loaded: Mapping[str, Any] | None = None  # a state that waits for the start of training

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuses, if the stage is a fit, a trainer and a pl_module that cannot be probed."""
        self._loaded = None
        if stage == "fit":
            refusals.check_fit(trainer, pl_module, self._loss, self._arguments["rule"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        before, loader = self._loader, refusals.checked_loader(trainer.train_dataloader, self.mixture)
        if self._module is pl_module and before is not None and loader.is_fresh_copy_of(before):
            loader.load_state_dict(before.state_dict())  # a datamodule has made it again for another fit
        self._loader = loader
        if self.balancer is None or self._module is not pl_module:
            self._module, self.balancer = pl_module, self._new_balancer(pl_module, loader)
        self._steps = trainer.global_step
        if self._loaded is not None:
            state, self._loaded = self._loaded, None
            self.balancer.load_state_dict(state["balancer"])
            loader.load_state_dict(state["loader"])
            self._steps = state["steps"]
            ranks = Ranks(pl_module.device)
            if len(state["random"]) == ranks.size:
                set_random_states(pl_module.device, state["random"][ranks.rank])
        show_start(trainer, self.balancer)
        if self._steps < trainer.global_step:
            self._step_balancer(trainer)  # a callback before this one may have saved after an optimizer step

    def _new_balancer(self, module: LightningModule, loader: MixedLoader) -> Balancer:
        """Returns the Balancer of a module, at the start of its first fit, whose length the trainer has computed."""
        trainer = module.trainer
        batch_size = self._batch_size or probe_batch_size(loader.batch_size, self._arguments["rule"])
        train = sources_of(lambda: self._loader, self.mixture.names, batch_size)
        steps = trainer.estimated_stepping_batches
        self.mixture.sizes = {name: len(dataset) for name, dataset in loader.train_sets.items()}
        arguments, probes, rule = dict(self._arguments), self._arguments["probes"], self._arguments["rule"]
        averages = rule.halves if probes.average is None else probes.average > 0
        if averages and refusals.keeps_one_rank(trainer):
            _log.info("BalanceCallback: probes are at the parameters: Lightning would save averages of one rank only.")
            arguments["probes"] = replace(probes, average=0)
        return Balancer(
            self.mixture,
            module,
            lambda module, batch: loss_of(module.trainer, module, batch, self._loss),  # of the fit of the moment
            train=train if self._train is None else sources(self._train, batch_size, loader.collate_fn),
            dev=sources(self._dev, batch_size, loader.collate_fn),
            steps=int(steps) if math.isfinite(steps) and steps > 0 else None,
            examples_per_step=loader.examples_of(trainer.accumulate_grad_batches),
            **arguments,
        )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = refusals.checked_loader(trainer.train_dataloader, self.mixture)
        if self._loader is not None and loader is not self._loader:  # reload_dataloaders_every_n_epochs
            loader.load_state_dict(self._loader.state_dict())
        self._loader = loader

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._step_balancer(trainer)

    def _step_balancer(self, trainer: Trainer) -> None:
        """Steps the balancer once for every optimizer step that the trainer has made since."""
        assert self.balancer is not None
        while self._steps < trainer.global_step:
            if self.balancer.steps_until_update == 1 and self.balancer.parameters_changed:
                self.balancer.refresh_parameters()  # callbacks such as BackboneFinetuning unfreeze some in the middle
            update = self.balancer.step()
            self._steps += 1
            if update is None:
                continue
            passes = self._loader.passes
            log_update(trainer, self.balancer, update, passes)
            if update.skipped is not None and trainer.is_global_zero:
                _log.warning("BalanceCallback: %s.", update)
            metrics = update.scalars(passes=passes)
            trainer.callback_metrics.update({key: torch.tensor(value) for key, value in metrics.items()})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.balancer is None or self._dev_metrics is None or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        refusals.check_metrics(self._dev_metrics, trainer.callback_metrics)
        losses = {name: float(trainer.callback_metrics[key]) for name, key in self._dev_metrics.items()}
        if all(map(math.isfinite, losses.values())):
            self.balancer.dev_losses = losses
        elif trainer.is_global_zero:
            _log.warning("BalanceCallback: dev losses %s are not all finite: the dev sets keep their ranks.", losses)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the training; all ranks call it together, since it holds the random states of each."""
        if self._loaded is not None:
            return dict(self._loaded)
        if self.balancer is None or self._module is None:
            return {}
        device = self._module.device
        # A batch in which an exception was raised: Lightning will ask for it again.
        progress = self._module.trainer.fit_loop.epoch_loop.batch_progress.current
        unfinished = progress.ready - progress.processed  # type: ignore[attr-defined]
        return {
            "steps": self._steps,
            "balancer": self.balancer.state_dict(),
            "loader": self._loader.state_dict(unfinished),
            # Lightning does not save them: dropout after a resume would not be that of an uninterrupted run.
            "random": Ranks(device).gather(random_states(device)),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict or None

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Takes the mixture of a checkpoint if a fit (stage) of pl_module by trainer had nothing left to train."""
        if stage == "fit" and self._loaded is not None:
            self.mixture.load_state_dict(self._loaded["balancer"]["mixture"])
