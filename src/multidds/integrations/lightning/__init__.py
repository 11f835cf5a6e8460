"""Balancing inside Lightning: one loader, one callback; the user's module, datamodule and trainer stay as they are.

Draws are the loader's (`loading`); `BalanceCallback` learns its mixture while a Trainer fits.
"""

from ...sampling.loader import MixedLoader, mixed_loader
from .callback import BalanceCallback

__all__ = ["BalanceCallback", "MixedLoader", "mixed_loader"]
