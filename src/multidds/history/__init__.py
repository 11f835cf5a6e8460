"""To be said."""

from .history import save_history
from .plot import plot
from .update import Update

__all__ = ["Update", "plot", "save_history"]
