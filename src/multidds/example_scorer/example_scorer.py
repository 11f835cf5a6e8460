"""Differentiable Data Selection for single examples (Wang et al., ICML 2020; section 3 of the paper).

A network scores examples; the softmax of the scores over a batch is P(x, y; psi). The reward of an example is the slope
of its loss along the direction in which the dev loss grows, and psi moves by R grad log P.
"""

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._base.checks import check_whole
from .._base.randomness import preserved
from .._base.state import VERSION, check_keys, check_version
from ..probes.example_slopes import ExampleLosses, first_not_finite, one_per_example, refuse_model, slopes, step_size
from ..probes.priorities import Priority
from ..probes.probe import Probe
from ..probes.probed_model import ProbedModel
from ..probes.probes import Probes
from .dev_direction import DevDirection, DirectionEstimator, EstimatedDirection
from .network import OWNER, OwnNetwork, OwnScores, check_function
from .small_network import SmallNetwork, SmallScores


@dataclass(frozen=True)
class ExampleUpdate:
    """One change of the scores, or the reason why there was none.

    step: the optimizer step after which it was made.
    rewards: of the examples of the batch, <gradient, v> / |v|; negative: training on it raises the dev loss. # [B]
    probabilities: of the examples of the batch before the update, over the batches of all processes. # [B]
    losses: of the examples of the batch. # [B]
    dev_losses: {dev set: loss of the probe}, of those that count.
    weights: {dev set: weight}, the priority.
    seconds: the time that the update took.
    skipped: None, or why the scores did not change.
    """

    step: int
    rewards: Tensor
    probabilities: Tensor
    losses: Tensor
    dev_losses: dict[str, float]
    weights: dict[str, float]
    seconds: float
    skipped: str | None = None


class ExampleScorer:
    """Weights of single examples, learned while a model trains: call `step(batch)` after every optimizer step.

    model: the model that is trained.
    losses: (model, batch) -> tensor [B], the loss of every example of a batch.
    dev: {name: source of dev batches}, as for `Balancer`: clean examples of the task.
    every: optimizer steps between updates; default 10.
    network: the network that scores: SmallNetwork(...) over features and losses, or OwnNetwork(module).
    priority: how much each dev set counts: "regular", "low", "high", {dev set: weight}, or a function of dev losses.
    direction: the direction along which rewards are measured: DevDirection(...).
    probes: dev batches of an update and the gradients taken of them: Probes(...); default: 1 batch per process.
    seed: for everything random in probes, and for the small network; default 0.

    An update costs one forward and backward pass per dev batch and two forward passes over the batch, and the memory of
    two parameter-sized vectors. It leaves the model, its gradients and all random states as they were.
    `docs/dirty-data.md` has the formulas and says when it helps.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: ExampleLosses,
        dev: Mapping[str, Any],
        *,
        every: int = 10,
        network: SmallNetwork | OwnNetwork = SmallNetwork(),
        priority: Priority = "regular",
        direction: DevDirection = DevDirection(),
        probes: Probes = Probes(),
        seed: int = 0,
    ) -> None:
        check_function(OWNER, "losses", losses, "(model, batch) -> [B]")
        check_whole(OWNER, every=every)
        if not isinstance(seed, int):
            raise TypeError(f"{OWNER}: seed must be a whole number, got {seed!r}.")
        if not isinstance(network, SmallNetwork | OwnNetwork):
            kind = type(network).__name__
            raise TypeError(f"{OWNER}: network must be SmallNetwork(...) or OwnNetwork(module), got {kind}.")
        self.every = every
        self._losses = losses
        self._eps = direction.eps
        self._model = probed = ProbedModel(
            model, self._mean_loss, probes.params, probes.mode, seed, owner=OWNER, dev_loss=probes.dev_loss
        )
        refuse_model(OWNER, probed)
        self._network: SmallScores | OwnScores = network.started(probed.model, probed.params[0].device, seed)
        self._probe = Probe(OWNER, probed, {"dev": dev}, replace(probes, split_work=False), priority)
        self._direction = DirectionEstimator(direction, self._probe)
        self._steps = 0

    def _mean_loss(self, model: Any, batch: Any) -> Tensor:
        return self._each_loss(model, batch).mean()

    def _each_loss(self, model: Any, batch: Any) -> Tensor:
        return one_per_example(OWNER, "losses(model, batch)", self._losses(model, batch))

    @property
    def network(self) -> nn.Module | None:
        """The network that scores; a small one is made when the first batch is seen."""
        return self._network.module

    @property
    def warmup(self) -> int:
        """The number of updates before `keep_probabilities` differ from 1."""
        return self._network.warmup

    def scores(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """Returns the scores of the examples of a batch; only their differences matter. # [B]

        losses: the losses of these examples, [B]. None: if the network needs them, a forward pass computes them.
        """
        if losses is not None:
            losses = one_per_example(OWNER, "losses", losses).detach()
        devices = sorted({p.device for p in self._model.model.parameters()}, key=str)
        with preserved(devices), torch.no_grad():
            if self._network.uses_losses:
                if losses is None:
                    with self._model.invisible():
                        losses = self._model.forward(("train", "scores", self._steps), batch, self._each_loss)
                if (place := first_not_finite(losses)) is not None:
                    value = losses[place].item()
                    raise ValueError(f"{OWNER}: the loss of example {place} of {len(losses)} is {value}.")
            return self._network.scores(batch, losses).detach()

    def probabilities(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """Returns P(x, y; psi) of the examples of a batch, to draw by: the softmax of their scores, sum 1. # [B]

        losses: as in `scores`.
        """
        return self.scores(batch, losses).softmax(0)

    def weights(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """Returns factors for the losses of the examples of a batch: P(x, y; psi) times B, with mean 1. # [B]

        losses: as in `scores`.
        """
        scores = self.scores(batch, losses)
        return scores.softmax(0) * len(scores)

    def keep_probabilities(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """Returns 1 for examples with scores above the median, and less below it; for small networks. # [B]

        The median is that of the last `replay` updates, so that the result does not depend on the rest of the batch. It
        is 1 for all until there were `warmup` updates. Use it as the probability to train on an example, or as a factor
        for its loss, if no example should count for more than the others.

        losses: as in `scores`.
        """
        return self._network.keep_probabilities(self.scores(batch, losses))

    def step(self, batch: Any) -> ExampleUpdate | None:
        """Counts one optimizer step. Every `every`-th step learns from the examples of a batch and returns the update.

        batch: the one that was trained on, or another. If the update raises, the step is not counted.
        """
        due = (self._steps + 1) % self.every == 0
        update = self._update(batch, self._steps + 1) if due else None
        self._steps += 1
        return update

    def update(self, batch: Any) -> ExampleUpdate:
        """Makes one update from the examples of a batch now, without counting a step."""
        return self._update(batch, self._steps)

    def _update(self, batch: Any, step: int) -> ExampleUpdate:
        start = time.perf_counter()
        number, networks = self._probe.rounds, self._network.fingerprint()
        with self._probe.open(steps=step, networks=networks), self._direction.put_back_on_error():
            ranks = self._model.replicas
            with ranks.raise_on_all_ranks():  # refusals come before anything is drawn
                prepared = self._network.prepare(batch)
            direction = self._direction.estimate(step)
            with ranks.raise_on_all_ranks():
                rewards, losses = self._slopes(batch, direction, number)
            skipped = direction.trouble or self._first_not_finite(losses, rewards)
            probabilities = torch.full_like(rewards, float("nan"))
            if skipped is None:
                probabilities, skipped = self._network.learn(batch, prepared, losses, rewards, ranks)
        seconds = time.perf_counter() - start
        return ExampleUpdate(
            step, rewards, probabilities, losses, direction.losses, direction.weights, seconds, skipped
        )

    def _slopes(self, batch: Any, direction: EstimatedDirection, number: int) -> tuple[Tensor, Tensor]:
        """Returns (rewards, losses) of the examples of a batch; rewards of 0 if the direction is not usable."""
        if direction.trouble is not None:
            losses = self._model.forward(("train", "examples", number), batch, self._each_loss).double()
            return torch.zeros_like(losses), losses
        distance = step_size(self._model, direction.steepness, direction.loss, self._eps)
        return slopes(self._model, self._each_loss, batch, direction.vector, direction.length, distance, number)

    def _first_not_finite(self, losses: Tensor, rewards: Tensor) -> str | None:
        """Returns a sentence about the first loss or reward of any rank that is not finite."""
        sentences = [
            f"the {what} of example {place} of {len(values)} is not finite"
            for what, values in (("loss", losses), ("reward", rewards))
            if (place := first_not_finite(values)) is not None
        ]
        return next((first for own in self._model.replicas.gather(sentences) for first in own), None)

    @property
    def priority(self) -> Priority:
        """The priority of the dev sets. May be assigned at any time; the next update uses it."""
        return self._probe.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._probe.priority = priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of the last full validation, by which low and high rank the dev sets; None: by the probe."""
        return self._probe.dev_losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        self._probe.dev_losses = losses

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next updates depend on: network, optimizer, statistics, sources; not the model.

        Tensors are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        network = self._network.state_dict()
        tensors = network.pop("tensors") | self._direction.tensors()
        probe = self._probe.state_dict()
        return {"version": VERSION, "steps": self._steps, "network": network, "probe": probe, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly from a state. One that does not fit raises an error and changes nothing.

        state: as `state_dict` returned it.
        """
        check_version(OWNER, state)
        check_keys(OWNER, state, "steps", "network", "probe", "tensors")
        network = {**state["network"], "tensors": state["tensors"]}
        self._network.check_state(network)
        direction = copy.copy(self._direction)
        direction.load_tensors(state["tensors"])
        self._probe.load_state_dict(state["probe"])
        self._direction = direction
        self._network.load_state_dict(network, state["probe"]["seed"])
        self._steps = int(state["steps"])
