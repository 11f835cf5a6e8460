"""Rules without a model: on lists of numbers in the place of names, and on a probe whose findings are given."""

from dataclasses import replace

import torch

from multidds.probes import Round, Table
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
    """A probe that finds in every round what it was given, of gradients of length 1.

    rows: {dev set: {dataset: cosine}}
    error: standard error of all cosines, nearly; None: unknown
    losses: {role: {name: loss}}
    """

    def __init__(self, rows, error=0.02, losses=None):
        self._rows, self._error = rows, error
        self._losses = {"train": {}, "dev": {}} | (losses or {})

    def table(self, round_):
        dev_names = tuple(name for name in self._rows if round_.dev_sets.get(name))
        cosines = [[self._rows[dev][name] for name in round_.datasets] for dev in dev_names]
        dev_train = torch.tensor(cosines, dtype=torch.float64)
        dev_dev = torch.eye(len(dev_names), dtype=torch.float64)
        norms = torch.ones(len(round_.datasets), dtype=torch.float64)
        table = Table(round_.datasets, dev_names, dev_train, dev_dev, norms, *self._losses.values())
        if self._error is None:
            return table
        moves = torch.full_like(dev_train, self._error / 2)
        none = torch.zeros_like(dev_train).expand(2, -1, -1)
        return replace(
            table,
            by_train=torch.stack([moves, -moves]),
            by_dev=none,
            by_both=none,
            own_train=none[:, 0],
            own_dev=torch.zeros_like(dev_dev).expand(2, -1, -1),
            dev_noise=torch.zeros_like(dev_dev[0]),
        )


def updated(state, rows, error=0.02, losses=None, **of_round):
    """What the state of a rule finds in a round of all sets. of_round: `weights` of the dev sets, or `passes`."""
    weights = of_round.pop("weights", None) or dict.fromkeys(rows, 1 / len(rows))
    datasets = tuple(next(iter(rows.values())))
    return state.update(FixedProbe(rows, error, losses), Round(0, 0, datasets, weights, weights, **of_round))
