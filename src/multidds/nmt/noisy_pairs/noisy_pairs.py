"""`[examples] method = "dds"`: which sentence pairs a training trusts, learned from its dev sets (`ExampleScorer`).

Dev sets want two things: a low loss, and that the loss comes from the source, which wrong targets in the right language
do not teach. There is a scorer for each. They see numbers that describe a pair (`pair_numbers`), and the chance that a
pair is trained on when its turn comes is the product of both trusts: pairs are drawn by P(x, y; psi) of the paper. A
step is as large as without.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from multidds import ExampleScorer, Mixture
from multidds._base.randomness import derive

from ..batches.batch import Batch
from ..batches.probe_batches import DevPart, dev_batches, mixed_batch
from ..batches.sentences import Sentences
from ..common.errors import UserError
from ..common.processes import Processes
from ..config.config import Config, ExamplesSettings
from ..runs.records import Scored
from .highest_losses import HighestLosses
from .pair_features import PairFeatures, per_sentence
from .pair_weights import Origin, PairWeights

_LR, _INNER_STEPS = 0.01, 20  # of a scorer's network at each update
_FADING = (
    0.01,
    0.05,
)  # its weight decay, for the loss and for the contrast: without what all pairs teach, noise weighs more
_KEPT = 500_000  # sentence pairs whose chances are kept: 80 MB
_LEAST = 0.01  # chance: a pair that is never seen again could not be forgiven

Losses = Callable[[nn.Module, Batch], Tensor]  # of target tokens: [R]


def make_examples(
    config: Config,
    model: nn.Module,
    losses: Losses,
    data: Mapping[str, Sentences],
    dev: Mapping[str, Sentences],
    mixture: Mixture,
    vocabulary: Mapping[str, Sequence[str]],
    steps: float,
    processes: Processes,
) -> "Examples | HighestLosses | None":
    """What a recipe asks for; None where all sentence pairs are alike."""
    if config.examples.method == "dds":
        return Examples(config, model, losses, data, dev, mixture, vocabulary, steps, processes)
    if config.examples.method == "highest-losses":
        return HighestLosses(config.examples.drop, data, vocabulary, processes)
    return None


class Described(Protocol):
    """What a scorer is asked about: sentence pairs."""

    @property
    def origins(self) -> Sequence[Origin]: ...


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs that were drawn, not yet read."""

    origins: Sequence[Origin]


class Examples:
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
        """losses: of the target tokens of a batch, as in training. steps: how long the training is, about."""
        self._settings, self._seed, self._processes = config.examples, config.train.seed, processes
        self._losses, self._data, self._mixture = losses, data, mixture
        self._numbers, self._weights = PairFeatures(data, vocabulary), PairWeights(data, vocabulary)
        wants = [(0.0, "all")]
        if config.examples.contrast:
            wants.append((config.examples.contrast, config.examples.parameters))
        self._params = [_parameters(model, which) for _, which in wants]
        self.scorers = [
            self._scorer(config, model, dev, contrast, params, fading)
            for (contrast, _), params, fading in zip(wants, self._params, _FADING, strict=False)
        ]
        self._until, self._learned = config.examples.learn * steps, False
        _check_length(config.examples, steps, sum(scorer.enough for scorer in self.scorers))
        self._chances: dict[Origin, float] = {}  # since the last update
        self._skipped: str | None = None  # why the last update changed nothing

    def _scorer(
        self,
        config: Config,
        model: nn.Module,
        dev: Mapping[str, Sentences],
        contrast: float,
        params: list[nn.Parameter],
        fading: float,
    ) -> ExampleScorer:
        settings = config.examples
        return ExampleScorer(
            None,
            model,
            self._sentence_losses,
            dev={"dev": dev_batches(config, dev, contrast=contrast > 0)},
            every=settings.every,
            optimizer=partial(torch.optim.Adam, lr=_LR, weight_decay=fading),
            features=self._rows,
            own_loss=False,
            dev_loss=partial(self.dev_loss, contrast=contrast),
            decay=settings.decay,
            replay=settings.replay,
            inner_steps=_INNER_STEPS,
            eps=0.1 if config.train.precision == "bfloat16" else None,
            params=params,
            seed=config.train.seed,
        )

    # ------------------------------------------------------------------------------------------ what a scorer sees

    def _rows(self, parts: Sequence[Described]) -> Tensor:
        return self._numbers.rows([origin for part in parts for origin in part.origins])

    def _sentence_losses(self, model: nn.Module, batches: list[Batch]) -> Tensor:
        """Per target token. # [B]"""
        return torch.cat([per_sentence(batch, self._losses(model, batch)) for batch in batches])

    def dev_loss(self, model: nn.Module, parts: list[DevPart], contrast: float) -> Tensor:
        """The mean loss of target tokens; its gradient less `contrast` times that of the loss behind other sources. []

        The difference is what only right pairs teach: wrong ones teach the target language, too.
        """
        total = torch.zeros(())
        for own, shuffled in parts:
            total = total + self._losses(model, own).sum()
            if shuffled is not None:
                other = self._losses(model, shuffled).sum()
                total = total - contrast * (other - other.detach())
        return total / sum(own.tokens for own, _ in parts)

    # ------------------------------------------------------------------------------------------ updates, chances

    def look(self, step: int) -> None:
        """After `step` steps: an update of one of the scorers, in turn, if it is due.

        It learns from pairs that are drawn by the mixture alone: of those that are trained on, few are wrong. And it
        learns in the first part of a training only: a model that has not seen wrong pairs for long is not harmed by
        one, and rewards say so.
        """
        self._learned = self._learned or step > self._until
        if not step or step % self._settings.every or self._learned:
            return
        generator = torch.Generator().manual_seed(derive(self._seed, "examples", step, self._processes.rank))
        tokens = 2 * self._settings.probe_tokens // self._processes.size
        batches = mixed_batch(self._data, self._mixture, tokens, generator)
        scorer = self.scorers[step // self._settings.every % len(self.scorers)]
        self._skipped = scorer.update(batches).skipped
        self._chances = {}

    def trust(self, origins: Sequence[Origin]) -> Tensor:
        """How far sentence pairs are trusted, up to 1: in what all dev sets want of them. # [B]"""
        found = torch.ones(len(origins), dtype=torch.float64)
        for scorer in self.scorers:
            found = found * scorer.trust([Pairs(origins)]).double().cpu()
        return found

    def chances(self, origins: Sequence[Origin]) -> list[float]:
        """Of sentence pairs that were drawn, to be trained on."""
        if len(self._chances) > _KEPT:
            self._chances = {}
        if new := [origin for origin in origins if origin not in self._chances]:
            found = self.trust(new).pow(self._settings.sharpness).clamp_min(_LEAST).tolist()
            found = self._processes.gathered(found)[0]  # all draw the same pairs, to the last bit of a chance
            self._chances.update(zip(new, found, strict=True))
            self._weights.see(new, found)
        return [self._chances[origin] for origin in origins]

    # ------------------------------------------------------------------------------------------ records, states

    def record(self, step: int) -> Scored:
        return self._weights.record(step, self._skipped)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        tensors = self._weights.state_dict()
        states = [scorer.state_dict() for scorer in self.scorers]
        for place, state in enumerate(states):
            tensors |= {f"scorer.{place}.{key}": tensor for key, tensor in state.pop("tensors").items()}
        return {"scorers": states, "skipped": self._skipped, "learned": self._learned, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "scorers" not in state:
            raise UserError("[examples]: the checkpoint is of another version, which weighed losses; train anew.")
        tensors = state["tensors"]
        self._weights.load_state_dict(tensors)
        self._skipped, self._learned = state["skipped"], state["learned"]
        for place, (scorer, plain) in enumerate(zip(self.scorers, state["scorers"], strict=True)):
            begin = f"scorer.{place}."
            own = {key.removeprefix(begin): tensor for key, tensor in tensors.items() if key.startswith(begin)}
            like = {f"direction.{i}": p for i, p in enumerate(self._params[place])}
            scorer.load_state_dict({**plain, "tensors": _padded(own, like)})


def _check_length(settings: ExamplesSettings, steps: float, updates: int) -> None:
    """Refuse to learn for so short a time that nothing would come of it. updates: that the scorers need in all."""
    needed = settings.every * updates
    if settings.learn * steps < needed:
        raise UserError(
            f"[examples] learn = {settings.learn:g} of {steps:,.0f} steps is too short for {updates} updates, one "
            f"every {settings.every} steps: {needed:,} are needed. Raise learn or train.max_steps, or lower every."
        )


def _padded(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With zeros at their ends as large as those like them: for a vocabulary that has grown."""
    found = dict(tensors)
    for key in found.keys() & like.keys():
        more = [(0, wanted - size) for size, wanted in zip(found[key].shape, like[key].shape, strict=True)]
        found[key] = nn.functional.pad(found[key], [count for both in reversed(more) for count in both])
    return found


def _parameters(model: nn.Module, which: str) -> list[nn.Parameter]:
    """ "source": what reads the source. The rest of the model learns the target language, from wrong targets too."""
    if which == "all":
        return list(model.parameters())
    reads = ("source_embedding", "encoder", "cross")
    return [p for name, p in model.named_parameters() if any(word in name for word in reads)]
