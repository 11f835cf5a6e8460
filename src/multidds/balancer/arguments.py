"""Checks of the arguments of `Balancer`: each error says which argument, what is wrong and which value it was."""

import logging
from collections.abc import Mapping
from typing import Any

from .._base.checks import check_names, check_whole
from .._base.text import bytes_text, shares
from ..mixture.mixture import Mixture, check_mixture
from ..probes.probed_model import ProbedModel
from ..rules.rule import Rule
from .pace import Budget

_log = logging.getLogger("multidds")


def check_data(mixture: Mixture, train: Mapping[str, Any], dev: Mapping[str, Any]) -> None:
    check_mixture("Balancer", mixture)
    check_names("Balancer: train", mixture.names, train)
    if not dev:
        raise ValueError("Balancer: there must be at least one dev set.")
    for name in mixture:
        if mixture[name] == 0:
            raise ValueError(f"Balancer: the prior of {name!r} is 0, which no update can change; leave it out.")
    if mixture.learned:
        _log.warning(
            "Balancer: This mixture was already learned by another balancer (%s). Create a new Mixture to start over.",
            shares(mixture.probabilities),
        )


def check_settings(
    loss: object, every: object, steps: object, examples_per_step: object, rule: object, seed: object
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
    if isinstance(rule, str):
        raise TypeError(f"Balancer: rule is {rule!r}. Use rule=paper({rule!r}), from multidds.rules.")
    if not isinstance(rule, Rule):
        raise TypeError(f"Balancer: rule must be one of multidds.rules, such as Scorer(), but it is {rule!r}.")
    if not isinstance(seed, int):
        raise TypeError(f"Balancer: seed must be a whole number, got {seed!r}.")


def check_model(model: ProbedModel, rule: Rule, datasets: int) -> None:
    """Refuses a step ahead that parameters would round away, and logs memory that a rule takes."""
    if rule.steps_ahead:
        model.refuse_narrow_steps()
    if rule.keeps_gradients:
        size = bytes_text(datasets * model.vector_bytes)
        _log.warning("Balancer: moving averages keep %d gradients in memory (%s).", datasets, size)
