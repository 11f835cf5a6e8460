"""Balancing inside the trainers of sentence-transformers: one argument, one callback, and the trainer as it is.

`mixed_batches(mixture)` is the `multi_dataset_batch_sampler`; `BalanceCallback` learns the mixture while it trains.
"""

from .batches import mixed_batches
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "mixed_batches"]
