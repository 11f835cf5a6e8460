"""Balancing inside the Hugging Face Trainer: one dataset, one callback, and the Trainer as it is.

`MixedDataset` is the `train_dataset`; `BalanceCallback` learns its mixture while the Trainer trains.
"""

from ...sampling import MixedDataset
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "MixedDataset"]
