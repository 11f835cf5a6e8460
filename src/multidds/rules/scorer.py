"""The paper's rule: rewards move the logits of the mixture, the last lines of Algorithm 1.

A `Scorer` is settings, which can be printed and shared; the `Logits` that it makes are the state, which a balancer
owns. P(i) = softmax(logits)_i. A step takes one reward per dataset and knows nothing of models or data.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._base.carrying import carried
from .._base.checks import are, check_state, check_whole, is_number, is_state, shown


@dataclass(frozen=True)
class Scorer:
    """The paper's rule: how rewards move the logits of a mixture. Holds settings only.

    lr: the size of a step. Raise it if a training has few updates.
    optimizer: any torch optimizer class, or a function (params, lr=...) -> optimizer; its state is kept.
    inner_steps: optimizer steps per update, on the same rewards.
    rule: "sum", the paper's sum_i R_i grad log P(i), whose fixed point is P = R / sum R; or "policy",
        sum_i P(i) R_i grad log P(i), the gradient of the expected reward.
    floor: no probability falls below this share of the smallest prior probability (0: no floor). Without it, negative
        rewards drive a dataset to 0, where it can no longer show that it has become useful.
    """

    lr: float = 0.2
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    inner_steps: int = 1
    rule: str = "sum"
    floor: float = 0.1

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"Scorer: lr must be positive and finite, but it is {self.lr}.")
        if not callable(self.optimizer):
            raise TypeError(
                f"Scorer: optimizer must be a torch optimizer class, such as torch.optim.SGD, got {self.optimizer!r}."
            )
        check_whole("Scorer", inner_steps=self.inner_steps)
        if self.rule not in ("sum", "policy"):
            raise ValueError(f"Scorer: rule must be 'sum' or 'policy', but it is {self.rule!r}.")
        if not (self.floor >= 0 and math.isfinite(self.floor)):
            raise ValueError(f"Scorer: floor must be a share of the smallest prior, 0 or more, but it is {self.floor}.")

    @classmethod
    def authors(cls) -> "Scorer":
        """The setting of the authors' code: Adam with kept state, 200 small steps per update, no floor."""
        return cls(lr=1e-4, optimizer=torch.optim.Adam, inner_steps=200, floor=0.0)

    def started(self, prior: Sequence[float]) -> "Logits":
        """The state of one learned mixture, at the log of the prior."""
        return Logits(self, prior)


class Logits:
    """The logits of one mixture (the paper's psi), and the state of the optimizer that moves them."""

    signal = math.nan  # this rule does not ask how much of the rewards is noise

    def __init__(self, settings: Scorer, prior: Sequence[float]) -> None:
        self._settings = settings
        self._smallest = settings.floor * min(prior)
        if settings.floor and self._smallest >= 1 / len(prior):
            raise ValueError(
                f"Scorer: the floor {settings.floor} of the smallest prior {min(prior):g} is {self._smallest:g}, "
                f"which {len(prior)} datasets cannot all have; it must be below {1 / len(prior):g}."
            )
        with torch.inference_mode(False):
            self.values = torch.tensor(prior, dtype=torch.float64, device="cpu").log()
            self._optimizer = settings.optimizer([self.values], lr=settings.lr)

    def step(
        self, rewards: Sequence[float], noise: Sequence[float] | None = None, anchor: Sequence[float] | None = None
    ) -> list[float] | None:
        """One update. The new probabilities, or None, with nothing changed, if they would not be finite.

        The paper's rule knows neither noise nor anchor.
        """
        with torch.inference_mode(False), torch.no_grad():
            return self._step(torch.tensor(rewards, dtype=torch.float64, device="cpu"))

    def _step(self, reward: Tensor) -> list[float] | None:
        before = self.state_dict()
        for _ in range(self._settings.inner_steps):
            p = self.values.softmax(0)
            if self._settings.rule == "sum":  # minus the gradient of sum_i R_i log P(i)
                self.values.grad = p * reward.sum() - reward
            else:  # minus the gradient of sum_i P(i) R_i
                self.values.grad = p * ((p * reward).sum() - reward)
            self._optimizer.step()
        self.values.grad = None
        p = self.values.softmax(0)
        if not p.isfinite().all():
            self._load(before)
            return None
        if self._settings.floor:
            p = raised_to(p, self._smallest)
            self.values.copy_(p.log())
        return p.tolist()

    def notes(self, rewards: Sequence[float]) -> tuple[str, ...]:
        """What a reader of an update should know about its rewards under this rule."""
        if self._settings.rule == "sum" and sum(rewards) <= 0:
            return (f"the rewards sum to {sum(rewards):.3g}, not above 0: there is no stable fixed point",)
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings, lists and dicts with string keys only, whatever the optimizer: it survives JSON."""
        state = self._optimizer.state.get(self.values, {})
        (group,) = self._optimizer.param_groups
        settings = {key: list(v) if isinstance(v, tuple) else v for key, v in group.items() if key != "params"}
        return {
            "logits": self.values.tolist(),
            "smallest": self._smallest,  # of the prior that there was at the start
            "optimizer": type(self._optimizer).__name__,
            "settings": settings,
            "state": {key: _packed(value) if isinstance(value, Tensor) else value for key, value in state.items()},
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` could not go on from."""
        own = type(self._optimizer).__name__
        check_state("Scorer", state)
        if "logits" not in state:
            raise ValueError("Scorer: the state is of another rule.")
        check_state("Scorer", state, optimizer=lambda value: isinstance(value, str))
        if state["optimizer"] != own:
            raise ValueError(f"Scorer: the state is of the optimizer {state['optimizer']}, but this one has {own}.")
        check_state("Scorer", state, logits=are(is_number), smallest=self._is_floor, settings=is_state, state=is_state)
        for key, value in state["settings"].items():
            if key == "params" or not _is_like(self._optimizer.defaults.get(key), value):
                raise ValueError(f"Scorer: the state is damaged: the setting {key!r} of {own} is {shown(value)}.")
        if len(state["logits"]) != len(self.values):
            raise ValueError(f"Scorer: the state has {len(state['logits'])} logits, but there are {len(self.values)}.")
        self._check_by_trying(state)

    def _is_floor(self, value: object) -> bool:
        return is_number(value) and 0 <= float(value) < 1 / len(self.values)  # type: ignore[arg-type]

    def _check_by_trying(self, state: Mapping[str, Any]) -> None:
        """What an optimizer keeps is its own: whether it can go on from it, a step of a copy shows."""
        twin = copy.deepcopy(self)
        try:
            twin._load(state)
            twin.step([0.0] * len(self.values))
        except Exception as error:
            own = type(self._optimizer).__name__
            what = str(error).split("\n")[0][:200]
            raise ValueError(f"Scorer: the state is damaged: {own} cannot go on from it ({what}).") from None

    def carried(
        self, state: Mapping[str, Any], places: Sequence[int | None], probabilities: Sequence[float]
    ) -> dict[str, Any]:
        """A state for other datasets. places: where each was; None: it is new. probabilities: of all of them now."""
        before = len(state["logits"])
        kept = {
            key: {**value, "values": carried(value["values"], places, 0.0)}
            if isinstance(value, Mapping) and are(is_number, before)(value.get("values"))
            else value
            for key, value in state["state"].items()
        }
        logits = torch.tensor(probabilities, dtype=torch.float64, device="cpu").log().tolist()
        return {**state, "logits": logits, "smallest": self._smallest, "state": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.check_state(state)
        self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        self._smallest = float(state["smallest"])
        with torch.inference_mode(False), torch.no_grad():
            self.values.copy_(torch.tensor(state["logits"], dtype=torch.float64, device="cpu"))
        # Not by the optimizer's own load_state_dict: it would cast every tensor to the type of the logits.
        (group,) = self._optimizer.param_groups
        for key, value in state["settings"].items():
            if key in group:  # or another version of the optimizer knew it
                group[key] = tuple(value) if isinstance(group[key], tuple) else value
        self._optimizer.state.clear()
        if state["state"]:
            self._optimizer.state[self.values] = {
                key: _unpacked(value) if isinstance(value, Mapping) else value for key, value in state["state"].items()
            }


def raised_to(p: Tensor, smallest: float) -> Tensor:
    """Probabilities of at least `smallest` (below 1/n): the ones below it are raised, the rest rescaled."""
    low = p < smallest
    while True:
        rest = 1 - smallest * int(low.sum())
        raised = torch.where(low, smallest, p * (rest / p[~low].sum()))
        if not (raised < smallest).any():
            return raised
        low = low | (raised < smallest)


def _is_like(own: object, value: object) -> bool:
    """Whether a setting of an optimizer may take the place of its own; one that it does not know may be anything."""
    if isinstance(own, tuple):
        return are(is_number, len(own))(value)
    if own is None or isinstance(own, bool):
        return (
            value is None or isinstance(value, bool) or (own is None and (isinstance(value, str) or is_number(value)))
        )
    return isinstance(value, str) if isinstance(own, str) else is_number(value)


def _packed(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}


def _unpacked(packed: Mapping[str, Any]) -> Tensor:
    return torch.tensor(packed["values"], dtype=getattr(torch, packed["dtype"]), device="cpu")
