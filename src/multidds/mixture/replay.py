"""`Replay`: a mixture that follows a history or points in time instead of learning.

Baselines of a learned mixture: the same history once more, from proportional to uniform, Cooldown.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._base.checks import check_names, check_whole
from .._base.state import VERSION, check_keys, check_version
from .mixture import Mixture, check_mixture

_DEFAULT_MOVES = 100  # along points, in a training


class Replay:
    """A recorded history of a mixture, played back in the place of a balancer.

    mixture: the object that is changed.
    history: [(step, {name: probability}), ...] in the order of the steps, as collected from `Update.step` and
        `Update.mixture`; step 0 is the initial mixture.

    >>> mixture = Mixture.uniform(["a", "b"])
    >>> replay = Replay(mixture, [(2, {"a": 0.3, "b": 0.7})])
    >>> replay.step(), replay.step()
    (None, {'a': 0.3, 'b': 0.7})
    """

    def __init__(self, mixture: Mixture, history: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        check_mixture("Replay", mixture)
        self.mixture = mixture
        self._moves: dict[int, dict[str, float]] = {}
        last = -1
        for step, probabilities in history:
            if step <= last:
                raise ValueError(f"Replay: steps must rise from 0, but {step} comes after {max(last, 0)}.")
            check_names(f"Replay: step {step}", mixture.names, probabilities)
            self._moves[step] = Mixture(probabilities).probabilities
            last = step
        self._steps = 0
        if 0 in self._moves:
            mixture.move(self._moves[0])

    @classmethod
    def along(
        cls,
        mixture: Mixture,
        points: Sequence[tuple[float, Mixture | Mapping[str, float]]],
        steps: int,
        every: int | None = None,
    ) -> "Replay":
        """Follows points in time; the mixture moves to the first point at once.

        points: [(share of the training that is done, a Mixture or {name: probability}), ...] in the order of the
            shares. Probabilities change linearly between two points; two points at the same share are a jump.
        steps: optimizer steps of the whole training; after them the last point stays.
        every: optimizer steps between two changes; by default a hundredth of the training.

        >>> sizes = {"a": 1, "b": 9}
        >>> mixture = Mixture.proportional(sizes)
        >>> ramp = [(0.0, Mixture.proportional(sizes)), (0.5, Mixture.uniform(sizes))]
        >>> replay = Replay.along(mixture, ramp, steps=4, every=1)
        >>> replay.step()
        {'a': 0.3, 'b': 0.7}
        """
        check_mixture("Replay.along", mixture)
        check_whole("Replay.along", steps=steps, **({} if every is None else {"every": every}))
        every = every or max(1, steps // _DEFAULT_MOVES)
        checked = _checked_points(mixture, points)
        return cls(mixture, ((step, _between(checked, step / steps)) for step in range(0, steps + every, every)))

    @property
    def steps_until_update(self) -> int | None:
        """Calls of `step()` up to the next one that may move the mixture, which counts; None if there is none."""
        return next((step - self._steps for step in self._moves if step > self._steps), None)

    def step(self) -> dict[str, float] | None:
        """Counts one optimizer step, and returns the new probabilities if the mixture changes now, else None."""
        self._steps += 1
        probabilities = self._moves.get(self._steps)
        if probabilities is None or probabilities == self.mixture.probabilities:
            return None
        self.mixture.move(probabilities)
        return self.mixture.probabilities

    def state_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "steps": self._steps, "mixture": self.mixture.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other replay was; changes the shared mixture."""
        check_version("Replay", state)
        check_keys("Replay", state, "steps", "mixture")
        self.mixture.load_state_dict(state["mixture"])
        self._steps = state["steps"]


def _checked_points(
    mixture: Mixture, points: Sequence[tuple[float, Mixture | Mapping[str, float]]]
) -> list[tuple[float, dict[str, float]]]:
    if not points:
        raise ValueError("Replay.along: there must be at least one point.")
    checked: list[tuple[float, dict[str, float]]] = []
    for share, given in points:
        if not 0 <= share <= 1 or (checked and share < checked[-1][0]):
            raise ValueError(f"Replay.along: shares of the training must rise from 0 to 1, but one is {share}.")
        probabilities = given if isinstance(given, Mixture) else Mixture(given)
        check_names(f"Replay.along: the point at {share:g}", mixture.names, probabilities)
        checked.append((float(share), {name: probabilities[name] for name in mixture}))
    return checked


def _between(points: list[tuple[float, dict[str, float]]], done: float) -> dict[str, float]:
    """Returns the probabilities when this share of the training is done: on straight lines from point to point.

    Two points at one place are a jump there; before the first and after the last point nothing changes.
    """
    before = [point for point in points if point[0] <= done] or points[:1]
    after = [point for point in points if point[0] > done] or points[-1:]
    (start, old), (end, new) = before[-1], after[0]
    part = (done - start) / (end - start) if end > start else 0.0
    return {name: (1 - part) * p + part * new[name] for name, p in old.items()}
