"""Averaged weights: an exponential moving average of a model's parameters, kept beside them while they are trained.

Reads parameters and writes only its own tensors, so training does not depend on it. Evaluation, export and probes at
the average run inside `swapped`.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

_EARLY = 10  # until `steps` steps are reached, the average is over about the last 1 / 10 of the steps so far
_SAMPLES = 20  # averaged of the last `steps` steps: neighbours are alike, and each costs memory traffic


class AveragedWeights:
    """An average of the parameters over about the last `steps` steps, and over the last tenth of a shorter training.

    The weight of a new sample falls from 1 (the initial parameters never count) to its final value with the number
    of samples: polynomial-decay averaging (Shamir and Zhang, 2013), until the window is as long as was asked for.
    """

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.steps = steps
        self.every = max(1, steps // _SAMPLES)
        self._parameters = dict(model.named_parameters())
        self._averages = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._swapped = False

    def update(self, step: int) -> None:
        """Takes up the parameters after optimizer step `step`, counted from 1, if it is one of the samples."""
        assert not self._swapped, "the averaged weights are in the model"
        if (step - 1) % self.every:
            return
        trained = [parameter.detach() for parameter in self._parameters.values()]
        torch._foreach_lerp_(list(self._averages.values()), trained, self.weight(step))

    def weight(self, step: int) -> float:
        """Returns the weight of the parameters after step `step` in the average, a function of the step alone."""
        samples = (step - 1) // self.every + 1
        return max(self.every / self.steps, _EARLY / (_EARLY - 1 + samples))

    @contextlib.contextmanager
    def swapped(self) -> Iterator[None]:
        """Swaps the averaged weights into the model, in place; afterwards the trained ones again, bit for bit."""
        assert not self._swapped, "the averaged weights are in the model already"
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for name, parameter in self._parameters.items():
            average = self._averages[name]
            before = parameter.clone()
            parameter.copy_(average)
            average.copy_(before)
        torch.clear_autocast_cache()
        self._swapped = not self._swapped

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._averages)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, average in self._averages.items():
            average.copy_(state[name])
