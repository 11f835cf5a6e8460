"""`[examples] method = "highest-losses"`: leave out the share of every batch that the model does worst.

The usual remedy for wrong pairs, to compare with: the losses of those left out are multiplied by 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batches.batch import Batch
from ..batches.sentences import Sentences
from ..common.processes import Processes
from ..runs.records import Scored
from .pair_features import per_sentence, sentence_of
from .pair_weights import PairWeights

_LARGEST = 1e6


class HighestLosses:
    """Factors of losses, 0 or 1. All processes call the same methods in the same order."""

    def __init__(
        self,
        drop: float,
        data: Mapping[str, Sentences],
        vocabulary: Mapping[str, Sequence[str]],
        processes: Processes,
    ) -> None:
        self._drop, self._processes = drop, processes
        self._weights = PairWeights(data, vocabulary)
        self._begin()

    def _begin(self) -> None:
        """Of a step: sentence pairs and their weights; weighted tokens."""
        self._seen: list[tuple[tuple[tuple[str, int], ...], Tensor]] = []
        self._weighted_tokens = 0.0

    def weighted(self, batch: Batch, token_losses: Tensor) -> Tensor:
        """The sum of the losses of a batch, each times its weight; `settle` makes the mean weight 1. []"""
        means = per_sentence(batch, token_losses.detach())
        weights = (means <= means.quantile(1 - self._drop)).double()
        self._seen.append((batch.origins, weights.cpu()))
        of_tokens = weights[sentence_of(batch).to(weights.device)]
        self._weighted_tokens += float(of_tokens.sum())
        return (of_tokens.to(token_losses.dtype) * token_losses).sum()

    def settle(self, parameters: Iterable[nn.Parameter], tokens: int) -> None:
        """After the backward passes of a step: gradients as if the mean weight of its `tokens` target tokens were 1."""
        everyone = self._processes.gathered((self._seen, self._weighted_tokens))
        scale = min(tokens / max(math.fsum(total for _, total in everyone), 1e-300), _LARGEST)
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], scale)
        for origins, weights in (part for parts, _ in everyone for part in parts):
            self._weights.see(origins, (weights * scale).tolist())
        self._begin()

    def record(self, step: int) -> Scored:
        return self._weights.record(step, None)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, and under "tensors" what is not."""
        return {"tensors": self._weights.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._weights.load_state_dict(state["tensors"])
