"""How much of each dataset a whole training should see, from sizes, length and what counts. Pure.

Data that come again are worth less each time: after U new examples, R further passes are worth U * R* (1 - e^(-R / R*))
new ones, with R* about 15 (Muennighoff et al. 2023). A dev set is served by the dataset of its name and, much less, by
all the others, and gains by the logarithm of what serves it. Together they say how far small datasets should be
repeated: as temperatures do, but for this length of training, and for the dev sets that count most.
"""

import math
from collections.abc import Mapping
from typing import Any

WORTH = 15.0  # R*: passes after which a repeated example is worth 1/e of a new one
TRANSFER = 0.05  # what an example is worth for the dev set of another dataset, where losses count
_LEAST = 0.1  # of the smaller of its proportional and its uniform share: what a dataset is given in any case
_NOTHING = -200.0  # the logarithm of what a draw is worth that serves no dev set
_FLATTEST = 0.05  # a worth that falls less steeply is treated as if it did, or steps would be too long
_ROUNDS, _EXACT = 1000, 1e-9
_PATIENCE = 250  # rounds after which steps are halved: they may overshoot from side to side for ever


def planned(
    sizes: Mapping[str, float],
    draws: float,
    weights: Mapping[str, float] | None = None,
    transfer: float = TRANSFER,
    worth: float = WORTH,
) -> dict[str, float]:
    """The shares that maximise the weighted sum over dev sets k of log(D(k) + transfer * (all other D)).

    D are the effective examples after so many draws in all. weights: {dev set: how much it counts}; None: every dataset
    has a dev set, and all count the same. A dataset that would get nothing, or nearly, gets a little.

    At the best shares one draw more is worth the same everywhere: until it is, shares grow where it is worth more than
    elsewhere. The step is the shorter the steeper the worth of a dataset falls with its draws, so none goes too far.
    """
    import numpy as np

    size, own, others = _vectors(sizes, dict.fromkeys(sizes, 1.0) if weights is None else weights)
    shares = size / size.sum()
    least = _LEAST * np.minimum(1 / len(size), shares)
    for number in range(_ROUNDS):
        worths, falls = _marginals(shares * draws, size, own, others, transfer, worth)
        steps = (worths - shares @ worths) / np.maximum(falls, _FLATTEST)
        shares = shares * np.exp(np.clip(steps, -1.0, 1.0) * 0.5 ** (number // _PATIENCE))
        shares /= shares.sum()
        if np.abs(steps[shares > least]).max() < _EXACT:
            break
    shares = np.maximum(shares, least)
    return dict(zip(sizes, (shares / shares.sum()).tolist(), strict=True))


def planned_beside(
    shares: Mapping[str, float], sizes: Mapping[str, float], draws: float, weights: Mapping[str, float]
) -> dict[str, float]:
    """The plan of the datasets that have dev sets of their own; others keep the share that they were given, but get no
    more than an equal one.

    shares: {dataset: the share it was given}. weights: {dev set: how much it counts}.
    """
    own = {name: size for name, size in sizes.items() if name in weights}
    others = {name: min(p, 1 / len(shares)) for name, p in shares.items() if name not in own}
    share = 1 - math.fsum(others.values())
    return others | {name: share * p for name, p in planned(own, share * draws, weights).items()}


def _vectors(sizes: Mapping[str, float], weights: Mapping[str, float]) -> tuple[Any, Any, float]:
    """(sizes [n], weights of the dev sets of these datasets [n], weight of all other dev sets)"""
    import numpy as np

    own = np.array([weights.get(name, 0.0) for name in sizes], dtype=np.float64)
    others = math.fsum(w for name, w in weights.items() if name not in sizes)
    return np.array(list(sizes.values()), dtype=np.float64), own, others


def _marginals(drawn: Any, size: Any, own: Any, others: float, transfer: float, worth: float) -> tuple[Any, Any]:
    """(marginals [n], how steeply each falls with the logarithm of its dataset's draws [n])

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
    use = np.maximum(common + pull, math.exp(_NOTHING))
    fall = pull / use * np.minimum(1.0, (1 - transfer) * drawn * fresh / serving)
    return np.log(use) - repeated / worth, fall + np.where(drawn > size, drawn / (worth * size), 0.0)
