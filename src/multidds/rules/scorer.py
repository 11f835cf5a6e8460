"""The paper's rule: rewards move the logits of the mixture, Algorithm 1 from "Estimate the effect" on.

P(i) = softmax(logits)_i. A step takes one reward per dataset.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._base.checks import check_names, check_whole
from .._base.state import check_keys, not_negative, restored
from ..probes.probe import NotFiniteError, Probe
from ..probes.round import Round, Training
from .moving_average import MovingAverage
from .rewards import Cosine, Reward, StabilizedCosine
from .rule import Findings, Rule, State


@dataclass(frozen=True)
class Scorer(Rule):
    """The paper's rule: rewards move the logits of a mixture. Holds settings only.

    reward: (probe, round) -> {dataset: reward}: `StabilizedCosine()`, `Cosine()`, `MovingAverage()` or a function of
        your own. Default `StabilizedCosine()`, the reward of MultiDDS-S.
    lr: the size of a step. Raise it if a training has few updates. Default 0.2.
    optimizer: any torch optimizer class, or a function (params, lr=...) -> optimizer; its state is kept. Default SGD.
    inner_steps: optimizer steps per update, on the same rewards. Default 1.
    rule: "sum", the paper's sum_i R_i grad log P(i), whose fixed point is P = R / sum R; or "policy",
        sum_i P(i) R_i grad log P(i), the gradient of the expected reward. Default "sum".
    floor: no probability falls below this share of the smallest prior probability (0: no floor). Without it, negative
        rewards drive a dataset to 0, where it can no longer show that it has become useful. Default 0.1.
    table: buckets of sketches, such as 2**16: each update has the table of inner products of all gradients as
        `update.alignment`. Default None: no table.
    """

    reward: Reward = StabilizedCosine()
    lr: float = 0.2
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    inner_steps: int = 1
    rule: str = "sum"
    floor: float = 0.1
    table: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.reward):
            raise TypeError(
                f"Scorer: reward must be a function (probe, round) -> {{dataset: reward}}, such as StabilizedCosine(), "
                f"but it is {self.reward!r}."
            )
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
        if self.table is not None:
            check_whole("Scorer", table=self.table)
            if self.steps_ahead or self.keeps_gradients:
                raise ValueError(
                    "Scorer: table needs gradients of the present parameters. Leave it out with a step ahead and with "
                    "moving averages."
                )

    @classmethod
    def authors(cls) -> "Scorer":
        """The setting of the authors' code: Adam with kept state, 200 small steps per update, no floor."""
        return cls(lr=1e-4, optimizer=torch.optim.Adam, inner_steps=200, floor=0.0)

    @property
    def steps_ahead(self) -> bool:
        return isinstance(self.reward, Cosine) and self.reward.ahead is not None

    @property
    def keeps_gradients(self) -> bool:
        return isinstance(self.reward, MovingAverage)

    def start(self, training: Training) -> "Logits":
        """Returns the state for one training, at the log of the prior."""
        return Logits(self, training)


class Logits(State):
    """The logits of one mixture (the paper's psi), and the state of the optimizer that moves them."""

    def __init__(self, settings: Scorer, training: Training) -> None:
        self._settings, self._reward, prior = settings, settings.reward, training.prior
        if isinstance(settings.reward, MovingAverage) and training.probe is not None:
            self._reward = settings.reward.begin(training.probe)
        self._names = sorted(prior)
        smallest = min(prior.values())
        self._floor = settings.floor * smallest
        if settings.floor and self._floor >= 1 / len(prior):
            raise ValueError(
                f"Scorer: the floor {settings.floor} of the smallest prior {smallest:g} is {self._floor:g}, "
                f"which {len(prior)} datasets cannot all have; it must be below {1 / len(prior):g}."
            )
        with torch.inference_mode(False):
            values = [prior[name] for name in self._names]
            self.values = torch.tensor(values, dtype=torch.float64, device="cpu").log()
            self._optimizer = settings.optimizer([self.values], lr=settings.lr)

        self.mixture = self._softmax()

    def _softmax(self) -> dict[str, float]:
        return dict(zip(self._names, self.values.softmax(0).tolist(), strict=True))

    def update(self, probe: Probe, round_: Round) -> Findings:
        if self._settings.table is not None:
            probe.keep_sketches(self._settings.table)
        rewards = self._checked(self._reward(probe, round_))
        notes: tuple[str, ...] = ()
        if self._settings.rule == "sum" and (total := sum(rewards.values())) <= 0:
            notes = (f"the rewards sum to {total:.3g}, not above 0: there is no stable fixed point",)
        self.step(rewards)
        table = None if self._settings.table is None else probe.kept_table(round_)
        return Findings(rewards, table=table, notes=notes)

    def _checked(self, rewards: Mapping[str, float]) -> dict[str, float]:
        if not isinstance(rewards, Mapping):
            raise TypeError(f"Scorer: the reward must return {{dataset: reward}}, but it is {type(rewards).__name__}.")
        if rewards.keys() != set(self._names):
            check_names("Scorer: the rewards", self._names, rewards)
        return {name: float(reward) for name, reward in rewards.items()}

    def step(self, rewards: Mapping[str, float]) -> None:
        """Moves the logits by one reward per dataset. If they overflow, raises `NotFiniteError` and changes nothing."""
        ordered = torch.tensor([rewards[name] for name in self._names], dtype=torch.float64, device="cpu")
        with torch.inference_mode(False), torch.no_grad():
            probabilities = self._step(ordered)
        self.mixture = dict(zip(self._names, probabilities.tolist(), strict=True))

    def _step(self, reward: Tensor) -> Tensor:
        before = self.values.clone(), copy.deepcopy(self._optimizer.state.get(self.values, {}))
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
            self._put(*before)
            raise NotFiniteError("the rewards give no finite probabilities")
        if self._settings.floor:
            p = raised_to(p, self._floor)
            self.values.copy_(p.log())
        return p

    def observe(self, name: str) -> None:
        if isinstance(self._reward, MovingAverage):
            check_names("Balancer.observe", self._names, [*self._names, name])
            self._reward.observe(name)

    def forget_gradients(self) -> None:
        if isinstance(self._reward, MovingAverage):
            self._reward.forget()

    def state_dict(self) -> dict[str, Any]:
        state = self._optimizer.state.get(self.values, {})
        return {
            "rule": type(self).__name__,
            "logits": self.values.tolist(),
            "optimizer": type(self._optimizer).__name__,
            "state": {key: _plain(value) if isinstance(value, Tensor) else value for key, value in state.items()},
            "averages": self._reward.state_dict() if isinstance(self._reward, MovingAverage) else None,
        }

    def tensors(self) -> dict[str, Tensor]:
        return self._reward.tensors() if isinstance(self._reward, MovingAverage) else {}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.check_rule(state)
        check_keys("Scorer", state, "logits", "optimizer", "state", "averages")
        own = type(self._optimizer).__name__
        if state["optimizer"] != own:
            raise ValueError(f"Scorer: the state is of the optimizer {state['optimizer']}, but this one has {own}.")
        logits = restored("Scorer: the state: 'logits'", self.values.numpy(), state["logits"])
        kept = self._restored_optimizer("Scorer: the state: 'state'", state["state"])
        if isinstance(self._reward, MovingAverage) != (state["averages"] is not None):
            raise ValueError("Balancer: the state was saved with another reward: only one keeps moving averages.")
        if isinstance(self._reward, MovingAverage):
            self._reward.load_state_dict(state["averages"], tensors)
        self._put(torch.from_numpy(logits), kept)
        self.mixture = self._softmax()

    def _restored_optimizer(self, where: str, saved: Any) -> dict[str, Any]:
        """Returns the saved state of the optimizer: none, or what it has after a step."""
        check_keys(where, saved)
        if not saved:
            return {}
        with torch.inference_mode(False):
            trial = torch.zeros_like(self.values)
            optimizer = self._settings.optimizer([trial], lr=self._settings.lr)
            trial.grad = torch.zeros_like(trial)
            optimizer.step()
            present = optimizer.state[trial]
            check_names(where, present, saved)
            kept = {key: _restored(f"{where}: {key!r}", each, saved[key]) for key, each in present.items()}
            not_negative(f"{where}: 'step'", float(kept.get("step", 0)))
            optimizer.state[trial] = copy.deepcopy(kept)
            optimizer.step()
        if not trial.isfinite().all():
            raise ValueError(f"{where}: its next step would not be finite.")
        return kept

    def _put(self, values: Tensor, kept: Mapping[str, Any]) -> None:
        with torch.inference_mode(False), torch.no_grad():
            self.values.copy_(values)
        # Not by the optimizer's own load_state_dict: it would cast every tensor to the type of the logits.
        self._optimizer.state.clear()
        if kept:
            self._optimizer.state[self.values] = dict(kept)


def raised_to(p: Tensor, smallest: float) -> Tensor:
    """Probabilities of at least `smallest` (below 1/n): the ones below it are raised, the rest rescaled."""
    low = p < smallest
    while True:
        rest = 1 - smallest * int(low.sum())
        raised = torch.where(low, smallest, p * (rest / p[~low].sum()))
        if not (raised < smallest).any():
            return raised
        low = low | (raised < smallest)


def _plain(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "values": tensor.tolist()}


def _restored(where: str, present: Any, saved: Any) -> Any:
    """Returns a value of an optimizer's state, which `_plain` has made plain."""
    if not isinstance(present, Tensor):
        return restored(where, present, saved)
    check_keys(where, saved, "dtype", "values")
    if saved["dtype"] != (dtype := _plain(present)["dtype"]):
        raise ValueError(f"{where}: 'dtype' must be {dtype!r}, but it is {saved['dtype']!r}.")
    values = restored(f"{where}: 'values'", present.double().numpy(), saved["values"])
    return torch.from_numpy(values).to(present.dtype)
