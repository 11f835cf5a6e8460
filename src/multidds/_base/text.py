"""Mixtures and their changes in words: the short lines that consoles, logs and `repr` show. Pure, on plain numbers."""

from collections.abc import Iterable, Mapping

_LONGEST = 24  # characters of a name in a line


def percent(*shares: float) -> list[str]:
    """Shares as per cents with the same digits after the point: none, or as many as the smallest needs to be seen."""
    smallest = min((100 * share for share in shares if share > 0), default=0.0)
    digits = 0
    while digits < 4 and 0 < smallest * 10**digits < 0.95:
        digits += 1
    return [f"{100 * share:.{digits}f}" for share in shares]


def short(name: str, longest: int = _LONGEST) -> str:
    """A name in a line: printable, and cut where it is long."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= longest else name[: longest - 1] + "…"


def movers(mixture: Mapping[str, float], since: Mapping[str, float], most: int) -> list[str]:
    """The names of the `most` largest changes, the largest first; of equal ones by share, then by name."""
    known = [name for name in mixture if name in since]
    order = sorted(known, key=lambda name: (-round(abs(mixture[name] - since[name]), 12), -mixture[name], name))
    return order[:most]


def shares(mixture: Mapping[str, float], most: int = 6) -> str:
    """'python 67%, markdown 25%, sql 8%': the largest first, and how many there are beyond `most`."""
    largest = sorted(mixture, key=lambda name: (-mixture[name], name))[:most]
    told = [f"{short(name)} {percent(mixture[name])[0]}%" for name in largest]
    return ", ".join([*told, *_more(len(mixture) - len(largest))])


def changes(mixture: Mapping[str, float], since: Mapping[str, float], most: int = 4) -> list[str]:
    """['python 80→67%', 'markdown 16→25%']: the largest changes that two figures show."""
    told = []
    for name in movers(mixture, since, most):
        before, after = percent(since[name], mixture[name])
        if before != after:
            told.append(f"{short(name)} {before}→{after}%")
    return told


def _more(count: int) -> Iterable[str]:
    return [f"{count:,} more"] if count > 0 else []
