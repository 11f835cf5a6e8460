"""Networks that score examples, and the optimizer step that moves them along R grad log P."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._base.ranks import Ranks
from ..probes.example_slopes import first_not_finite, one_per_example

OptimizerOf: TypeAlias = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OWNER = "ExampleScorer"  # opens the errors of this package
_ADAM = partial(torch.optim.Adam, lr=1e-3)


@dataclass(frozen=True)
class OwnNetwork:
    """Settings of a network of yours that scores examples; it takes one step at each update, as in the paper.

    module: maps a batch to one score per example, a tensor [B]. It runs in eval mode and must not share parameters
        with the model.
    optimizer: a function params -> torch optimizer; default: Adam with a learning rate of 0.001.
    """

    module: nn.Module
    optimizer: OptimizerOf = _ADAM

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise TypeError(f"OwnNetwork: module must be a torch.nn.Module, got {type(self.module).__name__}.")
        check_function("OwnNetwork", "optimizer", self.optimizer, "params -> optimizer")

    def started(self, model: nn.Module, device: torch.device, seed: int) -> "OwnScores":
        """Returns the scores that the network gives, ready to learn."""
        parameters = set(model.parameters())
        for name, p in self.module.named_parameters():
            if p in parameters:
                raise ValueError(
                    f"{OWNER}: the network's parameter {name!r} is one of the model's, which it would move; keep the "
                    "model out of the network's modules."
                )
        return OwnScores(TrainedNetwork(self.module, self.optimizer))


class OwnScores:
    """Scores of a network of the user."""

    uses_losses = False  # whether scores depend on the losses of the examples
    warmup = 0

    def __init__(self, trained: "TrainedNetwork") -> None:
        self._trained = trained

    @property
    def module(self) -> nn.Module:
        return self._trained.module

    def prepare(self, batch: Any) -> None:
        """Raises what the scores of a batch would, before anything is drawn."""
        with torch.no_grad():
            self._trained.scores(batch)

    def scores(self, batch: Any, losses: Tensor | None) -> Tensor:
        """Returns one score per example, with a graph if gradients are enabled. # [B]"""
        return self._trained.scores(batch, None if losses is None else len(losses))

    def learn(
        self, batch: Any, prepared: Tensor | None, losses: Tensor, rewards: Tensor, ranks: Ranks
    ) -> tuple[Tensor, str | None]:
        """Moves the network by the mean of R grad log P; returns P before, and why not, if it did not."""
        with ranks.raise_on_all_ranks():
            scores = self.scores(batch, losses)
        probabilities, pull = policy_gradient(scores.detach().double(), rewards, ranks)
        return probabilities, self._trained.step(scores, pull, ranks)

    def keep_probabilities(self, scores: Tensor) -> Tensor:
        raise ValueError(f"{OWNER}: keep_probabilities need a SmallNetwork; the scores of yours have their own scale.")

    def fingerprint(self) -> float:
        return self._trained.fingerprint()

    def state_dict(self) -> dict[str, Any]:
        return self._trained.state_dict()

    def check_state(self, state: Mapping[str, Any]) -> None:
        if "features" in state:
            raise ValueError(f"{OWNER}: the state was saved with a SmallNetwork, but this is an OwnNetwork.")
        self._trained.check_state(state)

    def load_state_dict(self, state: Mapping[str, Any], seed: int) -> None:
        self._trained.load_state_dict(state)


class TrainedNetwork:
    """A module that scores examples, and its optimizer."""

    def __init__(self, module: nn.Module, optimizer: OptimizerOf) -> None:
        self.module = module
        self._params = [p for p in module.parameters() if p.requires_grad]
        if not self._params:
            raise ValueError(f"{OWNER}: the network has no trainable parameters.")
        self._optimizer = optimizer(self._params)
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            kind = type(self._optimizer).__name__
            raise TypeError(f"{OWNER}: optimizer(params) must return a torch optimizer, got {kind}.")

    def scores(self, inputs: Any, count: int | None = None) -> Tensor:
        """Returns the scores of `count` examples, without dropout. # [B]"""
        with _evaluating(self.module):
            scores = one_per_example(OWNER, "network(batch)", self.module(inputs), count)
        if (place := first_not_finite(scores)) is not None:
            raise ValueError(
                f"{OWNER}: the score of example {place} of {len(scores)} is {scores[place].item()}; "
                "the network must return finite numbers."
            )
        return scores

    def step(self, scores: Tensor, pull: Tensor, ranks: Ranks) -> str | None:
        """Takes one optimizer step along `pull`, a derivative in the scores; returns why not, if it took none."""
        gradients = torch.autograd.grad(-(pull.to(scores) * scores).sum(), self._params, allow_unused=True)
        if ranks.size > 1:
            gradients = tuple(
                torch.zeros_like(p) if g is None else g for p, g in zip(self._params, gradients, strict=True)
            )
            ranks.average(gradients)
            gradients = tuple(g * ranks.size for g in gradients)
        if not all(bool(g.isfinite().all()) for g in gradients if g is not None):
            return "the gradient of the network is not finite"
        before = [p.grad for p in self._params]
        try:
            for p, gradient in zip(self._params, gradients, strict=True):
                p.grad = gradient
            self._optimizer.step()
        finally:
            for p, kept in zip(self._params, before, strict=True):
                p.grad = kept
        return None

    def fingerprint(self) -> float:
        """Returns a number that differs if networks differ."""
        values = self.module.state_dict().values()
        return sum(t.detach().double().sum().item() for t in values if isinstance(t, Tensor))

    def state_dict(self) -> dict[str, Any]:
        """Returns plain values, and under "tensors" the rest."""
        tensors = {f"network.{name}": t.detach().clone() for name, t in self.module.state_dict().items()}
        saved = self._optimizer.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for place, values in saved["state"].items():
            plain[str(place)] = {key: value for key, value in values.items() if not isinstance(value, Tensor)}
            tensors |= {
                f"optimizer.{place}.{key}": value.detach().clone()
                for key, value in values.items()
                if isinstance(value, Tensor)
            }
        groups = [{key: _plain(value) for key, value in group.items()} for group in saved["param_groups"]]
        return {"optimizer": type(self._optimizer).__name__, "groups": groups, "state": plain, "tensors": tensors}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises a ValueError if a state is of another network or another optimizer."""
        shapes = {f"network.{name}": t.shape for name, t in self.module.state_dict().items()}
        saved = {name: t.shape for name, t in state["tensors"].items() if name.startswith("network.")}
        if saved != shapes:
            raise ValueError(f"{OWNER}: the network of the state has other parameters.")
        kind = type(self._optimizer).__name__
        if state["optimizer"] != kind:
            raise ValueError(f"{OWNER}: the state is of the optimizer {state['optimizer']}, but this one has {kind}.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a state, which `check_state` has let pass."""
        of_place: dict[int, dict[str, Any]] = {int(place): dict(values) for place, values in state["state"].items()}
        for name, tensor in state["tensors"].items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                place, _, key = rest.partition(".")
                of_place[int(place)][key] = tensor.clone()
        self._optimizer.load_state_dict({"state": of_place, "param_groups": state["groups"]})
        with torch.inference_mode(False), torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(state["tensors"][f"network.{name}"])


def policy_gradient(scores: Tensor, rewards: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Returns P of this rank's examples, and the derivative of mean_i R_i log P(i) in their scores, over all ranks."""
    of_ranks = ranks.gather((scores.tolist(), rewards.tolist()))
    all_scores = torch.tensor([score for own, _ in of_ranks for score in own], dtype=torch.float64)
    total = sum(sum(own) for _, own in of_ranks)
    probabilities = (scores - all_scores.logsumexp(0).to(scores.device)).exp()
    return probabilities, (rewards - probabilities * total) / len(all_scores)


def check_function(where: str, word: str, value: object, form: str) -> None:
    """Raises a TypeError if a setting is no function."""
    if not callable(value):
        raise TypeError(f"{where}: {word} must be a function {form}, got {type(value).__name__}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Runs a block in eval mode and restores the flags: scores are not random."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training
