"""`Schedule`: mixtures that follow points in time instead of learning.

Baselines of a learned mixture: from proportional to uniform, Cooldown.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .._base.checks import check_names, check_whole
from .._base.state import VERSION, check_keys, check_version
from .mixture import Mixture, check_mixture

Points: TypeAlias = Sequence[tuple[float, Mapping[str, float]]]  # (share of the training that is done, probabilities)
_DEFAULT_MOVES = 100  # in a training


def along(points: Points, done: float) -> dict[str, float]:
    """Returns the probabilities when this share of the training is done: on straight lines from point to point.

    Two points at one place are a jump there; before the first and after the last point nothing changes.
    """
    before = [point for point in points if point[0] <= done] or points[:1]
    after = [point for point in points if point[0] > done] or points[-1:]
    (start, old), (end, new) = before[-1], after[0]
    part = (done - start) / (end - start) if end > start else 0.0
    return {name: (1 - part) * p + part * new[name] for name, p in old.items()}


class Schedule:
    """A mixture that is moved along given points while a model trains: call `step()` after every optimizer step.

    mixture: the object that is changed, first at construction, to the first point.
    points: [(share of the training that is done, a Mixture or {name: probability}), ...] in the order of the shares.
        Probabilities change linearly between two points; two points at the same share are a jump.
    steps: optimizer steps of the whole training; after them the last point stays.
    every: optimizer steps between two changes; by default a hundredth of the training.

    >>> sizes = {"a": 1, "b": 9}
    >>> mixture = Mixture.proportional(sizes)
    >>> ramp = [(0.0, Mixture.proportional(sizes)), (0.5, Mixture.uniform(sizes))]
    >>> schedule = Schedule(mixture, ramp, steps=4, every=1)
    >>> schedule.step()
    {'a': 0.3, 'b': 0.7}
    """

    def __init__(
        self,
        mixture: Mixture,
        points: Sequence[tuple[float, Mixture | Mapping[str, float]]],
        steps: int,
        every: int | None = None,
    ) -> None:
        check_mixture("Schedule", mixture)
        check_whole("Schedule", steps=steps, **({} if every is None else {"every": every}))
        self.mixture, self.steps, self.every = mixture, steps, every or max(1, steps // _DEFAULT_MOVES)
        self._points = _checked_points(mixture, points)
        self._steps = 0
        mixture.move(along(self._points, 0.0))

    @property
    def steps_until_update(self) -> int:
        """Calls of `step()` up to the next one that may move the mixture, which counts: at least 1."""
        return self.every - self._steps % self.every

    def step(self) -> dict[str, float] | None:
        """Counts one optimizer step, and returns the new probabilities if the mixture changed, else None."""
        self._steps += 1
        if self._steps % self.every:
            return None
        probabilities = along(self._points, self._steps / self.steps)
        if probabilities == self.mixture.probabilities:
            return None
        self.mixture.move(probabilities)
        return self.mixture.probabilities

    def state_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "steps": self._steps, "mixture": self.mixture.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other schedule was; changes the shared mixture."""
        check_version("Schedule", state)
        check_keys("Schedule", state, "steps", "mixture")
        self.mixture.load_state_dict(state["mixture"])
        self._steps = state["steps"]


def _checked_points(
    mixture: Mixture, points: Sequence[tuple[float, Mixture | Mapping[str, float]]]
) -> list[tuple[float, dict[str, float]]]:
    if not points:
        raise ValueError("Schedule: there must be at least one point.")
    checked: list[tuple[float, dict[str, float]]] = []
    for share, given in points:
        if not 0 <= share <= 1 or (checked and share < checked[-1][0]):
            raise ValueError(f"Schedule: shares of the training must rise from 0 to 1, but one is {share}.")
        probabilities = given if isinstance(given, Mixture) else Mixture(given)
        check_names(f"Schedule: the point at {share:g}", mixture.names, probabilities)
        checked.append((float(share), {name: probabilities[name] for name in mixture}))
    return checked
