"""To be said."""

from . import priorities
from .formulas import Reward, inner_products, multidds, multidds_s, redraw_noise, training_losses

__all__ = ["Reward", "inner_products", "multidds", "multidds_s", "priorities", "redraw_noise", "training_losses"]
