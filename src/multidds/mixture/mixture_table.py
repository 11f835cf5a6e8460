"""The table of a training to come: share and passes of each dataset under every mixture that needs no learning."""

from collections.abc import Sequence
from dataclasses import dataclass

from .._base.text import passes_text, percent, short
from .mixture import Mixture

_MOST_LETTERS = 40  # of a name


@dataclass(frozen=True)
class MixtureTable:
    """Shares and passes of datasets under several mixtures; as a string, a table with a row for each dataset.

    sizes: {dataset: number of examples}.
    draws: examples that the whole training draws.
    shares: {mixture: {dataset: share of the draws}}.
    """

    sizes: dict[str, float]
    draws: float
    shares: dict[str, dict[str, float]]

    @property
    def passes(self) -> dict[str, dict[str, float]]:
        """{mixture: {dataset: passes over it}}."""
        return {
            mixture: {name: share * self.draws / self.sizes[name] for name, share in shares.items()}
            for mixture, shares in self.shares.items()
        }

    def __str__(self) -> str:
        passes = self.passes
        rows = [["dataset", "examples", *self.shares]]
        for name, size in self.sizes.items():
            cells = [
                f"{percent(shares[name])[0]}% ({passes_text(passes[mixture][name])})"
                for mixture, shares in self.shares.items()
            ]
            rows.append([short(name, _MOST_LETTERS), f"{size:,.0f}", *cells])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"share (passes) of each dataset in {self.draws:,.0f} draws"]
        for first, *others in rows:
            cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]))
        return "\n".join(lines)


def table_of(words: Sequence[str], draws: str | None) -> MixtureTable:
    """Returns the table for the words of a command line.

    words: "NAME=SIZE" of each dataset; a name may contain "=".
    draws: examples that the whole training draws, as text; None: not given, which is an error.
    """
    if not words:
        raise ValueError("plan: give a recipe, or datasets and draws: multidds plan a=12000 b=150 --draws 6400")
    if draws is None:
        raise ValueError("plan: --draws is missing: the examples that the whole training draws, steps * batch size.")
    sizes: dict[str, float] = {}
    for word in words:
        name, _, size = word.rpartition("=")
        if not name:
            raise ValueError(f"plan: {word!r} is not NAME=SIZE, such as a=12000.")
        if name in sizes:
            raise ValueError(f"plan: the name {name!r} is there more than once.")
        sizes[name] = _number(f"the size of {name!r}", size)
    return Mixture.table(sizes, _number("--draws", draws))


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"plan: {what} must be a number above 0, but it is {text!r}.")
    return number
