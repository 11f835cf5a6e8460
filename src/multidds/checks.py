"""Checks of arguments that several modules share; each error says where, what is wrong and which value it was."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral

Refusal = tuple[object, str]  # (condition, sentence): what cannot be done, and what to do about it


def check_names(where: str, expected: Iterable[str], given: Iterable[str]) -> None:
    """The same names in any order, or an error that says which are missing and which are unknown."""
    expected, given = set(expected), set(given)
    if missing := sorted(expected - given):
        raise ValueError(f"{where}: {listed(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
    if unknown := sorted(given - expected, key=str):
        verb = "is" if len(unknown) == 1 else "are"
        raise ValueError(f"{where}: {listed(unknown)} {verb} unknown; there are {listed(sorted(expected))}.")


def check_whole(where: str, **values: object) -> None:
    """Whole numbers of at least 1."""
    for word, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: {word} must be a whole number of at least 1, but it is {value!r}.")


def check_sizes(where: str, sizes: Mapping[str, int | None], given: Mapping[str, int | None]) -> None:
    """That a state is one of the same data; None is the size of a stream."""
    check_names(f"{where}: state", sizes, given)
    for name, size in sizes.items():
        if given[name] != size:
            was, now = ("a stream of" if n is None else f"{n} examples of" for n in (given[name], size))
            raise ValueError(f"{where}: the state is of {was} {name!r}, not {now} it.")


def check_step_ahead(where: str, step_ahead: float | None) -> None:
    if step_ahead is not None and not (step_ahead > 0 and math.isfinite(step_ahead)):
        raise ValueError(f"{where}: step_ahead must be a positive step size, but it is {step_ahead}.")


def objection(rows: Iterable[Refusal]) -> str | None:
    """The sentence of the first row whose condition holds. Rows that a generator makes may stand on those before."""
    return next((sentence for holds, sentence in rows if holds), None)


def refuse(where: str, rows: Iterable[Refusal], error: type[Exception] = ValueError) -> None:
    """An error with the sentence of the first row whose condition holds, if there is one."""
    if (sentence := objection(rows)) is not None:
        raise error(f"{where}: {sentence}")


def listed(names: Iterable[str]) -> str:
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
