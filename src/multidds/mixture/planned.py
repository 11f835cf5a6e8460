"""The best shares for a training of a given length, from sizes of datasets and weights of dev sets.

Repeated data are worth less each time: after U new examples, R further passes are worth U * R* (1 - e^(-R / R*)) new
ones, with R* about 15 (Muennighoff et al. 2023). A dev set is served by the dataset of its name and, much less, by all
others, and gains by the logarithm of what serves it. Together this decides how far small datasets should be repeated:
as a temperature does, but for this length of training, and for the dev sets that count most.
"""

import math
from collections.abc import Mapping
from typing import Any

WORTH = 15.0  # R*: passes after which a repeated example is worth 1/e of a new one
TRANSFER = 0.05  # value of an example for the dev set of another dataset, relative to its own
_LEAST_SHARE = 0.1  # share_i >= 0.1 * min(1 / n, size_i / sum of sizes)
_LEAST_LOG_WORTH = -200.0  # log(worth of a draw) >= -200, also if it serves no dev set
_LEAST_SLOPE = 0.05  # slope of the log worth >= 0.05, or steps would be too long
_MOST_ROUNDS = 1000
_CONVERGED = 1e-9  # stop if |step of log share_i| < 1e-9 for all i above their least share
_HALVE_AFTER = 250  # rounds after which steps are halved: they may overshoot from side to side for ever


def planned(
    sizes: Mapping[str, float],
    draws: float,
    weights: Mapping[str, float] | None = None,
    transfer: float = TRANSFER,
    worth: float = WORTH,
) -> dict[str, float]:
    """Returns the shares that maximise the weighted sum over dev sets k of log(D(k) + transfer * (all other D)).

    D are the effective examples of each dataset. A dataset that would get nothing, or nearly, gets its least share.

    At the best shares one draw more is worth the same everywhere: until it is, shares grow where it is worth more than
    elsewhere. The step is the shorter the steeper the worth of a dataset falls with its draws, so none goes too far.

    sizes: {dataset: number of examples}.
    draws: examples that the whole training draws.
    weights: {dev set: weight}. Default None: every dataset has a dev set, and all count the same.
    transfer, worth: as in `Mixture.planned`.
    """
    import numpy as np

    size, own, others = _vectors(sizes, dict.fromkeys(sizes, 1.0) if weights is None else weights)
    shares = size / size.sum()
    least = _LEAST_SHARE * np.minimum(1 / len(size), shares)
    for number in range(_MOST_ROUNDS):
        log_worths, slopes = _marginals(shares * draws, size, own, others, transfer, worth)
        steps = (log_worths - shares @ log_worths) / np.maximum(slopes, _LEAST_SLOPE)
        shares = shares * np.exp(np.clip(steps, -1.0, 1.0) * 0.5 ** (number // _HALVE_AFTER))
        shares /= shares.sum()
        if np.abs(steps[shares > least]).max() < _CONVERGED:
            break
    shares = np.maximum(shares, least)
    return dict(zip(sizes, (shares / shares.sum()).tolist(), strict=True))


def planned_beside(
    shares: Mapping[str, float], sizes: Mapping[str, float], draws: float, weights: Mapping[str, float]
) -> dict[str, float]:
    """Returns the plan of the datasets that have dev sets of their own, beside those that have none.

    The latter keep the share that they were given, but get no more than an equal one.

    shares: {dataset: share that it was given}.
    sizes: {dataset: number of examples}.
    draws: examples that the whole training draws.
    weights: {dev set: weight}.
    """
    own = {name: size for name, size in sizes.items() if name in weights}
    others = {name: min(p, 1 / len(shares)) for name, p in shares.items() if name not in own}
    share = 1 - math.fsum(others.values())
    return others | {name: share * p for name, p in planned(own, share * draws, weights).items()}


def _vectors(sizes: Mapping[str, float], weights: Mapping[str, float]) -> tuple[Any, Any, float]:
    """Returns sizes [n], weights of the dev sets of these datasets [n], and the weight of all other dev sets."""
    import numpy as np

    own = np.array([weights.get(name, 0.0) for name in sizes], dtype=np.float64)
    others = math.fsum(w for name, w in weights.items() if name not in sizes)
    return np.array(list(sizes.values()), dtype=np.float64), own, others


def _marginals(drawn: Any, size: Any, own: Any, others: float, transfer: float, worth: float) -> tuple[Any, Any]:
    """Returns the log worth of one draw more [n], and how steeply it falls with log draws [n].

    Dev sets without a dataset of their own are served by everything alike.
    """
    import numpy as np

    drawn = np.asarray(drawn, dtype=np.float64)
    repeated = np.maximum(drawn / size - 1, 0.0)  # passes after the first; a new example is worth 1
    fresh = np.exp(-repeated / worth)
    data = np.minimum(drawn, size) + size * worth * (1 - fresh)
    total = data.sum()
    serving = np.maximum(transfer * total + (1 - transfer) * data, np.finfo(np.float64).tiny)  # each dev set
    pull = (1 - transfer) * own / serving  # its weight per example that serves it
    common = transfer * (own / serving).sum() + (others / total if transfer else 0.0)
    use = np.maximum(common + pull, math.exp(_LEAST_LOG_WORTH))
    slope = pull / use * np.minimum(1.0, (1 - transfer) * drawn * fresh / serving)
    return np.log(use) - repeated / worth, slope + np.where(drawn > size, drawn / (worth * size), 0.0)
