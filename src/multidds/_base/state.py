"""The common part of states: a version, keys, names and sizes.

A state is plain values (numbers, strings, lists and dicts) and tensors, so that it loads without executing code. An
object that a user saves writes `VERSION`; loading checks version, names and sizes, builds the new parts, and swaps them
in at the end, so that an exception leaves the object as it was. `plain` and `restored` are the two directions for
values whose shape and names the object knows already.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .checks import check_names

VERSION = 4  # of the states that this release writes and reads


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


def restored(where: str, present: Any, saved: Any) -> Any:
    """Returns a saved value in the form of the present one, which stays as it is.

    where: opens the error if type, shape or names are others, or if a number is not finite.
    """
    if isinstance(present, np.ndarray):
        return _restored_array(where, present, saved)
    if isinstance(present, Mapping):
        check_keys(where, saved)
        check_names(where, present, saved)
        return {key: restored(f"{where}: {key!r}", each, saved[key]) for key, each in present.items()}
    if hasattr(present, "__dict__"):
        other = copy.copy(present)
        vars(other).update(restored(where, _public(present), saved))
        return other
    if isinstance(present, float) and isinstance(saved, int) and not isinstance(saved, bool):
        saved = float(saved)
    if type(saved) is not type(present) or (isinstance(saved, float) and not math.isfinite(saved)):
        raise ValueError(f"{where} must be of type {type(present).__name__} and finite, but it is {saved!r}.")
    return saved


def _restored_array(where: str, present: Any, saved: Any) -> Any:
    try:
        array = np.array(saved, dtype=present.dtype)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{where} must be an array of numbers.") from None
    if array.shape != present.shape:
        raise ValueError(f"{where} must have shape {present.shape}, but it has {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{where} has values that are not finite.")
    return array


def _public(value: Any) -> dict[str, Any]:
    return {key: each for key, each in vars(value).items() if not key.startswith("_")}
