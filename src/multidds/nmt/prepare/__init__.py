"""From text to token shards."""

from .prepare import prepare
from .prepared import Prepared

__all__ = ["Prepared", "prepare"]
