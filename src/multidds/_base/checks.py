"""Checks of arguments that several modules share; each error says where, what is wrong and which value it was."""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

Refusal = tuple[object, str]  # (condition, sentence): what cannot be done, and what to do about it


def check_names(where: str, expected: Iterable[str], given: Iterable[str], hint: str = "") -> None:
    """The same names in any order, or an error that says which are missing and which are unknown, and the hint."""
    expected, given, hint = set(expected), set(given), hint and f" {hint}"
    if missing := sorted(expected - given):
        raise ValueError(f"{where}: {listed(missing)} {'is' if len(missing) == 1 else 'are'} missing.{hint}")
    if unknown := sorted(given - expected, key=str):
        verb = "is" if len(unknown) == 1 else "are"
        raise ValueError(f"{where}: {listed(unknown)} {verb} unknown; there are {listed(sorted(expected))}.{hint}")


def check_whole(where: str, **values: object) -> None:
    """Whole numbers of at least 1."""
    for word, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{where}: {word} must be a whole number of at least 1, but it is {value!r}.")


def check_sizes(where: str, sizes: Mapping[str, int | None], given: Mapping[str, int | None], hint: str = "") -> None:
    """That a state is one of the same data; None is the size of a stream."""
    check_names(f"{where}: state", sizes, given, hint)
    for name, size in sizes.items():
        if given[name] != size:
            was, now = ("a stream of" if n is None else f"{n} examples of" for n in (given[name], size))
            raise ValueError(f"{where}: the state is of {was} {name!r}, not {now} it.{hint and f' {hint}'}")


def check_state(where: str, state: object, /, **checks: Callable[[Any], object]) -> None:
    """That a state has these keys, each with a value that passes its check, or a ValueError that says which has not."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{where}: a state is a dict, but this is {shown(state)}.")  # noqa: TRY004
    for key, check in checks.items():
        if key not in state:
            raise ValueError(f"{where}: the state has no {key!r}; it is damaged, or of something else.")
        if not check(state[key]):
            raise ValueError(f"{where}: the state is damaged: {key!r} is {shown(state[key])}.")


def is_whole(value: object) -> bool:
    """Such as a seed; of a length that can be written."""
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**1024


def is_count(value: object) -> bool:
    return is_whole(value) and 0 <= int(value) < 2**63  # type: ignore[call-overload]


def is_number(value: object) -> bool:
    """Also one that is not finite: a state may hold such."""
    if isinstance(value, Integral):
        return is_whole(value) and abs(int(value)) < 2**63
    return isinstance(value, Real)


def is_finite(value: object) -> bool:
    return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


def is_share(value: object) -> bool:
    return is_number(value) and 0 <= float(value) <= 1  # type: ignore[arg-type]


def is_state(value: object) -> bool:
    return isinstance(value, Mapping)


def are(check: Callable[[Any], object], count: int | None = None) -> Callable[[Any], bool]:
    """A check of lists, of so many values, all of which pass a check."""

    def passes(values: object) -> bool:
        return isinstance(values, list | tuple) and count in (None, len(values)) and all(map(check, values))

    return passes


def by_name(check: Callable[[Any], object]) -> Callable[[Any], bool]:
    """A check of {name: value}, all of whose values pass a check."""

    def passes(values: object) -> bool:
        named = isinstance(values, Mapping) and all(isinstance(name, str) for name in values)
        return named and all(map(check, values.values()))  # type: ignore[attr-defined]

    return passes


def shown(value: object) -> str:
    """A value that may be anything, as a part of a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; nested without end
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:50]} ..."


def check_step_ahead(where: str, step_ahead: float | None) -> None:
    if step_ahead is not None and not (step_ahead > 0 and math.isfinite(step_ahead)):
        raise ValueError(f"{where}: step_ahead must be a positive step size, but it is {step_ahead}.")


def first_violation(rows: Iterable[Refusal]) -> str | None:
    """The sentence of the first row whose condition holds. Rows that a generator makes may stand on those before."""
    return next((sentence for holds, sentence in rows if holds), None)


def refuse(where: str, rows: Iterable[Refusal], error: type[Exception] = ValueError) -> None:
    """An error with the sentence of the first row whose condition holds, if there is one."""
    if (sentence := first_violation(rows)) is not None:
        raise error(f"{where}: {sentence}")


def listed(names: Iterable[str]) -> str:
    names = [repr(name) for name in names]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
