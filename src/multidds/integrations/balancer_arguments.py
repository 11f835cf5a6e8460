"""Arguments of `Balancer` that callbacks take, checked before their training begins."""

from collections.abc import Mapping
from typing import Any

from .._base.checks import listed, refuse
from ..balancer.arguments import check_groups, check_settings
from ..mixture import Limits, Mixture
from ..rewards import Reward, priorities
from ..rules import Rule


def check_balancer_arguments(mixture: Mixture, dev: Mapping[str, Any], loss: object, arguments: dict[str, Any]) -> None:
    """Raises the errors of `Balancer`, as far as they do not depend on the model, the data and the length of training.

    dev: {name: dev set}. loss: None: the trainer's. arguments: of `Balancer`, from `every` on.
    """
    check_examples("BalanceCallback: dev", dev)
    every, reward, rule, seed = (arguments[name] for name in ("every", "reward", "rule", "seed"))
    check_settings(check_balancer_arguments if loss is None else loss, every, None, None, reward, rule, seed)
    priorities.check(arguments["priority"], dev)
    limits: Limits = arguments["limits"]
    groups = check_groups(mixture.names, arguments["groups"])
    limits.tracker(mixture.names, groups, sizes=dict.fromkeys(mixture.names, 1.0), draws=1.0, steps=1)


def probe_batch_size(training: int, rule: Rule) -> int:
    """Returns the examples of a probe batch, so that two of them are as large as a training batch; at least two."""
    return max(min(training, 2), -(-training // 2)) if rule.needs_errors else training


def check_examples(where: str, sets: Mapping[str, Any]) -> None:
    """Raises a ValueError with the names of empty datasets or dev sets, as far as they have a length."""
    empty = [name for name, given in sets.items() if _length(given) == 0]
    refuse(where, [(empty, f"there are no examples in {listed(empty)}.")])


def _length(given: Any) -> int | None:
    try:
        return len(given)
    except TypeError:  # a stream, or a function
        return None


def averages_gradients(reward: Reward) -> bool:
    """Returns whether a reward keeps averages of gradients, which are part of the state and as large as the model."""
    return reward.decay is not None or reward.losses is not None
