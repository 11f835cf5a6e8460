"""The common part of states: a version, keys, names and sizes.

A state is plain values (numbers, strings, lists and dicts) and tensors, so that it loads without executing code. An
object that a user saves writes `VERSION`; loading checks version, names and sizes, builds the new parts, and swaps them
in at the end, so that an exception leaves the object as it was.
"""

from collections.abc import Mapping
from typing import Any

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
