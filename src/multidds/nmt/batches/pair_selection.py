"""Which sentence pairs of a dataset are trained on: each time it comes up, a pair has a chance of its own.

The mixture says how much is drawn of each dataset, and another pair takes the place of one that is left out. Decisions
depend on the seed, the draw and the chances of that moment. Batches that are drawn again, when a training is resumed,
are told what was left out of them, since chances have moved on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from multidds._base.randomness import derive, point
from multidds.sampling import Order

from .sentences import Sentences

Chances = Callable[[Sequence[tuple[str, int]]], Sequence[float]]  # of sentence pairs: (language pair, number there)
_AT_ONCE = 64  # sentence pairs whose chances are asked for together


class Selection:
    """The sentence pairs of one dataset, pass by pass, without those that are left out."""

    def __init__(self, sentences: Sentences, chances: Chances, seed: int) -> None:
        self._sentences, self._chances = sentences, chances
        self._order = Order(seed, sentences.name, len(sentences))
        self._key = derive(seed, "kept", sentences.name)
        self.begin(0)

    def begin(self, place: int, known: Iterable[int] | None = None) -> None:
        """From here on. known: the places to leave out, where they were decided before."""
        self.place = place  # in the endless order of the dataset
        self.left_out: list[int] = []  # places since then
        self._known = None if known is None else set(known)
        self._ahead: deque[tuple[int, bool]] = deque()  # number of a sentence pair, whether it is kept

    def next(self) -> int:
        """The number of the next sentence pair."""
        while True:
            if not self._ahead:
                self._look_ahead()
            number, kept = self._ahead.popleft()
            self.place += 1
            if kept:
                return number
            self.left_out.append(self.place - 1)

    def _look_ahead(self) -> None:
        places = range(self.place, self.place + _AT_ONCE)
        numbers = [self._order[place] for place in places]
        if self._known is not None:
            kept = [place not in self._known for place in places]
        else:
            chances = self._chances([(self._sentences.name, number) for number in numbers])
            kept = [point(self._key, place) < chance for place, chance in zip(places, chances, strict=True)]
        self._ahead.extend(zip(numbers, kept, strict=True))


class Selections:
    """Those of all datasets, for batches that mix them."""

    def __init__(self, data: Mapping[str, Sentences], chances: Chances, seed: int) -> None:
        self._each = {name: Selection(sentences, chances, seed) for name, sentences in data.items()}

    def __getitem__(self, name: str) -> Selection:
        return self._each[name]

    def begin(self, known: Mapping[str, Iterable[int]] | None = None) -> None:
        """Another pool, from here on; known: what is left out of it, where that was decided before."""
        for name, each in self._each.items():
            each.begin(each.place, None if known is None else known.get(name, ()))

    @property
    def left_out(self) -> dict[str, list[int]]:
        return {name: each.left_out for name, each in self._each.items()}

    @property
    def places(self) -> dict[str, int]:
        return {name: each.place for name, each in self._each.items()}

    def move(self, places: Mapping[str, int]) -> None:
        """To these places; where there is none, to the beginning."""
        for name, each in self._each.items():
            each.begin(int(places.get(name, 0)))
