"""Replay buffer of the rewards of recent updates; a single reward is mostly noise."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_CLIP_RMS = 3.0  # |reward| <= 3 root mean squares, so that a few rewards do not outweigh the rest


class ReplayBuffer:
    """Features and rewards of the examples of the last `updates` updates, of all ranks; the same on each."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self._kept: list[tuple[Tensor, Tensor]] = []  # by update, the newest last: features [N, F], rewards [N]

    def add(self, features: Tensor, rewards: Tensor) -> None:
        """Adds the examples of an update and drops those of the oldest."""
        self._kept = [*self._kept, (features.detach(), rewards.detach())][-self.updates :]

    def examples(self) -> tuple[Tensor, Tensor]:
        """Returns (features [M, F], rewards [M]).

        Rewards of several updates are in root mean squares, since slopes grow and shrink during a training.
        """
        features, rewards = self._joined()
        if self.updates == 1:
            return features, rewards
        rms = rewards.square().mean().sqrt()
        return features, (rewards / rms if rms > 0 else rewards).clamp(-_CLIP_RMS, _CLIP_RMS)

    def _joined(self) -> tuple[Tensor, Tensor]:
        features, rewards = zip(*self._kept, strict=True)
        return torch.cat(features), torch.cat(rewards)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of examples of each update, and under "tensors" what was kept of them."""
        tensors = {}
        if self._kept:
            tensors["replay.features"], tensors["replay.rewards"] = self._joined()
        return {"replay": [len(rewards) for _, rewards in self._kept], "tensors": tensors}

    def loaded(self, state: Mapping[str, Any], device: torch.device) -> "ReplayBuffer":
        """Returns a buffer as it was in a state, on a device."""
        twin = ReplayBuffer(self.updates)
        if sizes := list(state["replay"]):
            both = (state["tensors"][f"replay.{what}"].to(device, copy=True) for what in ("features", "rewards"))
            twin._kept = list(zip(*(torch.split(tensor, sizes) for tensor in both), strict=True))
        return twin
