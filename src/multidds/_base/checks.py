"""Checks of arguments, with errors that name the place, the fault and the value."""

from collections.abc import Iterable
from numbers import Integral

Refusal = tuple[object, str]  # (condition, sentence about what cannot be done, and what to do instead)


def check_names(where: str, expected: Iterable[str], given: Iterable[str]) -> None:
    """Raises a ValueError unless the names are the same, in any order; it lists wrong ones and those there are."""
    expected, given = set(expected), set(given)
    if missing := sorted(expected - given):
        verb, there = "is" if len(missing) == 1 else "are", listed(sorted(given, key=str)) or "none"
        raise ValueError(f"{where}: {listed(missing)} {verb} missing; there are {there}.")
    if unknown := sorted(given - expected, key=str):
        verb = "is" if len(unknown) == 1 else "are"
        raise ValueError(f"{where}: {listed(unknown)} {verb} unknown; there are {listed(sorted(expected))}.")


def check_whole(where: str, **values: object) -> None:
    """Raises a ValueError unless all values are whole numbers of at least 1."""
    for word, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: {word} must be a whole number of at least 1, but it is {value!r}.")


def first_violation(rows: Iterable[Refusal]) -> str | None:
    """Returns the sentence of the first row whose condition holds; later rows of a generator are not evaluated."""
    return next((sentence for holds, sentence in rows if holds), None)


def refuse(where: str, rows: Iterable[Refusal], error: type[Exception] = ValueError) -> None:
    """Raises an error with the sentence of the first row whose condition holds, if there is one."""
    if (sentence := first_violation(rows)) is not None:
        raise error(f"{where}: {sentence}")


def listed(names: Iterable[str]) -> str:
    """Joins the first eight names for a message, with the number of the others."""
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
