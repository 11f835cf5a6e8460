"""A long series kept short: when it is full, every second one is forgotten, and from then on twice as many."""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Thinned(Sequence[T], Generic[T]):
    """At most `most` of what was added: evenly spaced from the first on, and always the last. Up to `most`, all."""

    def __init__(self, most: int) -> None:
        self._most, self._every, self._added = max(3, most), 1, 0
        self._kept: list[T] = []
        self._last: list[T] = []  # the last one, where it is not among the kept

    def append(self, value: T) -> None:
        if self._added % self._every == 0:
            self._kept.append(value)
            self._last = []
        else:
            self._last = [value]
        self._added += 1
        if len(self) > self._most:
            self._last = [value]
            self._kept, self._every = self._kept[::2], 2 * self._every
            if (self._added - 1) % self._every == 0:
                self._last = []

    def __len__(self) -> int:
        return len(self._kept) + len(self._last)

    def __iter__(self) -> Iterator[T]:
        return iter([*self._kept, *self._last])

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: Any) -> Any:
        return [*self._kept, *self._last][index]
