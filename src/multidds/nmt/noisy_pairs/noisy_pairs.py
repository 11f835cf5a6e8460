"""`[examples] method = "dds"`: chances of sentence pairs to be trained on, learned from the dev sets (`ExampleScorer`).

Dev sets want two things: a low loss, and a loss that comes from the source, which wrong targets in the right language
do not teach. There is a scorer for each. Both score the features of a pair (`pair_features`), and the chance that a
drawn pair is trained on is the product of both trusts, to a power: pairs are drawn by P(x, y; psi) of the paper. A step
is as large as without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from multidds import ExampleScorer, Mixture
from multidds._base.errors import UserError
from multidds._base.randomness import derive
from multidds.example_scorer import DevDirection, SmallNetwork
from multidds.probes import Probes

from ..batches.batch import Batch
from ..batches.probe_batches import DevPart, dev_batches, mixed_batch
from ..batches.sentences import Sentences
from ..common.processes import Processes
from ..config.config import Config, ExamplesSettings
from ..runs.records import Scored
from .pair_features import PairFeatures, per_sentence
from .pair_weights import Origin, PairWeights

_LR, _INNER_STEPS = 0.01, 20  # of a scorer's network at each update
# Weight decay of the networks for the loss and for the contrast: without what all pairs teach, noise weighs more.
_WEIGHT_DECAY = (0.01, 0.05)
_MOST_CHANCES = 500_000  # kept in memory, of so many sentence pairs: 80 MB
_LEAST_CHANCE = 0.01  # a pair that is never drawn again could not be scored again

Losses = Callable[[nn.Module, Batch], Tensor]  # of target tokens: [R]


class Described(Protocol):
    """Anything that names the sentence pairs in it, such as a batch."""

    @property
    def origins(self) -> Sequence[Origin]: ...


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs without their tokens."""

    origins: Sequence[Origin]


class NoisyPairs:
    """The chances of the sentence pairs of a training. All processes call the same methods in the same order."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        losses: Losses,
        data: Mapping[str, Sentences],
        dev: Mapping[str, Sentences],
        mixture: Mixture,
        vocabulary: Mapping[str, Sequence[str]],
        steps: float,
        processes: Processes,
    ) -> None:
        """
        losses: the losses of the target tokens of a batch, as in training.
        dev: the dev sets.
        mixture: the mixture of the training.
        steps: the planned number of optimizer steps.
        """
        self._settings, self._seed, self._processes = config.examples, config.train.seed, processes
        self._losses, self._data, self._mixture = losses, data, mixture
        self._features, self._weights = PairFeatures(data, vocabulary), PairWeights(data, vocabulary)
        goals = [(0.0, "all")]
        if config.examples.contrast:
            goals.append((config.examples.contrast, config.examples.parameters))
        self.scorers = [
            self._scorer(config, model, dev, contrast, _parameters(model, which), weight_decay)
            for (contrast, which), weight_decay in zip(goals, _WEIGHT_DECAY, strict=False)
        ]
        self._last_step, self._learned = config.examples.learn * steps, False
        _check_length(config.examples, steps, sum(scorer.warmup for scorer in self.scorers))
        self._chances: dict[Origin, float] = {}  # since the last update
        self._skipped: str | None = None  # why the last update changed nothing

    def _scorer(
        self,
        config: Config,
        model: nn.Module,
        dev: Mapping[str, Sentences],
        contrast: float,
        params: list[nn.Parameter],
        weight_decay: float,
    ) -> ExampleScorer:
        settings = config.examples
        network = SmallNetwork(
            features=self._rows,
            own_loss=False,
            optimizer=partial(torch.optim.Adam, lr=_LR, weight_decay=weight_decay),
            replay=settings.replay,
            inner_steps=_INNER_STEPS,
        )
        eps = 0.1 if config.train.precision == "bfloat16" else None
        return ExampleScorer(
            model,
            self._sentence_losses,
            {"dev": dev_batches(config, dev, contrast=contrast > 0)},
            every=settings.every,
            network=network,
            direction=DevDirection(decay=settings.decay, eps=eps),
            probes=Probes(params=params, dev_loss=partial(self.dev_loss, contrast=contrast)),
            seed=config.train.seed,
        )

    # ------------------------------------------------------------------------------------------ features and losses

    def _rows(self, parts: Sequence[Described]) -> Tensor:
        return self._features.rows([origin for part in parts for origin in part.origins])

    def _sentence_losses(self, model: nn.Module, batches: list[Batch]) -> Tensor:  # [B]
        """Returns the mean loss of the target tokens of each sentence."""
        return torch.cat([per_sentence(batch, self._losses(model, batch)) for batch in batches])

    def dev_loss(self, model: nn.Module, parts: list[DevPart], contrast: float) -> Tensor:
        """Returns the mean loss of target tokens. []

        Its gradient is less by `contrast` times that of the loss behind other sources: the difference is what only
        right pairs teach; wrong ones teach the target language, too.
        """
        total = torch.zeros(())
        for own, shuffled in parts:
            total = total + self._losses(model, own).sum()
            if shuffled is not None:
                other = self._losses(model, shuffled).sum()
                total = total - contrast * (other - other.detach())
        return total / sum(own.tokens for own, _ in parts)

    # ------------------------------------------------------------------------------------------ updates, chances

    def update(self, step: int) -> None:
        """Updates one of the scorers, in turn, if that is due after `step` steps.

        It learns from pairs that are drawn by the mixture alone: of those that are trained on, few are wrong. And it
        learns in the first part of a training only: a model that has not seen wrong pairs for long is not harmed by
        one, and the rewards show that.
        """
        self._learned = self._learned or step > self._last_step
        if not step or step % self._settings.every or self._learned:
            return
        generator = torch.Generator().manual_seed(derive(self._seed, "examples", step, self._processes.rank))
        tokens = 2 * self._settings.probe_tokens // self._processes.size
        batches = mixed_batch(self._data, self._mixture, tokens, generator)
        scorer = self.scorers[step // self._settings.every % len(self.scorers)]
        self._skipped = scorer.update(batches).skipped
        self._chances = {}

    def trust(self, origins: Sequence[Origin]) -> Tensor:
        """Returns the product of the trusts of all scorers in each sentence pair, from 0 to 1. # [B]"""
        product = torch.ones(len(origins), dtype=torch.float64)
        for scorer in self.scorers:
            product = product * scorer.keep_probabilities([Pairs(origins)]).double().cpu()
        return product

    def chances(self, origins: Sequence[Origin]) -> list[float]:
        """Returns the chance of each sentence pair to be trained on if it is drawn."""
        if len(self._chances) > _MOST_CHANCES:
            self._chances = {}
        if new := [origin for origin in origins if origin not in self._chances]:
            chances = self.trust(new).pow(self._settings.sharpness).clamp_min(_LEAST_CHANCE).tolist()
            chances = self._processes.gathered(chances)[0]  # all draw the same pairs, to the last bit of a chance
            self._chances.update(zip(new, chances, strict=True))
            self._weights.set(new, chances)
        return [self._chances[origin] for origin in origins]

    # ------------------------------------------------------------------------------------------ records, states

    def record(self, step: int) -> Scored:
        return self._weights.record(step, self._skipped)

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values, and under "tensors" the tensors."""
        tensors = self._weights.state_dict()
        states = [scorer.state_dict() for scorer in self.scorers]
        for place, state in enumerate(states):
            tensors |= {f"scorer.{place}.{key}": tensor for key, tensor in state.pop("tensors").items()}
        return {"scorers": states, "skipped": self._skipped, "learned": self._learned, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tensors = state["tensors"]
        self._weights.load_state_dict(tensors)
        self._skipped, self._learned = state["skipped"], state["learned"]
        for place, (scorer, plain) in enumerate(zip(self.scorers, state["scorers"], strict=True)):
            begin = f"scorer.{place}."
            own = {key.removeprefix(begin): tensor for key, tensor in tensors.items() if key.startswith(begin)}
            scorer.load_state_dict({**plain, "tensors": own})


def _check_length(settings: ExamplesSettings, steps: float, updates: int) -> None:
    """Refuses a training that is too short for the updates that the scorers need in all."""
    needed = settings.every * updates
    if settings.learn * steps < needed:
        raise UserError(
            f"[examples] learn = {settings.learn:g} of {steps:,.0f} steps is too short for {updates} updates, one "
            f"every {settings.every} steps: {needed:,} are needed. Raise learn or train.max_steps, or lower every."
        )


def _parameters(model: nn.Module, which: str) -> list[nn.Parameter]:
    """Returns the parameters whose gradients count: "all", or those that depend on the "source" alone.

    The rest of the model learns the target language, from wrong targets too.
    """
    if which == "all":
        return list(model.parameters())
    of_source = ("source_embedding", "encoder", "cross")
    return [p for name, p in model.named_parameters() if any(part in name for part in of_source)]
