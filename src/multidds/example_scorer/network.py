"""The network that scores examples, the optimizer that moves it along R grad log P, and the state of both.

A network of the user takes one step per update, as in the paper. The small one, over numbers that are cheap to keep,
can learn from those of recent updates too (`recent`), in several steps: rewards of single examples are mostly noise.
It knows nothing of the model that is trained: rewards and losses of examples are given to it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .._base.ranks import Ranks
from ..probes.example_slopes import first_not_finite, one_per_example
from .replay_buffer import RecentRewards
from .small_network import FeatureNetwork, sums_of

Features: TypeAlias = Callable[[Any], Tensor]
OptimizerOf: TypeAlias = torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer]
_OWNER = "ExampleScorer"
_OWN_LR = 1e-3  # of the user's network
_LR = 3e-3  # of the small one
_ENOUGH = 10  # updates, before the scores of the small one are more than noise


class ExampleNetwork:
    """Scores of the examples of a batch: by a module of the user, or by features and losses."""

    def __init__(
        self,
        network: nn.Module | None,
        features: Features | None,
        optimizer: OptimizerOf | None,
        seed: int,
        replay: int,
        inner_steps: int,
        own_loss: bool,
        device: torch.device,
    ) -> None:
        self._features, self._optimizer_of, self._seed = features, optimizer, seed
        self._recent, self._inner_steps = RecentRewards(replay), inner_steps
        self._device = device  # of the model
        self.small = network is None  # whether it is the default one
        self.by_loss = self.small and own_loss  # whether scores need the losses of the examples
        self._network = network  # the default one begins when it is known how many features there are
        self._optimizer = None if network is None else _started(network, optimizer, _OWN_LR)

    @property
    def network(self) -> nn.Module | None:
        return self._network

    def rows(self, batch: Any) -> Tensor | None:
        """What the default network sees of a batch beside the losses; None where there is another network. # [B, F]"""
        if not self.small or self._features is None:
            return None
        rows = self._features(batch)
        if not isinstance(rows, Tensor):
            raise TypeError(f"{_OWNER}: features(batch) must return a tensor [B, F], got {type(rows).__name__}.")
        if rows.ndim != 2 or len(rows) == 0:
            raise ValueError(
                f"{_OWNER}: features(batch) must return one row per example, [B, F], "
                f"but the shape is {tuple(rows.shape)}."
            )
        if (place := first_not_finite(rows.sum(1))) is not None:
            raise ValueError(f"{_OWNER}: the features of example {place} of {len(rows)} are not finite.")
        known = rows.shape[1]
        if isinstance(self._network, FeatureNetwork):
            known = len(self._network.inner) - self.by_loss
        if rows.shape[1] != known:
            raise ValueError(f"{_OWNER}: features(batch) returned {rows.shape[1]} features, but there were {known}.")
        return rows.detach()

    def scores(self, batch: Any, rows: Tensor | None, losses: Tensor | None, count: int | None = None) -> Tensor:
        """One score per example, with a graph where gradients are enabled. # [B]"""
        with _evaluating(self._network):
            if self.small:
                scores = self._default(self._numbers(rows, losses))
            else:
                assert self._network is not None
                scores = one_per_example(_OWNER, "network(batch)", self._network(batch), count)
        if (place := first_not_finite(scores)) is not None:
            raise ValueError(
                f"{_OWNER}: the score of example {place} of {len(scores)} is {scores[place].item()}; "
                "the network must return finite numbers."
            )
        return scores

    def compare(self, rows: Tensor | None, losses: Tensor) -> None:
        """Refuse features and losses of different numbers of examples."""
        if rows is not None and len(rows) != len(losses):
            raise ValueError(f"{_OWNER}: there are {len(losses)} losses, but features of {len(rows)} examples.")

    def _numbers(self, rows: Tensor | None, losses: Tensor | None) -> Tensor:
        if not self.by_loss:
            assert rows is not None
            return rows.to(self._device).double()
        assert losses is not None
        if rows is None:
            return losses.detach().double()[:, None]
        self.compare(rows, losses)
        return torch.cat([rows.to(losses.device).double(), losses.detach().double()[:, None]], dim=1)  # [B, F + 1]

    def _default(self, numbers: Tensor) -> Tensor:
        if self._network is None:
            self._begin(numbers.shape[1], numbers.device)
        assert self._network is not None
        scores: Tensor = self._network(numbers)
        return scores

    def _begin(self, count: int, device: torch.device) -> None:
        self._network = FeatureNetwork(count, self._seed).to(device)
        self._optimizer = _started(self._network, self._optimizer_of, _LR)

    def meet(self, rows: Tensor | None, losses: Tensor, replicas: Ranks) -> None:
        """For the default network: let running statistics see a batch, that of all replicas."""
        numbers = self._numbers(rows, losses)
        if self._network is None:
            self._begin(numbers.shape[1], numbers.device)
        assert isinstance(self._network, FeatureNetwork)
        sums = sums_of(numbers)
        replicas.average([sums])
        self._network.standard.add(sums * replicas.size)

    def study(self, rows: Tensor | None, losses: Tensor, rewards: Tensor, replicas: Ranks) -> str | None:
        """For the default network: steps along R grad log P over the examples of recent updates, of all replicas."""
        everyone = replicas.gathered((self._numbers(rows, losses).cpu(), rewards.cpu()))
        numbers, of_all = (torch.cat(parts).to(losses.device) for parts in zip(*everyone, strict=True))
        self._recent.add(numbers, of_all)
        numbers, known = self._recent.scaled()
        alone = Ranks.alone(losses.device)
        for _ in range(self._inner_steps):
            scores = self._default(numbers)
            with torch.no_grad():
                pull = (known - scores.double().softmax(0) * known.sum()) / len(known)
            if trouble := self.learn(scores, pull, alone):
                return trouble
        assert isinstance(self._network, FeatureNetwork)
        self._network.learned(numbers)
        return None

    @property
    def ready(self) -> bool:
        """Whether the default network has learned from enough updates to be listened to."""
        return isinstance(self._network, FeatureNetwork) and int(self._network.updates) >= self.enough

    @property
    def enough(self) -> int:
        return min(_ENOUGH, self._recent.updates)

    def learn(self, scores: Tensor, pull: Tensor, replicas: Ranks) -> str | None:
        """One step of the optimizer along sum_j pull_j grad score_j over all replicas; or why there was none."""
        assert self._network is not None
        assert self._optimizer is not None
        params = [p for p in self._network.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(-(pull.to(scores) * scores).sum(), params, allow_unused=True)
        if replicas.size > 1:
            gradients = tuple(torch.zeros_like(p) if g is None else g for p, g in zip(params, gradients, strict=True))
            replicas.average(g for g in gradients if g is not None)
            gradients = tuple(None if g is None else g * replicas.size for g in gradients)
        if not all(bool(g.isfinite().all()) for g in gradients if g is not None):
            return "the gradient of the network is not finite"
        kept = [p.grad for p in params]
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        try:
            self._optimizer.step()
        finally:
            for p, grad in zip(params, kept, strict=True):
                p.grad = grad
        return None

    def fingerprint(self) -> float:
        """Differs where networks differ."""
        tensors = [] if self._network is None else list(self._network.state_dict().values())
        return sum(t.detach().double().sum().item() for t in tensors if isinstance(t, Tensor))

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        if self._network is None or self._optimizer is None:
            nothing: dict[str, Any] = {
                "numbers": None,
                "optimizer": None,
                "groups": [],
                "state": {},
                "recent": [],
                "tensors": {},
            }
            return {"seed": self._seed, **nothing}
        tensors = {f"network.{name}": t.detach().clone() for name, t in self._network.state_dict().items()}
        moved_by = self._optimizer.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for place, values in moved_by["state"].items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{place}.{key}"] = value.detach().clone()
                else:
                    plain.setdefault(str(place), {})[key] = value
        recent = self._recent.state_dict()
        groups = [{key: _plain(value) for key, value in group.items()} for group in moved_by["param_groups"]]
        return {
            "seed": self._seed,
            "numbers": len(self._network.inner) if isinstance(self._network, FeatureNetwork) else None,
            "optimizer": type(self._optimizer).__name__,
            "groups": groups,
            "state": plain,
            "recent": recent["examples"],
            "tensors": tensors | recent["tensors"],
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that `load_state_dict` could not go on from."""
        own = self._network
        if self.small != (state["numbers"] is not None or state["optimizer"] is None):
            raise ValueError(f"{_OWNER}: the state was saved with another network.")
        if self.small:
            if state["numbers"] is None:
                return
            own = FeatureNetwork(state["numbers"], state["seed"])
            if isinstance(self._network, FeatureNetwork) and len(self._network.inner) != state["numbers"]:
                raise ValueError(
                    f"{_OWNER}: the state has {state['numbers'] - self.by_loss} features, "
                    f"but there are {len(self._network.inner) - self.by_loss}."
                )
        assert own is not None
        saved = {n.removeprefix("network."): t for n, t in state["tensors"].items() if n.startswith("network.")}
        shapes = {name: tuple(t.shape) for name, t in own.state_dict().items()}
        if shapes != {name: tuple(t.shape) for name, t in saved.items()}:
            raise ValueError(f"{_OWNER}: the network of the state has other parameters.")
        name = type(self._optimizer or _started(own, self._optimizer_of, _LR)).__name__
        if state["optimizer"] != name:
            raise ValueError(f"{_OWNER}: the state is of the optimizer {state['optimizer']}, but this one has {name}.")

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Where the state does not fit, an error, and nothing has changed."""
        self.check_state(state)
        self._seed = state["seed"]
        if self.small:
            self._network = self._optimizer = None
            self._recent.load_state_dict({"examples": []}, {}, device)
            if state["numbers"] is None:
                return
            self._begin(state["numbers"], device)
        assert self._network is not None
        assert self._optimizer is not None
        tensors = state["tensors"]
        own = self._network.state_dict()
        with torch.inference_mode(False), torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[f"network.{name}"])
        _load_optimizer(self._optimizer, state, tensors)
        self._recent.load_state_dict({"examples": state["recent"]}, tensors, device)


def _started(network: nn.Module, optimizer: OptimizerOf | None, lr: float) -> torch.optim.Optimizer:
    params = [p for p in network.parameters() if p.requires_grad]
    if not params:
        raise ValueError(f"{_OWNER}: the network has no trainable parameters.")
    if optimizer is None:
        return torch.optim.Adam(params, lr=lr)
    made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(params)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"{_OWNER}: optimizer(params) must return a torch optimizer, got {type(made).__name__}.")
    theirs = {p for group in made.param_groups for p in group["params"]}
    if theirs != set(params):
        raise ValueError(f"{_OWNER}: the optimizer must hold the trainable parameters of the network, and no others.")
    return made


def _load_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Not by its own load_state_dict, which casts every tensor to the type of its parameter."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for place, p in enumerate(params):
        begin = f"optimizer.{place}."
        values = {name.removeprefix(begin): t for name, t in tensors.items() if name.startswith(begin)}
        here = {key: t.clone() if key == "step" else t.to(p.device, copy=True) for key, t in values.items()}
        plain = state["state"].get(str(place), {})
        if here or plain:
            optimizer.state[p] = {**here, **plain}
    for group, saved in zip(optimizer.param_groups, state["groups"], strict=True):
        for key, value in saved.items():
            if key != "params":
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


@contextmanager
def _evaluating(network: nn.Module | None) -> Iterator[None]:
    """Scores are not random: the network runs without dropout, and its flags are put back."""
    flags = [] if network is None else [(module, module.training) for module in network.modules()]
    try:
        if network is not None:
            network.eval()
        yield
    finally:
        for module, training in flags:
            module.training = training
