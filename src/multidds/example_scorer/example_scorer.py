"""Differentiable Data Selection for single examples (Wang et al., ICML 2020; section 3 of the paper).

A network scores examples; the softmax of the scores over a batch is P(x, y; psi). The reward of an example is the slope
of its loss along what the dev sets want (`dev_sets`, `slopes`), and psi moves by R grad log P (`example_network`).
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._base.checks import check_whole
from .._base.randomness import preserved
from ..probes.example_slopes import ExampleLosses, first_not_finite, one_per_example, refuse_model, slopes, step_size
from ..probes.prober import Loss, Prober
from ..rewards.priorities import Priority
from .dev_direction import DevSets, Wanted
from .network import ExampleNetwork, Features, OptimizerOf
from .replay_buffer import RecentDirection

_OWNER = "ExampleScorer"


@dataclass(frozen=True)
class ExampleUpdate:
    """One change of the scores, or the reason why there was none.

    step: the optimizer step after which it was made.
    rewards: of the examples of the batch, <gradient, v> / |v|; negative: training on it raises the dev loss. # [B]
    probabilities: of the examples of the batch before the update, over the batches of all processes. # [B]
    losses: of the examples of the batch. # [B]
    dev_losses, weights: {dev set: loss of the probe}, for those that count, and {dev set: weight}, the priority.
    seconds: how long the update took.
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
    """Learns which examples help while a model trains: call `step(batch)` once after every optimizer step.

    network: a module that maps a batch to one score per example, a tensor [B]; it must not share parameters with the
        model. It runs in eval mode. None: a small one over `features` and the example's own loss.
    model, losses: losses(model, batch) returns the loss of every example of a batch, a tensor [B].
    dev: {name: source of dev batches}, as for `Balancer`: clean examples of what the model should do.
    every: optimizer steps between updates.
    optimizer: for the network's parameters: a torch optimizer, or a function params -> optimizer. None: Adam, with a
        learning rate of 0.001, or 0.003 for the small network.
    priority: how much each dev set counts: "regular", "low", "high", {dev set: weight}, or a function of dev losses.
    features: for the small network: features(batch) -> [B, F], numbers that describe the examples. They are
        standardised by running statistics. None: it sees the loss alone.
    own_loss: whether the small network sees the example's loss, too. Leave it out where features say more about being
        wrong: what is hard to learn has a high loss as well.
    dev_loss: (model, batch) -> scalar tensor, what should become small on the dev sets; None: the mean of `losses`.
    direction: "balanced": v, with every parameter's part scaled to a root mean square of 1, so that a few sharp
        parameters do not drown the others; "gradient": v, the sum of the weighted dev gradients, as in the paper.
    decay: v is averaged over updates: how much of the average so far stays. 0: v of each update alone, as in the paper.
    replay, inner_steps: the small network learns from the examples of the last `replay` updates, in so many steps of
        its optimizer at each update. 1 and 1: one step on those of the update, as in the paper and as a network of
        yours always does.
    batches: dev batches per dev set and update, per process.
    mode: "train" or "eval": whether dropout and similar layers are active in probes.
    eps: how far parameters are moved for the slopes, as a share of the dev loss that this changes; None: by the
        precision of the parameters, 0.0008 in float32. With bfloat16 autocast take 0.1.
    params: the parameters whose gradients count; by default all trainable ones.
    seed: for everything random in probes, and for the small network.

    An update costs one forward and backward pass per dev batch and two forward passes over the batch, and the memory of
    two parameter-sized vectors. It leaves the model, its gradients and all random states as they were.
    `docs/dirty-data.md` has the formulas and says when it helps.
    """

    def __init__(
        self,
        network: nn.Module | None,
        model: nn.Module,
        losses: ExampleLosses,
        *,
        dev: Mapping[str, Any],
        every: int = 10,
        optimizer: OptimizerOf | None = None,
        priority: Priority = "regular",
        features: Features | None = None,
        own_loss: bool = True,
        dev_loss: Loss | None = None,
        direction: str = "balanced",
        decay: float = 0.0,
        replay: int = 1,
        inner_steps: int = 1,
        batches: int = 1,
        mode: str = "train",
        eps: float | None = None,
        params: Iterable[Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        _check_choices(network, losses, dev_loss, features, optimizer, eps, seed)
        check_whole(_OWNER, every=every, batches=batches, replay=replay, inner_steps=inner_steps)
        if not (isinstance(decay, (int, float)) and 0 <= decay < 1):
            raise ValueError(f"{_OWNER}: decay must be at least 0 and below 1, but it is {decay!r}.")
        self._losses, self.every, self._eps = losses, every, eps
        self._prober = Prober(model, self._mean_loss, params, mode, seed, owner=_OWNER, dev_loss=dev_loss)
        refuse_model(_OWNER, self._prober)
        _refuse_sharing(network, self._prober.model)
        if network is None and features is None and not own_loss:
            raise ValueError(f"{_OWNER}: without features and own_loss the small network would see nothing.")
        device = self._prober.params[0].device
        self._network = ExampleNetwork(network, features, optimizer, seed, replay, inner_steps, own_loss, device)
        self._dev = DevSets(_OWNER, self._prober, dev, batches, direction, average=RecentDirection(decay))
        self.priority = priority
        self._steps = 0

    def _mean_loss(self, model: Any, batch: Any) -> Tensor:
        return self._each(model, batch).mean()

    def _each(self, model: Any, batch: Any) -> Tensor:
        return one_per_example(_OWNER, "losses(model, batch)", self._losses(model, batch))

    @property
    def network(self) -> nn.Module | None:
        """The network that scores; the small one is made when the first batch is seen."""
        return self._network.network

    def scores(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """The scores of the examples of a batch; only their differences matter. # [B]

        losses: the losses of these examples, [B], if you have them: the small network needs them, and else computes
        them by a forward pass.
        """
        if losses is not None:
            losses = one_per_example(_OWNER, "losses", losses).detach()
        with preserved(self._devices()), torch.no_grad():
            rows = self._network.rows(batch)
            if losses is None and self._network.by_loss:
                with self._prober.invisible():
                    losses = self._prober.forward(("train", "scores", self._steps), batch, self._each)
            if losses is not None and (place := first_not_finite(losses)) is not None and self._network.by_loss:
                raise ValueError(f"{_OWNER}: the loss of example {place} of {len(losses)} is {losses[place].item()}.")
            return self._network.scores(batch, rows, losses, None if losses is None else len(losses)).detach()

    def probabilities(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """P(x, y; psi) of the examples of a batch, to draw by: the softmax of their scores, sum 1. # [B]

        losses: as in `scores`.
        """
        return self.scores(batch, losses).softmax(0)

    def trust(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """How far the small network trusts the examples of a batch: 1, or less for scores below the median. # [B]

        The median is that of the last `replay` updates, so that trust does not depend on the rest of the batch. It is 1
        until there were ten updates, or `replay` if that is fewer. To multiply losses with, or as a chance to be
        trained on, where nothing should count for more than the others.
        losses: as in `scores`.
        """
        if not self._network.small:
            raise ValueError(f"{_OWNER}: trust is by the scores of the small network; yours has its own scale.")
        scores = self.scores(batch, losses)
        return scores.clamp_max(0).exp() if self._network.ready else torch.ones_like(scores)

    @property
    def enough(self) -> int:
        """How many updates the small network needs before `trust` says anything."""
        return self._network.enough

    def weights(self, batch: Any, losses: Tensor | None = None) -> Tensor:
        """The factors for the losses of the examples of a batch: P(x, y; psi) times B, with mean 1. # [B]

        losses: as in `scores`.
        """
        scores = self.scores(batch, losses)
        return scores.softmax(0) * len(scores)

    def step(self, batch: Any) -> ExampleUpdate | None:
        """Count one optimizer step; after every `every`-th one, learn from the examples of a batch and say how.

        batch: the one that was trained on, or another. Where the update raises, the step is not counted.
        """
        due = (self._steps + 1) % self.every == 0
        update = self._update(batch, self._steps + 1) if due else None
        self._steps += 1
        return update

    def update(self, batch: Any) -> ExampleUpdate:
        """One update from the examples of a batch now, without counting a step."""
        return self._update(batch, self._steps)

    def _update(self, batch: Any, step: int) -> ExampleUpdate:
        began = time.perf_counter()
        prober, network = self._prober, self._network
        number = self._dev.looks
        with prober.invisible():
            self._check_replicas(step)
            replicas = prober.replicas
            with replicas.raise_on_all_ranks():  # what can be refused is, before anything is drawn
                rows = network.rows(batch)
                if not network.small:
                    with torch.no_grad():
                        network.scores(batch, rows, None)
            wanted = self._dev.look()
            with replicas.raise_on_all_ranks():
                rewards, losses = self._slopes(batch, wanted, number)
            skipped = wanted.trouble or self._trouble(losses, rewards)
            probabilities = torch.full_like(rewards, float("nan"))
            if skipped is None:
                probabilities, skipped = self._learn(batch, rows, losses, rewards)
        return ExampleUpdate(
            step, rewards, probabilities, losses, wanted.losses, wanted.weights, time.perf_counter() - began, skipped
        )

    def _trouble(self, losses: Tensor, rewards: Tensor) -> str | None:
        """The first loss or reward of any replica that is not finite."""
        found = [
            f"the {what} of example {place} of {len(values)} is not finite"
            for what, values in (("loss", losses), ("reward", rewards))
            if (place := first_not_finite(values)) is not None
        ]
        return next((sentence for own in self._prober.replicas.gathered(found) for sentence in own), None)

    def _learn(self, batch: Any, rows: Tensor | None, losses: Tensor, rewards: Tensor) -> tuple[Tensor, str | None]:
        """(P before, why nothing was learned): psi moves by the mean of R grad log P."""
        replicas = self._prober.replicas
        with replicas.raise_on_all_ranks():
            if not self._network.small:
                scores = self._network.scores(batch, rows, losses, len(losses))
            else:
                self._network.compare(rows, losses)
        if self._network.small:
            self._network.meet(rows, losses, replicas)
            scores = self._network.scores(batch, rows, losses, len(losses))
        probabilities, pull = self._pull(scores.detach().double(), rewards)
        if self._network.small:
            return probabilities, self._network.study(rows, losses, rewards, replicas)
        return probabilities, self._network.learn(scores, pull, replicas)

    def _slopes(self, batch: Any, wanted: Wanted, number: int) -> tuple[Tensor, Tensor]:
        if wanted.trouble is not None:
            losses = self._prober.forward(("train", "examples", number), batch, self._each).double()
            return torch.zeros_like(losses), losses
        step = step_size(self._prober, wanted.steepness, wanted.loss, self._eps)
        return slopes(self._prober, self._each, batch, wanted.vector, wanted.length, step, number)

    def _pull(self, scores: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """(P of this replica's examples, the derivative of mean_i R_i log P(i) in their scores), over all replicas."""
        replicas = self._prober.replicas
        everyone = replicas.gathered((scores.tolist(), rewards.tolist()))
        all_scores = torch.tensor([x for own, _ in everyone for x in own], dtype=torch.float64)
        total = sum(sum(own) for _, own in everyone)
        probabilities = (scores - all_scores.logsumexp(0).to(scores.device)).exp()
        return probabilities, (rewards - probabilities * total) / len(all_scores)

    def _check_replicas(self, step: int) -> None:
        mine = {**self._dev.agreed(), "steps": step, "networks": self._network.fingerprint()}
        first, *others = self._prober.replicas.gathered(mine)
        for what, value in first.items():
            if any(other[what] != value for other in others):
                raise ValueError(f"{_OWNER}: the ranks have different {what}.")

    def _devices(self) -> list[torch.device]:
        return sorted({p.device for p in self._prober.model.parameters()}, key=str)

    @property
    def priority(self) -> Priority:
        """How much each dev set counts. May be assigned at any time; the next update uses it."""
        return self._dev.weights.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._dev.weights.priority = priority

    @property
    def dev_losses(self) -> dict[str, float] | None:
        """The losses of the last full validation, by which low and high rank the dev sets; None: by the probe."""
        return self._dev.weights.losses

    @dev_losses.setter
    def dev_losses(self, losses: Mapping[str, float] | None) -> None:
        self._dev.weights.losses = losses

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next updates depend on: network, its optimizer, statistics, sources; not the model.

        Tensors are under "tensors", flat; all the rest are plain values that survive JSON.
        """
        network = self._network.state_dict()
        tensors = network.pop("tensors") | self._dev.tensors()
        return {"steps": self._steps, "dev": self._dev.state_dict(), **network, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where the other scorer was. A state that does not fit is an error and changes nothing."""
        self._network.check_state(state)
        self._dev.load_state_dict(state["dev"], state["tensors"])
        self._network.load_state_dict(state, self._prober.params[0].device)
        self._steps = int(state["steps"])


def _check_choices(
    network: object, losses: object, dev_loss: object, features: object, optimizer: object, eps: object, seed: object
) -> None:
    if network is not None and not isinstance(network, nn.Module):
        raise TypeError(f"{_OWNER}: network must be a torch.nn.Module or None, got {type(network).__name__}.")
    if network is not None and features is not None:
        raise ValueError(f"{_OWNER}: features are for the small network: give network=None, or leave features out.")
    if network is None and isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"{_OWNER}: without a network, optimizer must be a function params -> optimizer.")
    for word, given, result in (("losses", losses, "[B]"), ("dev_loss", dev_loss, "scalar tensor")):
        if not callable(given) and (given is not None or word == "losses"):
            raise TypeError(
                f"{_OWNER}: {word} must be a function (model, batch) -> {result}, got {type(given).__name__}."
            )
    for word, given, form in (
        ("features", features, "batch -> [B, F]"),
        ("optimizer", optimizer, "params -> optimizer"),
    ):
        if given is not None and not callable(given) and not isinstance(given, torch.optim.Optimizer):
            raise TypeError(f"{_OWNER}: {word} must be a function {form}, got {type(given).__name__}.")
    if eps is not None and not (isinstance(eps, (int, float)) and 0 < eps < 1):
        raise ValueError(f"{_OWNER}: eps must be a share between 0 and 1, but it is {eps!r}.")
    if not isinstance(seed, int):
        raise TypeError(f"{_OWNER}: seed must be a whole number, got {seed!r}.")


def _refuse_sharing(network: nn.Module | None, model: nn.Module) -> None:
    if network is None:
        return
    own = set(model.parameters())
    for name, p in network.named_parameters():
        if p in own:
            raise ValueError(
                f"{_OWNER}: the network's parameter {name!r} is one of the model's, which it would move; keep the "
                "model out of the network's modules."
            )
