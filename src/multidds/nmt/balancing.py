"""The balancer of a training, made from its config, and its updates as records."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multidds import Balancer, Mixture, Scorer, Update, rewards

from .batches import Batch, Sentences, probe_batches
from .config import Config
from .errors import UserError
from .prior import constant_rewards
from .records import AlignmentFacts, Updated


def make_balancer(
    config: Config,
    mixture: Mixture,
    model: nn.Module,
    loss: Callable[[nn.Module, list[Batch]], Tensor],
    train: Mapping[str, Sentences],
    dev: Mapping[str, Sentences],
    priority: str | dict[str, float],
) -> Balancer | None:
    """None where the mixture is static. loss: per token, of a probe batch in parts."""
    settings = config.mixture
    if settings.method == "static":
        return None
    optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    scorer = settings.scorer
    try:
        return Balancer(
            mixture,
            model,
            loss,
            train={name: probe_batches(data, settings.probe_tokens) for name, data in train.items()},
            dev={name: probe_batches(data, settings.probe_tokens) for name, data in dev.items()},
            every=settings.every,
            reward=constant_rewards if settings.method == "constant" else settings.method,
            priority=priority,
            scorer=Scorer(
                lr=scorer.lr,
                optimizer=optimizers[scorer.optimizer],
                inner_steps=scorer.inner_steps,
                rule=scorer.rule,
                floor=scorer.floor,
            ),
            batches=settings.probe_batches,
            step_ahead=settings.step_ahead or None,
            sketch=settings.sketch or None,
            decay=settings.decay,
            seed=config.train.seed,
        )
    except ValueError as error:
        raise UserError(f"[mixture] {error}") from None


def record_of(update: Update, step: int, passes: Mapping[str, float]) -> Updated:
    aligned = None
    if (table := update.alignment) is not None:
        weights = torch.tensor([update.weights[name] for name in table.dev_names], dtype=torch.float64)
        both = {"multidds": rewards.multidds(table, weights), "multidds-s": rewards.multidds_s(table, weights)}
        aligned = AlignmentFacts(
            rewards={key: dict(zip(table.train_names, r.tolist(), strict=True)) for key, r in both.items()},
            cosines=[[round(c, 5) for c in row] for row in table.cosines().tolist()],
            train_norms=table.train_norms.tolist(),
            dev_norms=table.dev_norms.tolist(),
        )
    groups: dict[str, Any] = {**update.groups(), "passes": passes}
    notes = list(update.notes)
    return Updated(step=step, **groups, skipped=update.skipped, notes=notes, seconds=update.seconds, alignment=aligned)
