"""The sources of all probe batches of a balancer, and which of their batches each rank draws."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from .._base.checks import by_name as named
from .._base.checks import check_names, check_state, is_state
from .._base.randomness import derive, preserved, seed_all
from ..sampling.sources import open_source, refuse_sharing


class ProbeSources:
    """The sources of all probe batches of a balancer: {role: {name: source}}, and which of them a replica takes."""

    def __init__(self, owner: str, given: Mapping[str, Mapping[str, Any]], seed: int, hint: str = "") -> None:
        """owner: opens the error messages; hint: ends those about other names in a state."""
        self._hint = hint
        refuse_sharing(owner, [source for by_name in given.values() for source in by_name.values()])
        self._owner, self._seed, self._given = owner, seed, {role: dict(by_name) for role, by_name in given.items()}
        self._opened = {
            role: {name: open_source(owner, role, name, source, seed) for name, source in by_name.items()}
            for role, by_name in self._given.items()
        }

    def batches(self, role: str, name: str, update: int, numbers: range, total: int) -> Iterator[tuple[int, Any]]:
        """(number, batch) of those of `total` batches that this rank takes; together the ranks take what one would."""
        source = self._opened[role][name]
        for j in range(total):
            if j in numbers:
                yield j, source.draw((update, j))
            else:
                source.skip()

    def mixing(self, role: str) -> tuple[int, Callable[[list[Any]], Any]]:
        """(examples of a batch, what makes a batch of examples) for batches that mix the sets of a role."""
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
        """(name, example), so many of each set: first one of each, by name, then the second ones, and so on."""
        drawn: dict[str, list[Any]] = {}
        with preserved():
            for name, count in counts.items():
                seed = derive(self._seed, role, name, update, "examples")
                seed_all(seed)
                drawn[name] = self._given[role][name].examples(torch.Generator().manual_seed(seed), count)
        order = sorted(drawn)
        most = max(counts.values())
        return [(name, drawn[name][i]) for i in range(most) for name in order if i < len(drawn[name])]

    def splittable(self, role: str) -> set[str]:
        """The sets of a role whose batches are the same on all ranks: their sources are made by `batches_of`."""
        return {name for name, source in self._given[role].items() if getattr(source, "splittable", False)}

    def example(self, role: str, name: str) -> Any:
        """Something that two ranks have alike if they draw the same batches from this source, and hardly otherwise.

        None where that cannot be known: a source that keeps its own place or is cut into shards may differ later.
        """
        return self._opened[role][name].example()

    def trial(self, role: str, name: str) -> Any:
        """A batch to try something on; nothing moves."""
        return self._opened[role][name].trial()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        return {
            role: {name: source.state_dict() for name, source in by_name.items()}
            for role, by_name in self._opened.items()
        }

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether a state is of sources of the same names."""
        found = {role: state.get(role) for role in self._opened}
        return all(isinstance(s, Mapping) and s.keys() == self._opened[role].keys() for role, s in found.items())

    def carried(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """A state for these sources, some of which may be new and begin; others may have been left out."""
        return {
            role: {name: state[role][name] if name in state[role] else s.state_dict() for name, s in by_name.items()}
            for role, by_name in self._opened.items()
        }

    def check_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        for role, by_name in self._opened.items():
            check_state(self._owner, state, **{role: named(is_state)})
            check_names(f"{self._owner}: state", by_name, state[role], self._hint)

    def loaded(self, state: Mapping[str, Mapping[str, Any]], seed: int) -> "ProbeSources":
        """The same sources at the places of a state; this object stays as it was where they do not fit."""
        twin = ProbeSources(self._owner, self._given, seed, self._hint)
        for role, by_name in twin._opened.items():
            for name, source in by_name.items():
                source.load_state_dict(state[role][name])
        return twin
