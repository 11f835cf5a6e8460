"""Lightning: the callback that learns the mixture of a `mixed_loader` (`loading`).

The user's module, datamodule and trainer stay as they are. Draws are the loader's and updates are the balancer's;
here is when Lightning's loop meets them, and that its checkpoints carry them. The only file that imports lightning.
"""

import copy
import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .balancer import Balancer
from .checks import check_names, check_whole
from .loading import MixedLoader, mixed_loader
from .mixture import Mixture, check_mixture
from .probing import Loss
from .randomness import random_states, set_random_states
from .replicas import Replicas
from .sources import batches_of
from .update import Update

__all__ = ["BalanceCallback", "MixedLoader", "mixed_loader"]

_SUPPORTED = {"SingleDeviceStrategy", "DDPStrategy"}
_REFUSED = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"}  # subclasses of those, but not alike
_INTERNALS = frozenset(vars(nn.Module()))  # parameters, buffers, submodules, hooks, flags: the prober's
_CONTAINERS = (list, dict, set, deque)
_log = logging.getLogger("multidds")


class BalanceCallback(Callback):
    """Learns the mixture of a `mixed_loader` while a Trainer fits: one more callback, the module stays as it is.

    dev: {name: map-style dataset, or a source of probe batches as `Balancer` takes them}. every: optimizer steps
    between updates. loss: (module, batch) -> mean loss; by default the module's `training_step`, whose logs, metrics
    and collected outputs are put back after a probe. train: other sources of probe batches than the loader's datasets.
    batch_size: of probe batches, by default the loader's. dev_metrics: {dev set: name of a logged validation loss},
    by which the priorities low and high then rank. options: those of `Balancer`.

    `balancer` is there from the start of training. State travels in Lightning's checkpoints; `fit(ckpt_path=...)`
    goes on bit for bit, random states included if the number of processes is the same.
    """

    def __init__(
        self,
        mixture: Mixture,
        dev: Mapping[str, Any],
        every: int,
        *,
        loss: Loss | None = None,
        train: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        dev_metrics: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        check_mixture("BalanceCallback", mixture)
        if not dev:
            raise ValueError("BalanceCallback: there must be at least one dev set.")
        if loss is not None and not callable(loss):
            raise TypeError(f"BalanceCallback: loss must be a function (module, batch), got {type(loss).__name__}.")
        check_whole("BalanceCallback", every=every, **({} if batch_size is None else {"batch_size": batch_size}))
        if train is not None:
            check_names("BalanceCallback: train", mixture.names, train)
        if dev_metrics is not None:
            check_names("BalanceCallback: dev_metrics", dev, dev_metrics)
        inspect.signature(Balancer).bind(mixture, None, None, train=train, dev=dev, every=every, **options)
        self.mixture = mixture
        self.balancer: Balancer | None = None
        self._dev, self._train, self._every, self._options = dict(dev), train, every, options
        self._loss, self._batch_size, self._dev_metrics = loss, batch_size, dev_metrics
        self._module: LightningModule | None = None  # the balancer's
        self._loader: MixedLoader | None = None
        self._steps = 0  # optimizer steps that the balancer has been told of, in the trainer's count
        self._loaded: Mapping[str, Any] | None = None  # a state that waits for the start of training

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._loaded = None
        if stage != "fit":
            return
        kinds = {base.__name__ for base in type(trainer.strategy).__mro__}
        if not kinds & _SUPPORTED or kinds & _REFUSED:
            raise ValueError(
                f"BalanceCallback: probes need the whole model on every device, but the strategy is "
                f"{type(trainer.strategy).__name__}; use one device or strategy='ddp'."
            )
        if trainer.overfit_batches:  # type: ignore[attr-defined]
            raise ValueError(
                "BalanceCallback: overfit_batches wants the same batches again, but a mixture draws new ones."
            )
        if self._loss is None:
            _check_training_step(pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader, before = self._own_loader(trainer), self._loader
        if self._module is pl_module and before is not None and loader.begins_as(before):
            loader.load_state_dict(before.state_dict())  # a datamodule has made it again for another fit
        self._loader = loader
        if self.balancer is None or self._module is not pl_module:
            self._module, self.balancer = pl_module, self._made_balancer(pl_module, loader)
        if self._loaded is None:
            self._steps = trainer.global_step
            return
        state, self._loaded = self._loaded, None
        self.balancer.load_state_dict(state["balancer"])
        loader.load_state_dict(state["loader"])
        self._steps = int(state["steps"])
        replicas = Replicas(pl_module.device)
        if len(state["random"]) == replicas.size:
            set_random_states(pl_module.device, state["random"][replicas.rank])
        self._step_balancer(trainer)  # saved after an optimizer step, but before this callback heard of it

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = self._own_loader(trainer)
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
        for name, key in self._dev_metrics.items():
            if key not in known:
                raise KeyError(
                    f"BalanceCallback: no validation logged {key!r}, the loss of the dev set {name!r}; "
                    f"there are {', '.join(map(repr, known))}."
                )
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
            "random": Replicas(device).gathered(random_states(device)),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._loaded is not None:  # the checkpoint left nothing to train
            self.mixture.load_state_dict(self._loaded["mixture"])

    def _own_loader(self, trainer: Trainer) -> MixedLoader:
        loader = trainer.train_dataloader
        if not isinstance(loader, MixedLoader):
            raise TypeError(
                f"BalanceCallback: the training loader must be one mixed_loader(...), got {type(loader).__name__}."
            )
        if loader.mixture is not self.mixture:
            raise ValueError("BalanceCallback: it has another Mixture object than mixed_loader; give both the same.")
        return loader

    def _made_balancer(self, module: LightningModule, loader: MixedLoader) -> Balancer:
        batch_size = self._batch_size or loader.batch_size

        def sources(sets: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: batches_of(given, batch_size, loader.collate_fn) if _is_dataset(given) else given
                for name, given in sets.items()
            }

        def of_loader(name: str) -> Callable[[torch.Generator], Any]:
            def source(generator: torch.Generator) -> Any:
                assert self._loader is not None  # that of this epoch: another fit, or reloading, may bring other data
                return batches_of(self._loader.train_sets[name], batch_size, self._loader.collate_fn)(generator)

            return source

        def loss(module: LightningModule, batch: Any) -> Any:
            return _loss_of(module.trainer, module, batch, self._loss)  # the next fit may have another trainer

        return Balancer(
            self.mixture,
            module,
            loss,
            train={name: of_loader(name) for name in self.mixture} if self._train is None else sources(self._train),
            dev=sources(self._dev),
            every=self._every,
            **self._options,
        )

    def _step_balancer(self, trainer: Trainer) -> None:
        """Tell the balancer of every optimizer step that the trainer has made."""
        assert self.balancer is not None
        while self._steps < trainer.global_step:
            if self.balancer.steps_until_update == 1 and not self.balancer.knows_the_parameters:
                self.balancer.meet_new_parameters()  # BackboneFinetuning and its like unfreeze some in the middle
            update = self.balancer.step()
            self._steps += 1
            if update is not None:
                self._report(trainer, update)

    def _report(self, trainer: Trainer, update: Update) -> None:
        assert self._loader is not None
        if update.skipped is not None and trainer.is_global_zero:
            _log.warning("BalanceCallback: the mixture did not move at step %d: %s.", update.step, update.skipped)
        metrics = update.scalars(passes=self._loader.passes)
        for logger in trainer.loggers:  # the step by which Lightning logs what training_step says of this batch
            logger.log_metrics(metrics, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
        trainer.callback_metrics.update({key: torch.tensor(value) for key, value in metrics.items()})


def _is_dataset(given: Any) -> bool:
    """Map-style data, as opposed to something that already gives batches."""
    if isinstance(given, (DataLoader, list, tuple)) or callable(given) or hasattr(given, "load_state_dict"):
        return False
    return hasattr(given, "__len__") and hasattr(given, "__getitem__")


def _check_training_step(module: LightningModule) -> None:
    """Whether `training_step(batch, 0)` is the loss of a batch."""
    if not module.automatic_optimization:
        raise ValueError(
            "BalanceCallback: with manual optimization training_step takes steps of its own; "
            "give loss=, a function (module, batch) -> scalar tensor."
        )
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise ValueError(
            "BalanceCallback: a training_step that takes dataloader_iter cannot be given a probe batch; "
            "give loss=, a function (module, batch) -> scalar tensor."
        )


def _loss_of(trainer: Trainer, module: LightningModule, batch: Any, loss: Loss | None) -> Any:
    """The loss of a batch as the trainer would have it: the same hooks, device and precision."""
    with _unseen(trainer, module):
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
def _unseen(trainer: Trainer, module: LightningModule) -> Iterator[None]:
    """What `training_step` logs, counts in metrics or collects in attributes meanwhile is forgotten."""
    kept = [
        (vars(part), {key: _kept(value) for key, value in vars(part).items() if key not in _INTERNALS})
        for part in module.modules()
    ]
    loggers = trainer.loggers
    trainer.loggers = [DummyLogger() for _ in loggers]
    vars(module).update(log=_silent, log_dict=_silent)
    try:
        yield
    finally:
        trainer.loggers = loggers
        for attributes, values in kept:
            for key in [key for key in attributes if key not in values and key not in _INTERNALS]:
                del attributes[key]
            for key, (value, content) in values.items():
                _put_back(value, content)
                attributes[key] = value


def _silent(*args: Any, **kwargs: Any) -> None: ...


def _kept(value: Any, depth: int = 2) -> tuple[Any, Any]:
    """(the object, what is in it). The object itself stays: metrics share theirs.

    Two containers deep, as in {"loss": []}; tensors that a list has collected are not copied.
    """
    if isinstance(value, Tensor):
        return value, None if value.is_inference() else (value._version, value.detach().clone())
    if depth == 0 or not isinstance(value, _CONTAINERS):
        return value, None
    inside = value.values() if isinstance(value, dict) else value
    kinds = (*_CONTAINERS, Tensor) if isinstance(value, dict) else _CONTAINERS
    return value, (copy.copy(value), [_kept(item, depth - 1) for item in inside if isinstance(item, kinds)])


def _put_back(value: Any, content: Any) -> None:
    if content is None:
        return
    if isinstance(value, Tensor):
        if value._version != content[0]:  # written in place
            value.data.copy_(content[1])
        return
    items, inside = content
    for item, its_content in inside:
        _put_back(item, its_content)
    value.clear()
    if isinstance(value, (list, deque)):
        value.extend(items)
    else:
        value.update(items)
