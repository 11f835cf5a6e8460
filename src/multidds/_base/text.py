"""Mixtures, their changes and unknown words in a line of text, for consoles, logs, errors and `repr`."""

import difflib
from collections.abc import Mapping, Sequence

_MOST_LETTERS = 24  # of a name in a line
_ENOUGH = 0.2  # worth of one more pass below which a dataset has had enough


def percent(*shares: float) -> list[str]:
    """Returns shares as per cents with as many digits after the point as the smallest needs to be seen."""
    smallest = min((100 * share for share in shares if share > 0), default=0.0)
    digits = 0
    while digits < 4 and 0 < smallest * 10**digits < 0.95:
        digits += 1
    return [f"{100 * share:.{digits}f}" for share in shares]


def passes_text(passes: float) -> str:
    """Returns a number of passes with two digits, or whole from 10 on: 0.53, 5.1, 1,200."""
    if passes < 0.005:
        return "<0.01" if passes > 0 else "0"
    return f"{passes:.2g}" if passes < 10 else f"{passes:,.0f}"


def worth_text(worth: float, error: float, passes: float) -> str:
    """Returns 'has had enough: 12 passes, one more is worth 0.02 ± 0.05 of new text'; empty if it still teaches.

    worth: of one more pass, in new examples. error: its standard error, NaN if it is not known.
    """
    if not passes >= 1 or not worth + 2 * error < _ENOUGH:
        return ""
    value = f"{worth:.2f} ± {max(error, 0.01):.2f} of new text"
    if worth + 2 * error < 0:
        return f"is harmed by more: one more pass is worth {value}"
    return f"has had enough: {passes_text(passes)} passes, one more is worth {value}"


def bytes_text(size: float) -> str:
    """Returns a size in memory: 12 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"


def short(name: str, most: int = _MOST_LETTERS) -> str:
    """Returns a printable name of at most `most` letters."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= most else name[: most - 1] + "…"


def movers(mixture: Mapping[str, float], since: Mapping[str, float], most: int) -> list[str]:
    """Returns the names of the `most` largest changes, the largest first; equal ones by share, then by name."""
    common = [name for name in mixture if name in since]
    order = sorted(common, key=lambda name: (-round(abs(mixture[name] - since[name]), 12), -mixture[name], name))
    return order[:most]


def shares(mixture: Mapping[str, float], most: int = 6) -> str:
    """Returns 'python 67%, markdown 25%, 1 more': the `most` largest shares, and the number of the others."""
    largest = sorted(mixture, key=lambda name: (-mixture[name], name))[:most]
    parts = [f"{short(name)} {percent(mixture[name])[0]}%" for name in largest]
    others = len(mixture) - len(largest)
    return ", ".join([*parts, *([f"{others:,} more"] if others else [])])


def changes(mixture: Mapping[str, float], since: Mapping[str, float], most: int = 4) -> list[str]:
    """Returns ['python 80→67%', 'markdown 16→25%']: the `most` largest changes that the digits show."""
    lines = []
    for name in movers(mixture, since, most):
        before, after = percent(since[name], mixture[name])
        if before != after:
            lines.append(f"{short(name)} {before}→{after}%")
    return lines


def suggestion(word: str, known: Sequence[str]) -> str:
    """Returns the end of a message about an unknown word: the nearest known one, or all if they are few."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.65)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" There are {', '.join(map(repr, known))}." if known and len(known) <= 12 else ""
