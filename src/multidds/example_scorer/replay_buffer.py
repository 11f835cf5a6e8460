"""What a scorer of examples remembers of its last updates, so that one look is not all it goes by.

`RecentRewards` are the numbers and rewards of the examples of the last updates, to learn from more than once;
`RecentDirection` is an average of what the dev sets wanted. Of both a single one is mostly noise.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..gradients.vectors import Gradient, added

_KEPT = ("numbers", "rewards")
_FARTHEST = 3.0  # root mean squares: a few rewards must not be most of what there is to learn


class RecentRewards:
    """Of the examples of the last `updates` updates, over all replicas: the same on every one."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self._kept: list[tuple[Tensor, Tensor]] = []  # by update, the newest last: numbers [N, F], rewards [N]

    def add(self, numbers: Tensor, rewards: Tensor) -> None:
        """Of one update."""
        self._kept = [*self._kept, (numbers.detach(), rewards.detach())][-self.updates :]

    def all(self) -> tuple[Tensor, Tensor]:
        """(numbers [M, F], rewards [M]), as they were."""
        numbers, rewards = zip(*self._kept, strict=True)
        return torch.cat(numbers), torch.cat(rewards)

    def scaled(self) -> tuple[Tensor, Tensor]:
        """The same; of several updates, with rewards in root mean squares: slopes grow and shrink in a training."""
        numbers, rewards = self.all()
        if self.updates == 1:
            return numbers, rewards
        size = rewards.square().mean().sqrt()
        return numbers, (rewards / size if size > 0 else rewards).clamp(-_FARTHEST, _FARTHEST)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        tensors = {}
        if self._kept:
            tensors["recent.numbers"], tensors["recent.rewards"] = self.all()
        return {"examples": [len(rewards) for _, rewards in self._kept], "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._kept = []
        if sizes := list(state["examples"]):
            both = (torch.split(tensors[f"recent.{what}"].to(device, copy=True), sizes) for what in _KEPT)
            self._kept = list(zip(*both, strict=True))


class RecentDirection:
    """A moving average of vectors: the newest counts 1 - decay, and all before it decay as much as they did."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._average: Gradient | None = None

    def averaged(self, vector: Gradient) -> Gradient:
        """The average with this vector in it, up to a factor; not to be written to. Without decay: the vector."""
        if not self.decay:
            return vector
        for part in self._average or []:
            if part is not None:
                part.mul_(self.decay)
        self._average = added(self._average, vector)
        return list(self._average)

    def state_dict(self) -> dict[str, Tensor]:
        parts = enumerate(self._average or [])
        return {f"direction.{place}": part.clone() for place, part in parts if part is not None}

    def load_state_dict(self, tensors: Mapping[str, Tensor], like: list[Tensor]) -> None:
        found = [tensors.get(f"direction.{place}") for place in range(len(like))]
        moved = [None if t is None else t.to(p.device, copy=True) for t, p in zip(found, like, strict=True)]
        self._average = None if all(part is None for part in moved) else moved
