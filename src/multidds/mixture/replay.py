"""`Replay`: a learned mixture, played back."""

from collections.abc import Iterable, Mapping
from typing import Any

from .._base.checks import check_names
from .._base.state import VERSION, check_keys, check_version
from .mixture import Mixture, check_mixture


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

    def step(self) -> dict[str, float] | None:
        """Counts one optimizer step, and returns the new probabilities if the mixture changes now, else None."""
        self._steps += 1
        probabilities = self._moves.get(self._steps)
        if probabilities is not None:
            self.mixture.move(probabilities)
        return probabilities

    def state_dict(self) -> dict[str, Any]:
        return {"version": VERSION, "steps": self._steps, "mixture": self.mixture.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues exactly where the other replay was; changes the shared mixture."""
        check_version("Replay", state)
        check_keys("Replay", state, "steps", "mixture")
        self.mixture.load_state_dict(state["mixture"])
        self._steps = state["steps"]
