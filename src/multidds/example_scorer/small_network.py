"""A small network that scores an example by features of the caller and by its own loss."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._base.checks import check_whole
from .._base.randomness import derive
from .._base.ranks import Ranks
from ..probes.example_slopes import first_not_finite
from .network import OWNER, OptimizerOf, TrainedNetwork, check_function, policy_gradient
from .replay_buffer import ReplayBuffer

Features: TypeAlias = Callable[[Any], Tensor]
_ADAM = partial(torch.optim.Adam, lr=3e-3)
_HIDDEN = 16
_MAX_SCORE = 4.0  # |score| < 4 before the median is subtracted: weights within a batch differ by e^8 at most
_CLIP_STD = 5.0  # |feature - mean| <= 5 standard deviations
_WARMUP_UPDATES = 10  # fewer updates leave scores that are mostly noise


@dataclass(frozen=True)
class SmallNetwork:
    """Settings of one hidden layer over standardised features and the example's own loss.

    It begins with equal weights for all examples.

    features: (batch) -> tensor [B, F], numbers that describe the examples. None: the loss alone.
    own_loss: whether the network sees the example's loss, too. Leave it out if the features say more about being
        wrong: an example that is hard to learn has a high loss as well.
    optimizer: a function params -> torch optimizer; default: Adam with a learning rate of 0.003.
    replay: updates whose examples the network learns from at each update. 1: only those of the update, as in the paper.
    inner_steps: optimizer steps at each update; 1, as in the paper.
    """

    features: Features | None = None
    own_loss: bool = True
    optimizer: OptimizerOf = _ADAM
    replay: int = 1
    inner_steps: int = 1

    def __post_init__(self) -> None:
        check_whole("SmallNetwork", replay=self.replay, inner_steps=self.inner_steps)
        check_function("SmallNetwork", "optimizer", self.optimizer, "params -> optimizer")
        if self.features is not None:
            check_function("SmallNetwork", "features", self.features, "batch -> [B, F]")
        elif not self.own_loss:
            raise ValueError("SmallNetwork: with features=None and own_loss=False it would see nothing.")

    def started(self, model: nn.Module, device: torch.device, seed: int) -> "SmallScores":
        """Returns the scores that the network gives, ready to learn."""
        return SmallScores(self, device, seed)


class SmallScores:
    """Scores of a small network, which is made when the first batch shows how many features there are."""

    def __init__(self, settings: SmallNetwork, device: torch.device, seed: int) -> None:
        self._settings = settings
        self._device = device  # of the model
        self._seed = seed
        self._trained: TrainedNetwork | None = None
        self._replay = ReplayBuffer(settings.replay)
        self.uses_losses = settings.own_loss  # whether scores depend on the losses of the examples
        self.warmup = min(_WARMUP_UPDATES, settings.replay)  # updates before keep probabilities differ from 1

    @property
    def module(self) -> "FeatureNetwork | None":
        if self._trained is None:
            return None
        assert isinstance(self._trained.module, FeatureNetwork)
        return self._trained.module

    def prepare(self, batch: Any) -> Tensor | None:
        """Returns the features of the examples of a batch; None if there are none. # [B, F]"""
        if self._settings.features is None:
            return None
        rows = self._settings.features(batch)
        if not isinstance(rows, Tensor):
            raise TypeError(f"{OWNER}: features(batch) must return a tensor [B, F], got {type(rows).__name__}.")
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(
                f"{OWNER}: features(batch) must return one row per example, [B, F], but the shape is "
                f"{tuple(rows.shape)}."
            )
        if (place := first_not_finite(rows.sum(1))) is not None:
            raise ValueError(f"{OWNER}: the features of example {place} of {len(rows)} are not finite.")
        expected = rows.shape[1] if self.module is None else self.module.count - self.uses_losses
        if rows.shape[1] != expected:
            raise ValueError(f"{OWNER}: features(batch) returned {rows.shape[1]} features, but there were {expected}.")
        return rows.detach()

    def scores(self, batch: Any, losses: Tensor | None) -> Tensor:
        """Returns one score per example. # [B]"""
        inputs = self._inputs(self.prepare(batch), losses)
        return self._network_for(inputs).scores(inputs)

    def learn(
        self, batch: Any, prepared: Tensor | None, losses: Tensor, rewards: Tensor, ranks: Ranks
    ) -> tuple[Tensor, str | None]:
        """Fits the network to recent rewards; returns P before, and why not, if it did not."""
        with ranks.raise_on_all_ranks():
            inputs = self._inputs(prepared, losses)
        self._update_statistics(inputs, ranks)
        scores = self._network_for(inputs).scores(inputs)
        probabilities, _ = policy_gradient(scores.detach().double(), rewards, ranks)
        return probabilities, self._fit_on_replay(inputs, rewards, ranks)

    def keep_probabilities(self, scores: Tensor) -> Tensor:
        """Returns 1 for scores above the median of recent ones, and e^score below it; 1 for all during the warm-up."""
        warm = self.module is not None and int(self.module.updates) >= self.warmup
        return scores.clamp_max(0).exp() if warm else torch.ones_like(scores)

    def _inputs(self, rows: Tensor | None, losses: Tensor | None) -> Tensor:
        """Returns the numbers that the network sees of each example. # [B, F] or [B, F + 1]"""
        if rows is not None and losses is not None and len(rows) != len(losses):
            raise ValueError(f"{OWNER}: there are {len(losses)} losses, but features of {len(rows)} examples.")
        if not self.uses_losses:
            assert rows is not None
            return rows.to(self._device).double()
        assert losses is not None
        columns = losses.detach().double()[:, None]
        return columns if rows is None else torch.cat([rows.to(losses.device).double(), columns], dim=1)

    def _network_for(self, inputs: Tensor) -> TrainedNetwork:
        if self._trained is None:
            self._trained = self._begun(inputs.shape[1], self._seed, inputs.device)
        return self._trained

    def _begun(self, count: int, seed: int, device: torch.device) -> TrainedNetwork:
        return TrainedNetwork(FeatureNetwork(count, seed).to(device), self._settings.optimizer)

    def _update_statistics(self, inputs: Tensor, ranks: Ranks) -> None:
        """Adds the examples of all ranks to the running mean and variance."""
        sums = sums_of(inputs)
        self._network_for(inputs)
        ranks.average([sums])
        assert self.module is not None
        self.module.statistics.add(sums * ranks.size)

    def _fit_on_replay(self, inputs: Tensor, rewards: Tensor, ranks: Ranks) -> str | None:
        """Takes steps along R grad log P over recent examples of all ranks; returns why not, if it took none."""
        of_ranks = ranks.gather((inputs.cpu(), rewards.cpu()))
        self._replay.add(*(torch.cat(parts).to(inputs.device) for parts in zip(*of_ranks, strict=True)))
        kept, known = self._replay.examples()
        trained = self._network_for(kept)
        module = self.module
        assert module is not None
        alone = Ranks.alone(kept.device)
        for _ in range(self._settings.inner_steps):
            scores = module(kept)
            with torch.no_grad():
                pull = (known - scores.double().softmax(0) * known.sum()) / len(known)
            if trouble := trained.step(scores, pull, alone):
                return trouble
        module.centre(kept)
        return None

    def fingerprint(self) -> float:
        """Returns a number that differs if networks differ."""
        return 0.0 if self._trained is None else self._trained.fingerprint()

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values, and under "tensors" the rest."""
        if self.module is None or self._trained is None:
            return {"features": None, "tensors": {}}
        trained = self._trained.state_dict()
        replay = self._replay.state_dict()
        tensors = trained.pop("tensors") | replay.pop("tensors")
        return {"features": self.module.count, **trained, **replay, "tensors": tensors}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises a ValueError if a state is of another network, of other features or of another optimizer."""
        if "features" not in state:
            raise ValueError(f"{OWNER}: the state was saved with an OwnNetwork, but this is a SmallNetwork.")
        count = state["features"]
        if count is None:
            return
        if self.module is not None and self.module.count != count:
            own, saved = (number - self.uses_losses for number in (self.module.count, count))
            raise ValueError(f"{OWNER}: the state has {saved} features, but there are {own}.")
        self._begun(count, 0, self._device).check_state(state)

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> None:
        """Continues from a state, which `check_state` has let pass."""
        trained, replay = None, ReplayBuffer(self._settings.replay)
        if state["features"] is not None:
            trained = self._begun(state["features"], seed, self._device)
            trained.load_state_dict(state)
            replay = replay.loaded(state, self._device)
        self._trained, self._replay, self._seed = trained, replay, seed


class FeatureNetwork(nn.Module):
    """One hidden layer over standardised features. All scores begin at 0, which stays the median of recent ones.

    count: the number of features.
    updates: the updates that it has learned from.
    """

    median: Tensor
    updates: Tensor

    def __init__(self, count: int, seed: int) -> None:
        super().__init__()
        self.count = count
        self.statistics = RunningStatistics(count)
        generator = torch.Generator().manual_seed(derive(seed, "network"))
        self.inner = nn.Parameter(torch.randn(count, _HIDDEN, generator=generator) / math.sqrt(count))
        self.shift = nn.Parameter(torch.zeros(_HIDDEN))
        self.outer = nn.Parameter(torch.zeros(_HIDDEN))
        self.register_buffer("median", torch.zeros(()))  # of the scores before it is subtracted
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def centre(self, rows: Tensor) -> None:
        """Counts an update and makes 0 the median of the scores of these examples. # [M, F]"""
        with torch.no_grad():
            self.updates += 1
            self.median += self(rows).median()

    def forward(self, rows: Tensor) -> Tensor:  # [B, F] -> [B]
        # In float64: the last bits of a score must not depend on how many others are computed with it.
        hidden = torch.tanh(self.statistics(rows) @ self.inner.double() + self.shift)
        return (_MAX_SCORE * torch.tanh(hidden @ self.outer.double() / _MAX_SCORE) - self.median).to(self.inner.dtype)


class RunningStatistics(nn.Module):
    """Running mean and variance of F features, with weights 1, decay, decay^2, ... from the newest update back.

    Updates of the scorer change them and nothing else does, so that a score depends on the state and the example alone.
    """

    examples: Tensor
    sums: Tensor
    squares: Tensor

    def __init__(self, count: int, decay: float = 0.98) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("examples", torch.zeros((), dtype=torch.float64))  # discounted
        self.register_buffer("sums", torch.zeros(count, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(count, dtype=torch.float64))

    def add(self, sums: Tensor) -> None:
        """Adds the examples of an update, as `sums_of` returns them."""
        self.examples.mul_(self.decay).add_(sums[0, 0])
        self.sums.mul_(self.decay).add_(sums[1])
        self.squares.mul_(self.decay).add_(sums[2])

    def forward(self, rows: Tensor) -> Tensor:  # [B, F] -> [B, F]
        if self.examples == 0:
            return rows.double() * 0
        mean = self.sums / self.examples
        variance = self.squares / self.examples - mean**2
        rows = rows.double() - mean
        # A constant feature becomes 0: without this, its rounding errors would be scaled up.
        varies = variance > 1e-12 * (self.squares / self.examples)
        return (rows * varies / variance.where(varies, 1).sqrt()).clamp(-_CLIP_STD, _CLIP_STD)


def sums_of(rows: Tensor) -> Tensor:
    """Returns the number of rows, their sums, and the sums of their squares. # [3, F]"""
    rows = rows.double()
    return torch.stack([torch.full_like(rows[0], len(rows)), rows.sum(0), (rows**2).sum(0)])
