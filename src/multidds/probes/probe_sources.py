"""The sources of probe batches by role and name, and the batches of each that a rank draws."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from .._base.checks import check_names
from .._base.randomness import derive, preserved, seed_all
from .._base.state import check_keys
from ..sampling.sources import Source, open_source, refuse_sharing


class ProbeSources:
    """The sources of all probe batches.

    owner: opens the error messages. given: {role: {name: source}}. seed: for everything random in them.
    """

    def __init__(self, owner: str, given: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        refuse_sharing(owner, [source for by_name in given.values() for source in by_name.values()])
        self._owner = owner
        self._seed = seed
        self._given = {role: dict(by_name) for role, by_name in given.items()}
        self._opened = self._open(seed)
        self._drawn_from: set[tuple[str, str]] = set()  # (role, name) of sources, since `put_back_on_error` began

    def _open(self, seed: int) -> dict[str, dict[str, Source]]:
        return {
            role: {name: open_source(self._owner, role, name, source, seed) for name, source in by_name.items()}
            for role, by_name in self._given.items()
        }

    def batches(self, role: str, name: str, update: int, numbers: range, total: int) -> Iterator[tuple[int, Any]]:
        """Yields (number, batch) of those of `total` batches that this rank takes."""
        source = self._opened[role][name]
        self._drawn_from.add((role, name))
        for j in range(total):
            if j in numbers:
                yield j, source.draw((update, j))
            else:
                source.skip()

    @property
    def batch_size(self) -> float | None:
        """The mean number of examples of the probe batches of a set; None if a source does not say."""
        given = [source for by_name in self._given.values() for source in by_name.values()]
        sizes = [size for source in given if isinstance(size := getattr(source, "batch_size", None), int)]
        return sum(sizes) / len(sizes) if len(sizes) == len(given) else None

    def mixing(self, role: str) -> tuple[int, Callable[[list[Any]], Any]]:
        """Returns (examples of a batch, collate function) for batches that mix the sets of a role."""
        first = None
        for name, source in self._given[role].items():
            if not all(hasattr(source, word) for word in ("examples", "batch_size", "collate_fn")):
                raise ValueError(
                    f"{self._owner}: losses of single examples are for batches that mix datasets, but {role} {name!r} "
                    "gives no single examples; make it with batches_of(dataset, batch_size, collate_fn)."
                )
            first = first or source
            if (source.batch_size, source.collate_fn) != (first.batch_size, first.collate_fn):
                raise ValueError(
                    f"{self._owner}: batches that mix datasets need one batch_size and one collate_fn, but those of "
                    f"{role} {name!r} are others."
                )
        assert first is not None
        return first.batch_size, first.collate_fn

    def examples(self, role: str, counts: Mapping[str, int], update: int) -> list[tuple[str, Any]]:
        """Draws (name, example), `counts` of each set: first one of each, by name, then the second ones, and so on."""
        drawn: dict[str, list[Any]] = {}
        with preserved():
            for name, count in counts.items():
                seed = derive(self._seed, role, name, update, "examples")
                seed_all(seed)
                drawn[name] = self._given[role][name].examples(torch.Generator().manual_seed(seed), count)
        order = sorted(drawn)
        most = max(counts.values())
        return [(name, drawn[name][i]) for i in range(most) for name in order if i < len(drawn[name])]

    @contextmanager
    def put_back_on_error(self) -> Iterator[None]:
        """Puts every source back to its place if the block raises; one that cannot be resumed stays where it is."""
        before = {(role, name): _place_of(source) for role, of in self._opened.items() for name, source in of.items()}
        self._drawn_from.clear()
        try:
            yield
        except BaseException:  # Ctrl-C, too
            for role, name in self._drawn_from:
                if state := before[role, name]:
                    self._opened[role][name].load_state_dict(state)
            raise

    def names(self, role: str) -> tuple[str, ...]:
        return tuple(self._given[role])

    def splittable(self, role: str) -> set[str]:
        """Returns the sets of a role that draw the same batches on every rank: those made by `batches_of`."""
        return {name for name, source in self._given[role].items() if getattr(source, "splittable", False)}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        return {
            role: {name: source.state_dict() for name, source in by_name.items()}
            for role, by_name in self._opened.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], seed: int) -> None:
        """Continues at the places of a state, under its seed."""
        check_keys(self._owner, state, *self._given)
        opened = self._open(seed)
        for role, by_name in opened.items():
            check_names(f"{self._owner}: state", by_name, state[role])
        # Objects that keep their own place come last: they are the user's, and an error must leave them as they were.
        keys = [(role, name) for role, by_name in opened.items() for name in by_name]
        for role, name in sorted(keys, key=lambda key: hasattr(self._given[key[0]][key[1]], "load_state_dict")):
            opened[role][name].first = self._opened[role][name].first
            opened[role][name].load_state_dict(state[role][name])
        self._seed, self._opened = seed, opened


def _place_of(source: Source) -> dict[str, Any]:
    """Returns the state of a source; empty if it has none, for whatever reason."""
    try:
        return source.state_dict()
    except Exception:
        return {}
