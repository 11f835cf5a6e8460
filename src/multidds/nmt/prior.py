"""The mixture that a training starts from, by its config; and the control, which only drifts away from it."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from multidds import Alignment, Mixture

from .batches import Sentences
from .config import Config
from .schedule import planned_sentences


def prior_of(config: Config, sizes: Mapping[str, int], data: Mapping[str, Sentences]) -> Mixture:
    settings = config.mixture
    if settings.prior == "explicit":
        total = math.fsum(settings.probabilities.values())
        return Mixture({name: settings.probabilities[name] / total for name in sizes})
    if settings.prior == "temperature":
        return Mixture.temperature(sizes, settings.temperature)
    if settings.prior == "uniform":
        return Mixture.uniform(sizes)
    if settings.prior == "unimax":
        return Mixture.unimax(sizes, planned_sentences(config, data), settings.max_passes)
    return Mixture.proportional(sizes)


def constant_rewards(alignment: Alignment, weights: Tensor) -> Tensor:
    """The control: what of a gain is only the drift from the prior towards uniform?"""
    return torch.ones(len(alignment.train_names))
