"""The balancer of a training, made from its config, and its updates as the facts of a record."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multidds import Balancer, Mixture, Scorer, Update, rewards

from .batches import Batch, Sentences, probe_batches
from .config import Config
from .errors import UserError
from .prior import constant_rewards


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


def facts_of(update: Update) -> dict[str, Any]:
    """With both rewards, cosines and norms where there is an alignment table."""
    facts: dict[str, Any] = {
        "mixture": update.mixture,
        "reward": update.rewards,
        "weights": update.weights,
        "dev_losses": update.dev_losses,
        "train_losses": update.train_losses,
        "skipped": update.skipped,
        "notes": list(update.notes),
        "seconds": update.seconds,
    }
    if (table := update.alignment) is not None:
        weights = torch.tensor([update.weights[name] for name in table.dev_names], dtype=torch.float64)
        facts["multidds"] = dict(zip(table.train_names, rewards.multidds(table, weights).tolist(), strict=True))
        facts["multidds-s"] = dict(zip(table.train_names, rewards.multidds_s(table, weights).tolist(), strict=True))
        facts["cosines"] = [[round(c, 5) for c in row] for row in table.cosines().tolist()]  # [dev, train]
        facts["train_norms"], facts["dev_norms"] = table.train_norms.tolist(), table.dev_norms.tolist()
    return facts
