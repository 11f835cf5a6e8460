"""To be said."""

from .limits import Limits
from .mixture import Mixture, Replay
from .schedule import Schedule

__all__ = ["Limits", "Mixture", "Replay", "Schedule"]
