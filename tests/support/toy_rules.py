"""Rules without a model: on lists of numbers in the place of names, and on a probe whose findings are given."""

import torch

from multidds.probes import Table
from multidds.rules import Training


def by_place(values):
    """{name: value}, with names in the order of the list."""
    return {f"d{place:03}": value for place, value in enumerate(values)}


class OnLists:
    """The state of the paper's rule for a mixture."""

    def __init__(self, settings, prior):
        self._prior = by_place(prior)
        self.state = settings.start(Training(self._prior))

    def step(self, rewards):
        self.state.step(by_place(rewards))
        return [self.state.mixture[name] for name in self._prior]

    def state_dict(self):
        return self.state.state_dict()

    def load_state_dict(self, state):
        self.state.load_state_dict(state, {})


class FixedProbe:
    """A probe that finds in every round what it was given.

    rows: {dev set: {dataset: cosine}}
    error: standard error of all cosines
    losses: {role: {name: loss}}
    """

    def __init__(self, rows, error=0.0, losses=None):
        self._rows, self._error = rows, error
        self._losses = {"train": {}, "dev": {}} | (losses or {})

    def table(self, round_):
        cosines = torch.tensor([list(row.values()) for row in self._rows.values()], dtype=torch.float64)
        halves = (self._table(cosines + self._error), self._table(cosines - self._error))
        return self._table(cosines, halves)

    def _table(self, cosines, halves=None):
        """A table of gradients of length 1."""
        dev_names, norms = tuple(self._rows), torch.ones(cosines.shape[1], dtype=torch.float64)
        dev_dev = torch.eye(len(dev_names), dtype=torch.float64)
        names = tuple(next(iter(self._rows.values())))
        return Table(names, dev_names, cosines, dev_dev, norms, *self._losses.values(), halves=halves)

    def of_datasets(self, round_, value):
        """{dataset: value}: takes no gradient, so every value is that of None and a norm of 1."""
        return {name: value(None, 1.0) for name in round_.datasets}

    def losses(self, role):
        return self._losses[role]
