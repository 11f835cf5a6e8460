"""The arguments that every integration hands on to `Balancer`: documented once, checked before a training begins."""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

from .._base.checks import listed, refuse
from .._base.removed import OF_BALANCER
from .._base.text import suggestion
from ..balancer.arguments import check_settings
from ..mixture import Limits, Mixture
from ..probes import Probes, priorities
from ..probes.priorities import Priority
from ..rules import RelevancePlan, Rule

T = TypeVar("T", bound=Callable[..., Any])


class BalancerArguments(TypedDict, total=False):
    """Arguments of `Balancer`, by keyword.

    rule: how the gradients move the mixture: an object of `multidds.rules`. Default `RelevancePlan()`; the paper's is
        `Scorer()`.
    priority: weights of the dev sets: "regular" (equal), "low", "high", {dev set: weight}, or a function of dev losses.
        "low", "high" and functions rank by the losses of the trainer's last evaluation, if it has any.
    limits: `Limits` of shares and of passes. Default: none.
    probes: `Probes`: number and mode of probe batches, parameters, dev loss, work split.
    seed: for everything random in probes. Default 0.
    """

    rule: Rule
    priority: Priority
    limits: Limits
    probes: Probes
    seed: int


_DEFAULTS = BalancerArguments(rule=RelevancePlan(), priority="regular", limits=Limits(), probes=Probes(), seed=0)


def with_balancer_arguments(target: T) -> T:
    """Puts the lines of `BalancerArguments` into a docstring, in the place of its line about **arguments."""
    if target.__doc__ is not None and BalancerArguments.__doc__ is not None:
        lines = BalancerArguments.__doc__.split("\n\n", 1)[1].rstrip()
        target.__doc__ = target.__doc__.replace("    **arguments: of `Balancer`.", lines)
    return target


def checked_balancer_arguments(
    mixture: Mixture, dev: Mapping[str, Any], loss: object, every: object, arguments: BalancerArguments
) -> dict[str, Any]:
    """Returns the arguments with their defaults. Raises the errors of `Balancer` that can be known before a training.

    dev: {name: dev set}. loss: None: the trainer's.
    """
    for name in arguments:
        if name in OF_BALANCER:
            raise TypeError(f"BalanceCallback: {name}= was removed. Use {OF_BALANCER[name]}.")
        if name not in _DEFAULTS:
            known = ["every", "dev", "loss", "batch_size", *_DEFAULTS]
            raise TypeError(f"BalanceCallback: there is no argument {name!r}.{suggestion(name, known)}")
    given: BalancerArguments = {**_DEFAULTS, **arguments}
    check_examples("BalanceCallback: dev", dev)
    check_settings(
        checked_balancer_arguments if loss is None else loss, every, None, None, given["rule"], given["seed"]
    )
    priorities.check(given["priority"], dev)
    given["limits"].check(mixture.names, sizes=dict.fromkeys(mixture.names, 1.0), draws=1.0, steps=1)
    return {"every": every, **given}


def probe_batch_size(training: int, rule: Rule) -> int:
    """Returns the examples of a probe batch, so that two of them are as large as a training batch; at least two."""
    return max(min(training, 2), -(-training // 2)) if rule.halves else training


def check_examples(where: str, sets: Mapping[str, Any]) -> None:
    """Raises a ValueError with the names of empty datasets or dev sets, as far as they have a length."""
    empty = [name for name, given in sets.items() if _length(given) == 0]
    refuse(where, [(empty, f"there are no examples in {listed(empty)}.")])


def _length(given: Any) -> int | None:
    try:
        return len(given)
    except TypeError:  # a stream, or a function
        return None
