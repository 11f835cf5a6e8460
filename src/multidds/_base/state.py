"""The common part of states: a version, keys, names and sizes.

A state is plain values (numbers, strings, lists and dicts) and tensors, so that it loads without executing code. An
object that a user saves writes `VERSION`; loading checks version, names and sizes, builds the new parts, and swaps them
in at the end, so that an exception leaves the object as it was. `plain` and `restored` are the two directions for
values whose shape and names the object knows already. A class adds what a value must be to that as `CHECKS`.
"""

import copy
import math
import reprlib
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias

import numpy as np

from .checks import check_names

VERSION = 4  # of the states that this release writes and reads
SUM_TOLERANCE = 1e-6  # |sum - 1| <= 1e-6: float32 probabilities of 10,000 datasets pass
_MOST = 2**62  # whole numbers of states are below it: they count
Checks: TypeAlias = Mapping[str, Callable[[str, Any], None]]  # {key: function (where, value) that raises a ValueError}


def check_keys(where: str, state: object, /, *keys: str) -> None:
    """Raises a ValueError unless the state is a mapping with these keys."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: a state is a dict, but this is of type {type(state).__name__}.")  # noqa: TRY004
    if missing := [key for key in keys if key not in state]:
        raise ValueError(f"{where}: the state has no {missing[0]!r}; it is damaged, or of something else.")


def check_version(where: str, state: Mapping[str, Any]) -> None:
    """Raises a ValueError unless the state was written by a release with the same version of states."""
    check_keys(where, state)
    if state.get("version") != VERSION:
        raise ValueError(f"{where}: the state has version {state.get('version')!r}, but this release reads {VERSION}.")


def check_sizes(where: str, sizes: Mapping[str, float | None], given: Mapping[str, float | None]) -> None:
    """Raises a ValueError unless a state is one of the same data; None is the size of a stream."""
    check_names(f"{where}: state", sizes, given)
    for name, size in sizes.items():
        if given[name] != size:
            was, now = ("a stream of" if n is None else f"{n} examples of" for n in (given[name], size))
            raise ValueError(f"{where}: the state is of {was} {name!r}, not {now} it.")


def plain(value: Any) -> Any:
    """Returns a value as plain ones that survive JSON: an array, a dict, or an object by its public attributes."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return plain(_public(value)) if hasattr(value, "__dict__") else value


def restored(where: str, present: Any, saved: Any, checks: Checks | None = None) -> Any:
    """Returns a saved value in the form of the present one, which stays as it is.

    where: opens the error if type, shape or names are others, or if a number is not finite.
    checks: of the values of a dict. An object has its own as `CHECKS`.
    """
    if isinstance(present, np.ndarray):
        return _restored_array(where, present, saved)
    if isinstance(present, Mapping):
        check_keys(where, saved)
        check_names(where, present, saved)
        values = {key: restored(f"{where}: {key!r}", each, saved[key]) for key, each in present.items()}
        for key, check in (checks or {}).items():
            check(f"{where}: {key!r}", values[key])
        return values
    if hasattr(present, "__dict__"):
        other = copy.copy(present)
        vars(other).update(restored(where, _public(present), saved, getattr(present, "CHECKS", None)))
        return other
    if isinstance(present, float) and isinstance(saved, int) and not isinstance(saved, bool) and abs(saved) < _MOST:
        saved = float(saved)
    if type(saved) is not type(present) or (isinstance(saved, float) and not math.isfinite(saved)):
        wanted = f"of type {type(present).__name__} and finite"
        raise ValueError(f"{where} must be {wanted}, but it is {reprlib.repr(saved)}.")
    return saved


def restored_part(where: str, names: Container[str], saved: Any, example: Any) -> Any:
    """Returns a saved {name: value} of some of the names, with values in the form of the example."""
    check_keys(where, saved)
    return restored(where, {name: example for name in saved if name in names}, saved)


def not_negative(where: str, value: Any) -> None:
    """Raises a ValueError if a number, or one of an array or a dict, is negative or too large to count."""
    numbers = np.array(list(value.values()) if isinstance(value, Mapping) else value, dtype=np.float64)
    if not ((numbers >= 0) & (numbers < _MOST)).all():
        raise ValueError(f"{where} must not be negative and below 2**62, but it is {reprlib.repr(value)}.")


def sums_to_one(where: str, value: Any) -> None:
    """Raises a ValueError unless the numbers of an array or a dict are shares of 1."""
    not_negative(where, value)
    total = math.fsum(value.values() if isinstance(value, Mapping) else value)
    if not abs(total - 1) <= SUM_TOLERANCE:
        raise ValueError(f"{where} must sum to 1, but it sums to {total:g}.")


def check_tensors(where: str, shapes: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Raises a ValueError unless tensors of these shapes are among those of a state. shapes: {key: shape}."""
    check_keys(where, tensors, *shapes)
    for key, shape in shapes.items():
        tensor = tensors[key]
        if getattr(tensor, "shape", None) != shape or not tensor.is_floating_point():
            fitting = f"a tensor of numbers, of shape {tuple(shape)}"
            raise ValueError(f"{where}: {key!r} must be {fitting}: the parameters are others, or it is damaged.")


def _restored_array(where: str, present: Any, saved: Any) -> Any:
    try:
        array = np.array(saved)
    except ValueError:  # of lists of different lengths
        array = np.array(None)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{where} must be an array of numbers.")
    if array.shape != present.shape:
        raise ValueError(f"{where} must have shape {present.shape}, but it has {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{where} has values that are not finite.")
    return array.astype(present.dtype)


def _public(value: Any) -> dict[str, Any]:
    return {key: each for key, each in vars(value).items() if not key.startswith("_")}
