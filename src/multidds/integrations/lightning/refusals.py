"""Refusals of the callback: tables of (condition, sentence that says what to change).

Arguments are checked at construction; the trainer and the module, when a fit begins.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ..._base.checks import Refusal, check_names, check_whole, listed, refuse
from ...mixture.mixture import Mixture, check_mixture
from ...probes.probed_model import Loss
from ...rules import Rule
from ...sampling.loader import MixedLoader

OWNER = "BalanceCallback"
_SUPPORTED = {"SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"}
_REFUSED = {"DeepSpeedStrategy", "XLAStrategy", "SingleDeviceXLAStrategy"}  # subclasses of those, but not alike


def check_arguments(
    mixture: Mixture,
    dev: Mapping[str, Any],
    train: Mapping[str, Any] | None,
    dev_metrics: Mapping[str, str] | None,
    batch_size: int | None,
) -> None:
    check_mixture(OWNER, mixture)
    refuse(OWNER, [(not dev, "dev is empty; there must be at least one dev set.")])
    if train is not None:
        check_names(f"{OWNER}: train", mixture.names, train)
    if dev_metrics is not None:
        check_names(f"{OWNER}: dev_metrics", dev, dev_metrics)
    if batch_size is not None:
        check_whole(OWNER, batch_size=batch_size)


def check_fit(trainer: Trainer, module: LightningModule, loss: Loss | None, rule: Rule) -> None:
    refuse(OWNER, _of_strategy(trainer, rule))
    refuse(OWNER, [(trainer.overfit_batches, "overfit_batches repeats batches, but a mixture draws new ones.")])  # type: ignore[attr-defined]
    if loss is not None:
        return
    rows = [
        (not module.automatic_optimization, "with manual optimization training_step makes steps of its own"),
        (
            "dataloader_iter" in inspect.signature(module.training_step).parameters,
            "a training_step that takes dataloader_iter cannot be given a probe batch",
        ),
    ]
    refuse(OWNER, [(holds, f"{why}; give loss=, a function (module, batch) -> scalar tensor.") for holds, why in rows])


def _of_strategy(trainer: Trainer, rule: Rule) -> Iterator[Refusal]:
    kinds = {base.__name__ for base in type(trainer.strategy).__mro__}
    yield (
        not kinds & _SUPPORTED or kinds & _REFUSED,
        f"{type(trainer.strategy).__name__} is not supported; use one device, strategy='ddp' or ModelParallelStrategy, "
        "or a mixture that was learned before (Replay).",
    )
    yield (
        keeps_one_rank(trainer) and rule.keeps_gradients,
        f"{rule} averages gradients in shards, but Lightning saves those of one rank; choose another.",
    )


def keeps_one_rank(trainer: Trainer) -> bool:
    """Returns whether a model is in shards, of which Lightning's checkpoints keep those of one rank in callbacks."""
    return "ModelParallelStrategy" in {base.__name__ for base in type(trainer.strategy).__mro__}


def checked_loader(loader: object, mixture: Mixture) -> MixedLoader:
    """Returns the training loader, if it draws from this mixture."""
    if not isinstance(loader, MixedLoader):
        raise TypeError(f"{OWNER}: the training loader must be one mixed_loader(...), got {type(loader).__name__}.")
    another = (loader.mixture is not mixture, "mixture must be the same object as that of mixed_loader.")
    refuse(OWNER, [another])
    return loader


def check_metrics(dev_metrics: Mapping[str, str], logged: Mapping[str, Any]) -> None:
    rows = [
        (key not in logged, f"dev_metrics: no validation logged {key!r}, for {name!r}; there are {listed(logged)}.")
        for name, key in dev_metrics.items()
    ]
    refuse(OWNER, rows, KeyError)
