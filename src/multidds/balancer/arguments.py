"""Checks of the arguments of `Balancer`: each error says which argument, what is wrong and which value it was."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from .._base.checks import check_names, check_whole
from .._base.text import bytes_text
from ..mixture.mixture import Mixture, check_mixture
from ..probes.prober import Prober
from ..rewards.kinds import Reward
from .pace import Budget

SINGLE = "dev"  # the name of a dev set that was given without one
_log = logging.getLogger("multidds")


def named_dev_sets(where: str, dev: Any) -> Mapping[str, Any]:
    """Returns {dev set: source}; a single source is called "dev"."""
    if isinstance(dev, Mapping):
        return dev
    if dev is None or (isinstance(dev, list | tuple) and any(isinstance(each, DataLoader) for each in dev)):
        raise TypeError(f"{where}: dev must be {{name: dev set}}, or one dev set, but it is {dev!r}.")
    return {SINGLE: dev}


def check_data(mixture: Mixture, train: Mapping[str, Any], dev: Mapping[str, Any]) -> None:
    check_mixture("Balancer", mixture)
    check_names("Balancer: train", mixture.names, train)
    if not dev:
        raise ValueError("Balancer: there must be at least one dev set.")
    for name in mixture:
        if mixture[name] == 0:
            raise ValueError(f"Balancer: the prior of {name!r} is 0, which no update can change; leave it out.")


def check_settings(
    loss: object, every: object, steps: object, examples_per_step: object, reward: object, rule: object, seed: object
) -> None:
    if not callable(loss):
        raise TypeError(
            f"Balancer: loss must be a function (model, batch) -> scalar tensor, got {type(loss).__name__}."
        )
    if not isinstance(every, Budget):
        check_whole("Balancer", every=every)
    if steps is not None:
        check_whole("Balancer", steps=steps)
    if examples_per_step is not None and not (isinstance(examples_per_step, int | float) and examples_per_step > 0):
        raise ValueError(f"Balancer: examples_per_step must be positive, but it is {examples_per_step!r}.")
    if not isinstance(reward, Reward):
        raise TypeError(f"Balancer: reward must be one of multidds.rewards, such as Cosine(), got {reward!r}.")
    if not callable(getattr(rule, "start", None)):
        raise TypeError(f"Balancer: rule must be one of multidds.rules, such as Scorer(), got {rule!r}.")
    if not isinstance(seed, int):
        raise TypeError(f"Balancer: seed must be a whole number, got {seed!r}.")


def check_groups(names: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, str]:
    """Returns {dataset: group} of the datasets that have one."""
    given, datasets = dict(groups or {}), set(names)
    check_names("Balancer: groups", names, [*names, *given])
    for name, group in given.items():
        if not isinstance(group, str) or not group:
            raise ValueError(f"Balancer: groups must be {{dataset: name of its group}}, but {name!r} is in {group!r}.")
        if group in datasets:
            raise ValueError(
                f"Balancer: the group of {name!r} is called {group!r}, as a dataset is; call it otherwise."
            )
    return given


def check_model(prober: Prober, reward: Reward, datasets: int) -> None:
    """Refuses a step ahead that parameters would round away, and logs memory that a reward takes."""
    if reward.ahead is not None:
        prober.refuse_narrow_steps()
    if reward.decay is not None:
        size = bytes_text(datasets * prober.vector_bytes)
        _log.warning("Balancer: moving averages keep %d gradients in memory (%s).", datasets, size)
