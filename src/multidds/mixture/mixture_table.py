"""The table of a training to come: share and passes of each dataset under every mixture that needs no learning."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .._base.checks import check_names, listed
from .._base.text import passes_text, percent, short
from .mixture import Mixture

MOST_PASSES = 40  # beyond, repeated data are worth nothing (Muennighoff et al. 2023)
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
        warning = repeated(passes["planned"])
        return "\n".join([*lines, *([f"planned: {warning}"] if warning else [])])


def repeated(passes: Mapping[str, float]) -> str | None:
    """Returns a sentence about the dataset that is passed through most often, if that is too often to teach anything.

    passes: {dataset: passes of the whole training}.
    """
    name = max(passes, key=lambda name: passes[name], default=None)
    if name is None or passes[name] <= MOST_PASSES:
        return None
    times = f"{short(name)} is passed through {passes_text(passes[name])} times"
    return f"{times}, but after about {MOST_PASSES} passes examples teach nothing new. Train for fewer steps."


def table_of(words: Sequence[str], steps: str | None, batch: str | None, goals: Sequence[str] = ()) -> MixtureTable:
    """Returns the table for the words of a command line.

    words: "NAME=SIZE" of each dataset; a name may contain "=".
    steps, batch: optimizer steps of the whole training and examples per step, as text. None is an error.
    goals: "NAME" or "NAME=WEIGHT" of each dataset whose dev set counts; none: all count the same.
    """
    if not words:
        raise ValueError("plan: give a recipe, or sizes and length: multidds plan a=12000 b=150 --steps 200 --batch 32")
    sizes = sizes_of(words)
    weights = {}
    for goal in goals:
        name, _, weight = (goal, "", "1") if goal in sizes else goal.rpartition("=")
        if name not in sizes:
            raise ValueError(f"plan: --goal {goal}: there is no such dataset; there are {listed(sizes)}.")
        weights[name] = _number(f"the weight of {name!r}", weight)
    return Mixture.table(sizes, draws_of(steps, batch), weights or None)


def sizes_of(words: Sequence[str], names: Iterable[str] | None = None) -> dict[str, float]:
    """Returns {name: size} of words "NAME=SIZE"; names: those that there must be, if there are any words."""
    sizes: dict[str, float] = {}
    for word in words:
        name, _, size = word.rpartition("=")
        if not name:
            raise ValueError(f"{word!r} is not NAME=SIZE, such as a=12000.")
        if name in sizes:
            raise ValueError(f"The name {name!r} is there more than once.")
        sizes[name] = _number(f"the size of {name!r}", size)
    if sizes and names is not None:
        check_names("sizes", names, sizes)
    return sizes


def draws_of(steps: str | None, batch: str | None) -> float:
    """Returns the examples that the whole training draws, from the words of a command line."""
    if steps is None or batch is None:
        raise ValueError("--steps and --batch: both are needed: optimizer steps, and examples per step.")
    return _number("--steps", steps) * _number("--batch", batch)


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"{what[0].upper()}{what[1:]} must be a number above 0, but it is {text!r}.")
    return number
