"""What a balancer is given, checked at once: refused by name, or said where it keeps many gradients in memory; and the
pace that follows from it.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from .._base.checks import check_names, check_step_ahead, check_whole
from ..mixture.mixture import Mixture, check_mixture
from ..probes.probe_sources import ProbeSources
from ..probes.prober import Prober
from ..rewards.estimate import STABILIZED
from ..rewards.formulas import Reward
from ..rules.anchored import Anchored
from ..rules.rivals import Exp3, Exponentiated
from ..rules.scorer import Scorer
from .pace import LEAST_SETS, Pace, advice, chosen, enough, in_mixed_batches, in_parts

Rule: TypeAlias = Scorer | Anchored | Exponentiated | Exp3
_log = logging.getLogger("multidds")


def check_choices(
    loss: object,
    dev_loss: object,
    losses: object,
    reward: object,
    scorer: object,
    sketch: object,
    step_ahead: float | None,
    seed: object,
) -> None:
    for word, given in (("loss", loss), ("dev_loss", dev_loss), ("losses", losses)):
        if not callable(given) and (given is not None or word == "loss"):
            what = "tensor [B]" if word == "losses" else "scalar tensor"
            raise TypeError(
                f"Balancer: {word} must be a function (model, batch) -> {what}, got {type(given).__name__}."
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
    reward: str | Reward | None,
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


def check_data(mixture: Mixture, train: Mapping[str, Any], dev: Mapping[str, Any]) -> None:
    check_mixture("Balancer", mixture)
    check_names("Balancer: train", mixture.names, train)
    if not dev:
        raise ValueError("Balancer: there must be at least one dev set.")
    for name in mixture:
        if mixture[name] == 0:
            raise ValueError(f"Balancer: the prior of {name!r} is 0, which no update can change; leave it out.")


def batches_of_each(batches: int | None, total: int | None, processes: int) -> float | None:
    """Probe batches per process; a fraction where there are more processes than batches."""
    given = {"batches": batches, "total_batches": total}
    check_whole("Balancer", **{word: value for word, value in given.items() if value is not None})
    if batches is not None and total is not None:
        raise ValueError(
            f"Balancer: give batches={batches}, of each process, or total_batches={total}, of all, but not both."
        )
    return batches if total is None else total / processes


def possibilities(
    rule: object,
    reward: str | Reward | None,
    losses: object,
    optimizer: object,
    sketch: object,
    step_ahead: float | None,
    sources: ProbeSources,
    processes: int,
) -> dict[str, Any]:
    """What `pace_of` must know of the rest: a table, a step ahead and moving averages need every dataset, and a slope
    may stand for a cosine only where neither a reward nor a metric was asked for.
    """
    mixed = None if losses is None else sources.mixing("train")[0] * processes
    return {
        "comparing": isinstance(rule, Anchored),
        "ahead": step_ahead is not None,
        "parts": step_ahead is None and sketch is None and reward != "moving-average",
        "mixed": mixed if reward is None and optimizer is None else None,
    }


def pace_of(
    datasets: int,
    dev_sets: int,
    every: int | None,
    steps: int | None,
    budget: float,
    batches: float | None,
    *,
    comparing: bool,
    ahead: bool,
    parts: bool,
    mixed: int | None,
) -> Pace:
    """When updates come; says what was chosen, and what to do where it is not enough.

    batches: of each set, of a process. comparing: whether halves of probes are compared. ahead: whether the dev sets
    are looked at for every dataset. parts: whether an update may look at a part of the sets. mixed: examples of a batch
    that mixes datasets, of all processes together, where there may be such.
    """
    given = {"every": every, "steps": steps}
    check_whole("Balancer", **{word: value for word, value in given.items() if value is not None})
    if not 0 < budget <= 100:
        raise ValueError(f"Balancer: budget must be positive, probe batches per training batch, but it is {budget}.")
    looks = datasets * (1 + dev_sets) if ahead else datasets + dev_sets
    least = 2 if comparing else 1
    pace = chosen(looks, every, steps, budget, batches, least_batches=least)
    if every is None and parts and looks > LEAST_SETS and not enough(pace, steps):
        if mixed is not None:
            pace = in_mixed_batches(datasets, dev_sets, steps, budget, mixed)
        else:
            pace = in_parts(datasets, dev_sets, steps, budget, least if batches is None else batches)
    if every is None:
        _log.info("Balancer: %s.", pace)
    if (sentence := advice(pace, steps, budget if every is None else None)) is not None:
        _log.warning("Balancer: %s.", sentence)
    return pace


def check_groups(names: Sequence[str], groups: Mapping[str, str] | None) -> dict[str, str]:
    """{dataset: group}, of those that have one."""
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


def check_length(names: Iterable[str], sizes: Mapping[str, float] | None, examples: float | None) -> None:
    if sizes is not None:
        check_names("Balancer: sizes", names, sizes)
    for name, number in {**(sizes or {}), "examples": 1.0 if examples is None else examples}.items():
        if not (number > 0 and math.isfinite(number)):
            raise ValueError(f"Balancer: sizes and examples must be positive, but {name!r} is {number}.")
