"""The balancer of a training, made from its config."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from multidds import Balancer, Budget, Mixture, Probes
from multidds._base.errors import UserError
from multidds.balancer.pace import Pace, pace_of
from multidds.rules import Cosine, MovingAverage, RelevancePlan, Reward, Rule, Scorer, StabilizedCosine

from ..batches.batch import Batch
from ..batches.probe_batches import ProbeSentences
from ..batches.sentences import Sentences
from ..config.config import Config, MixtureSettings
from .schedule import planned_sentences, planned_steps


def make_balancer(
    config: Config,
    mixture: Mixture,
    model: nn.Module,
    loss: Callable[[nn.Module, list[Batch]], Tensor],
    train: Mapping[str, Sentences],
    dev: Mapping[str, Sentences],
    priority: str | dict[str, float],
) -> Balancer | None:
    """Returns the balancer of a config; None if its mixture is static.

    loss: the mean loss per token of a probe batch, which comes in parts. train, dev: the sentences to probe.
    """
    settings = config.mixture
    if settings.method == "static":
        return None
    number, tokens = probe_shape(settings)
    steps = max(1, round(planned_steps(config, train)))
    number = number or int(planned_pace(config, steps).batches)  # as one process would choose
    average = 0 if config.train.average else None  # probes are at the averaged weights of training, if there are any
    try:
        return Balancer(
            mixture,
            model,
            loss,
            train={name: ProbeSentences(train[other], tokens) for name, other in _probed(config).items()},
            dev={name: ProbeSentences(data, tokens) for name, data in dev.items()},
            steps=steps,
            examples_per_step=planned_sentences(config, train) / steps,
            every=_every(settings),
            rule=_rule(config),
            priority=priority,
            # All processes draw the same, and the loss is local.
            probes=Probes(batches=number, count="in all", split_work=True, average=average),
            seed=config.train.seed,
        )
    except ValueError as error:
        raise UserError(f"[mixture] {error}") from None


def probe_shape(settings: MixtureSettings) -> tuple[int | None, int]:
    """Returns (number, tokens) of the probe batches per set; None: as many as the budget buys.

    The default rule cuts a single one into halves.
    """
    if settings.is_default and settings.probe_batches == 1:
        return None if settings.probe_budget else 2, max(1, settings.probe_tokens // 2)
    return settings.probe_batches, settings.probe_tokens


def planned_pace(config: Config, steps: float) -> Pace:
    """Returns the updates of a training of so many steps. Their share is of the tokens of training."""
    settings, pairs = config.mixture, len(config.data.names)
    number, tokens = probe_shape(settings)
    cost = tokens / config.train.tokens
    return pace_of(pairs, pairs, _every(settings), max(1, round(steps)), number, _rule(config), cost)


def _every(settings: MixtureSettings) -> int | Budget:
    return Budget(share=settings.probe_budget) if settings.probe_budget else settings.every


def _probed(config: Config) -> dict[str, str]:
    """Returns {dataset: the dataset whose gradients give its reward}: itself, unless rewards are shuffled."""
    names = list(config.data.names)
    if config.mixture.method != "shuffled":
        return {name: name for name in names}
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(config.train.seed)).tolist()
    return {names[i]: names[j] for i, j in zip(order, [*order[1:], order[0]], strict=True)}  # none its own


def _reward(settings: MixtureSettings) -> Reward:
    ahead = settings.step_ahead or None
    if settings.method == "moving-average":
        return MovingAverage(decay=settings.decay)
    return Cosine(ahead) if settings.method == "multidds" else StabilizedCosine(ahead)


def _rule(config: Config) -> Rule:
    settings, scorer = config.mixture, config.mixture.scorer
    if settings.is_default:
        # A prior other than the plan, or the mixture that an earlier run has learned, is kept at the start.
        watches = settings.method == "watch"
        plan = watches or (settings.prior == "planned" and not config.train.start_from)
        return RelevancePlan(plan=plan, repetition=settings.repetition, move=not watches)
    whole = settings.method == "moving-average" or settings.step_ahead  # neither has gradients for a table
    return Scorer(
        reward=_reward(settings),
        lr=scorer.lr,
        optimizer={"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[scorer.optimizer],
        inner_steps=scorer.inner_steps,
        rule=scorer.rule,
        floor=scorer.floor,
        table=None if whole else settings.sketch or None,
    )
