"""What a balancer is given, checked at once: refused by name, or said where it keeps many gradients in memory."""

import logging
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from .anchored import Anchored
from .checks import check_step_ahead
from .estimating import STABILIZED
from .mixture import Mixture
from .probing import Prober
from .rewards import Reward
from .rivals import Exp3, Exponentiated
from .scorer import Scorer

Rule: TypeAlias = Scorer | Anchored | Exponentiated | Exp3
_log = logging.getLogger("multidds")


def check_choices(
    loss: object,
    dev_loss: object,
    reward: object,
    scorer: object,
    sketch: object,
    step_ahead: float | None,
    seed: object,
) -> None:
    for word, given in (("loss", loss), ("dev_loss", dev_loss)):
        if not callable(given) and (given is not None or word == "loss"):
            raise TypeError(
                f"Balancer: {word} must be a function (model, batch) -> scalar tensor, got {type(given).__name__}."
            )
    if scorer is not None and not isinstance(scorer, get_args(Rule)):
        names = ", ".join(rule.__name__ for rule in get_args(Rule))
        raise TypeError(f"Balancer: scorer must be one of {names}, got {type(scorer).__name__}.")
    if not isinstance(seed, int):
        raise TypeError(f"Balancer: seed must be a whole number, got {seed!r}.")
    if sketch is True or not (sketch in (None, "exact") or (isinstance(sketch, int) and sketch >= 1)):
        raise ValueError(f"Balancer: sketch must be None, 'exact' or a number of buckets, but it is {sketch!r}.")
    if reward is not None and not callable(reward) and reward not in STABILIZED:
        raise ValueError(
            f"Balancer: reward must be one of {', '.join(map(repr, STABILIZED))} or a function, got {reward!r}."
        )
    check_step_ahead("Balancer", step_ahead)


def check_model(
    prober: Prober,
    mixture: Mixture,
    dev: Mapping[str, Any],
    reward: str | Reward,
    sketch: int | str | None,
    step_ahead: float | None,
) -> None:
    """Say what keeps many gradients, and refuse what this model or this choice cannot give."""
    if step_ahead is not None:
        prober.refuse_narrow_steps()
    if callable(reward) and sketch is None:
        size = _readable((len(dev) + 1) * prober.vector_bytes)
        raise ValueError(
            "Balancer: a reward function needs the table of inner products: give sketch=2**16, "
            f"or sketch='exact', which keeps {len(dev) + 1} gradients ({size})."
        )
    if reward == "moving-average":
        size = _readable(len(mixture) * prober.vector_bytes)
        _log.warning("Balancer: reward 'moving-average' keeps %d gradients in memory (%s).", len(mixture), size)


def _readable(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.3g} {unit}"
