"""To be said."""

from .draws import Draws, Order
from .interleave import MixtureSampler, interleave
from .sources import batches_of

__all__ = ["Draws", "MixtureSampler", "Order", "batches_of", "interleave"]
