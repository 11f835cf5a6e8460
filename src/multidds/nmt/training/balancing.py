"""The balancer of a training, made from its config, and its updates as records."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multidds import Balancer, Budget, Mixture, Probes, Update, rewards
from multidds._base.errors import UserError
from multidds.rewards import Cosine, MeanSlope, MovingAverage, Reward, StabilizedCosine
from multidds.rules import RelevancePlan, Scorer

from ..batches.batch import Batch
from ..batches.probe_batches import MixedSentences, probe_batches, sentence_losses, sentences_of
from ..batches.sentences import Sentences
from ..common.processes import Processes
from ..config.config import Config, MixtureSettings
from ..runs.records import AlignmentFacts, Updated
from .length import DEFAULT, UPDATES, in_parts, part_budget, planned_sentences, planned_steps, probe_shape


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
    With so many language pairs that the budget buys too few updates that probe all of them, each probes a part.
    """
    settings = config.mixture
    if settings.method == "static":
        return None
    reward = _reward(settings)
    _, tokens = probe_shape(settings)
    size = 0  # sentences of a probe batch that mixes language pairs
    if in_parts(config) and settings.method in DEFAULT:
        reward = MeanSlope(sentence_losses(config))
        size, tokens = sentences_of(train.values(), settings.probe_tokens), settings.probe_tokens

    def source(data: Sentences) -> Any:
        return MixedSentences(data, tokens, size) if size else probe_batches(data, tokens)

    try:
        return Balancer(
            mixture,
            model,
            loss,
            train={name: source(train[other]) for name, other in _probed(config).items()},
            dev={name: source(data) for name, data in dev.items()},
            **_pace(config, train),
            reward=reward,
            rule=_rule(config),
            priority=priority,
            seed=config.train.seed,
        )
    except ValueError as error:
        raise UserError(f"[mixture] {error}") from None


def _pace(config: Config, train: Mapping[str, Sentences]) -> dict[str, Any]:
    """Returns the arguments of the balancer for its pace and its probes."""
    settings = config.mixture
    average = 0 if config.train.average else None  # probes are at the averaged weights of training, if there are any
    if in_parts(config):
        budget = Budget(share=part_budget(settings, config.train.tokens / Processes().size))
        return {"steps": UPDATES * settings.every, "every": budget, "probes": Probes(average=average)}
    # All processes draw the same, and the loss is local.
    probes = Probes(batches=probe_shape(settings)[0], count="in all", split_work=True, average=average)
    if settings.prior != "planned":
        return {"every": settings.every, "probes": probes}
    steps = max(1, round(planned_steps(config, train)))
    sentences = planned_sentences(config, train)
    return {"every": settings.every, "steps": steps, "examples_per_step": sentences / steps, "probes": probes}


def _probed(config: Config) -> dict[str, str]:
    """Returns {dataset: the dataset whose gradients give its reward}: itself, unless rewards are shuffled."""
    names = list(config.data.names)
    if config.mixture.method != "shuffled":
        return {name: name for name in names}
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(config.train.seed)).tolist()
    return {names[i]: names[j] for i, j in zip(order, [*order[1:], order[0]], strict=True)}  # none its own


def _reward(settings: MixtureSettings) -> Reward:
    options: dict[str, Any] = {"ahead": settings.step_ahead or None, "table": settings.sketch or None}
    if settings.method == "moving-average":
        return MovingAverage(decay=settings.decay, **options)
    return Cosine(**options) if settings.method == "multidds" else StabilizedCosine(**options)


def _rule(config: Config) -> Scorer | RelevancePlan:
    settings = config.mixture
    if settings.method in DEFAULT:
        # A prior other than the plan, or the mixture that an earlier run has learned, is kept at the start.
        plan = settings.prior == "planned" and not config.train.start_from and not in_parts(config)
        return RelevancePlan(plan=plan, repetition=settings.repetition)
    optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    scorer = settings.scorer
    return Scorer(
        lr=scorer.lr,
        optimizer=optimizers[scorer.optimizer],
        inner_steps=scorer.inner_steps,
        rule=scorer.rule,
        floor=scorer.floor,
    )


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
    return Updated(
        step=step,
        **groups,
        signal=None if math.isnan(update.signal) else update.signal,
        drift=update.drift,
        learned=update.learned,
        unlearned=update.unlearned,
        skipped=update.skipped,
        notes=notes,
        seconds=update.seconds,
        alignment=aligned,
        relevance={} if update.relevance is None else update.relevance_table(),
    )
