"""The sentence pairs of one dataset in the order of training, without those that are left out by chance.

The mixture decides how much is drawn of each dataset; another pair takes the place of one that is left out. A decision
depends on the seed, the place and the chance of that moment. If batches are drawn again, because a training is resumed,
the places that were left out are given, since chances have changed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from multidds._base.randomness import derive, point
from multidds.sampling import Order

from .sentences import Sentences

Chances = Callable[[Sequence[tuple[str, int]]], Sequence[float]]  # of sentence pairs: (language pair, number there)
_AT_ONCE = 64  # sentence pairs whose chances are asked for together


class Selection:
    """A place in the endless order of a dataset.

    sentences: of the dataset.
    chances: returns the probabilities of sentence pairs to be trained on; None: all are.
    seed: of the run.
    """

    def __init__(self, sentences: Sentences, chances: Chances | None, seed: int) -> None:
        self._sentences, self._chances = sentences, chances
        self._order = Order(seed, sentences.name, len(sentences))
        self._key = derive(seed, "kept", sentences.name)
        self.begin(0)

    def begin(self, place: int, left_out: Iterable[int] | None = None) -> None:
        """Moves to a place. left_out: the later places to leave out, if they were decided before."""
        self.place = place
        self.left_out: list[int] = []  # places since then
        self._known = None if left_out is None else set(left_out)
        self._ahead: deque[tuple[int, bool]] = deque()  # number of a sentence pair, whether it is kept

    def next(self) -> int:
        """Returns the number of the next sentence pair."""
        if self._chances is None:
            self.place += 1
            return self._order[self.place - 1]
        while True:
            if not self._ahead:
                self._decide(self._chances)
            number, kept = self._ahead.popleft()
            self.place += 1
            if kept:
                return number
            self.left_out.append(self.place - 1)

    def _decide(self, chances_of: Chances) -> None:
        places = range(self.place, self.place + _AT_ONCE)
        numbers = [self._order[place] for place in places]
        if self._known is not None:
            kept = [place not in self._known for place in places]
        else:
            chances = chances_of([(self._sentences.name, number) for number in numbers])
            kept = [point(self._key, place) < chance for place, chance in zip(places, chances, strict=True)]
        self._ahead.extend(zip(numbers, kept, strict=True))
