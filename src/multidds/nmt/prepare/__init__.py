"""From text to token shards."""

from . import prepare
from .prepared import Prepared

__all__ = ["Prepared", "prepare"]
