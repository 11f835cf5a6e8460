"""What the callback refuses, with what to change: tables of (condition, sentence).

Arguments are refused where they are given; what only a trainer or a module shows, when a fit begins.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ..._base.checks import check_names, check_whole, refuse
from ...mixture.mixture import Mixture, check_mixture
from ...probes.prober import Loss
from ...sampling.loader import MixedLoader

OWNER = "BalanceCallback"
_SUPPORTED = {"SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"}
_REFUSED = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"}  # subclasses of those, but not alike


def check_arguments(
    mixture: Mixture,
    dev: Mapping[str, Any],
    loss: Loss | None,
    train: Mapping[str, Any] | None,
    dev_metrics: Mapping[str, str] | None,
    **counts: int | None,
) -> None:
    check_mixture(OWNER, mixture)
    refuse(OWNER, [(not dev, "there must be at least one dev set.")])
    no_function = f"loss must be a function (module, batch), got {type(loss).__name__}."
    refuse(OWNER, [(loss is not None and not callable(loss), no_function)], TypeError)
    check_whole(OWNER, **{word: count for word, count in counts.items() if count is not None})
    if train is not None:
        check_names(f"{OWNER}: train", mixture.names, train)
    if dev_metrics is not None:
        check_names(f"{OWNER}: dev_metrics", dev, dev_metrics)


def check_fit(
    trainer: Trainer, module: LightningModule, loss: Loss | None, reward: object, losses: object = None
) -> None:
    kinds = {base.__name__ for base in type(trainer.strategy).__mro__}
    by_step = loss is None  # the loss of a batch is then that of `training_step(batch, 0)`
    give_loss = "give loss=, a function (module, batch) -> scalar tensor."
    rows = [
        (
            not kinds & _SUPPORTED or kinds & _REFUSED,
            f"probes need the whole model on every device, or the shards of fully_shard, but the strategy is "
            f"{type(trainer.strategy).__name__}; use one device, strategy='ddp' or ModelParallelStrategy, or repeat a "
            "mixture that was learned before: Replay.",
        ),
        (
            "ModelParallelStrategy" in kinds and reward == "moving-average",
            "reward 'moving-average' keeps gradients in shards, of which Lightning would save those of one rank. "
            "Choose another reward.",
        ),
        (
            "ModelParallelStrategy" in kinds and losses is not None,
            "batches that mix datasets keep a gradient in shards, of which Lightning would save those of one rank. "
            "Leave out losses.",
        ),
        (
            trainer.overfit_batches,  # type: ignore[attr-defined]
            "overfit_batches wants the same batches again, but a mixture draws new ones.",
        ),
        (
            by_step and not module.automatic_optimization,
            f"with manual optimization training_step takes steps of its own; {give_loss}",
        ),
        (
            by_step and "dataloader_iter" in inspect.signature(module.training_step).parameters,
            f"a training_step that takes dataloader_iter cannot be given a probe batch; {give_loss}",
        ),
    ]
    refuse(OWNER, rows)


def checked_loader(loader: object, mixture: Mixture) -> MixedLoader:
    """The training loader, if it is one that draws as the mixture says."""
    if not isinstance(loader, MixedLoader):
        raise TypeError(f"{OWNER}: the training loader must be one mixed_loader(...), got {type(loader).__name__}.")
    another = (loader.mixture is not mixture, "it has another Mixture object than mixed_loader; give both the same.")
    refuse(OWNER, [another])
    return loader


def check_metrics(dev_metrics: Mapping[str, str], known: Mapping[str, Any]) -> None:
    there = ", ".join(map(repr, known))
    rows = [
        (key not in known, f"no validation logged {key!r}, the loss of the dev set {name!r}; there are {there}.")
        for name, key in dev_metrics.items()
    ]
    refuse(OWNER, rows, KeyError)
