"""Long lists of numbers in states: as base64 of their bits, half as long as their digits in JSON, and exact. Pure."""

import base64
import binascii
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_LONG = 256  # numbers; a shorter list stays one that can be read


def packed(values: Sequence[float]) -> Any:
    """A list of numbers, or what stands for a long one."""
    if len(values) <= _LONG:
        return list(values)
    return {"float64": base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode("ascii")}


def unpacked(value: Any) -> list[float]:
    """The numbers again; whoever reads a state has checked them with `are_packed`."""
    if not isinstance(value, Mapping):
        return list(value)
    bits = base64.b64decode(value["float64"], validate=True)
    return list(struct.unpack(f"<{len(bits) // 8}d", bits))


def are_packed(check: Callable[[Any], object], count: int | None = None) -> Callable[[Any], bool]:
    """A check of lists, packed or not, of so many numbers, all of which pass a check."""

    def passes(value: object) -> bool:
        if isinstance(value, Mapping) and not isinstance(value.get("float64"), str):
            return False
        if not isinstance(value, Mapping | list | tuple):
            return False
        try:
            values = unpacked(value)
        except (binascii.Error, ValueError, struct.error):
            return False
        return count in (None, len(values)) and all(map(check, values))

    return passes
