"""How much of each dataset a whole training should see, from sizes, length and what counts. Pure.

Data that come again are worth less each time: after U new examples, R further passes are worth U * R* (1 - e^(-R / R*))
new ones, with R* about 15 (Muennighoff et al. 2023). A dev set is served by the dataset of its name and, much less, by
all the others, and gains by the logarithm of what serves it. Together they say how far small datasets should be
repeated: as temperatures do, but for this length of training, and for the dev sets that count most.
"""

import math
from collections.abc import Mapping

WORTH = 15.0  # R*: passes after which a repeated example is worth 1/e of a new one
TRANSFER = 0.05  # what an example is worth for the dev set of another dataset, where losses count
_LEAST = 0.1  # of the smaller of its proportional and its uniform share: what a dataset is given in any case
_ROUNDS, _EXACT = 10_000, 1e-10


def effective(drawn: float, size: float, worth: float = WORTH) -> float:
    """How many new examples `drawn` draws from a dataset of `size` are worth."""
    if drawn <= size:
        return drawn
    return size + size * worth * -math.expm1(-(drawn / size - 1) / worth)


def marginals(
    drawn: Mapping[str, float],
    sizes: Mapping[str, float],
    weights: Mapping[str, float],
    transfer: float = TRANSFER,
    worth: float = WORTH,
) -> dict[str, float]:
    """The logarithm of what one draw more from each dataset adds to the sum that `planned` maximises."""
    data = {name: effective(drawn[name], size, worth) for name, size in sizes.items()}
    total = math.fsum(data.values())
    # For every dev set, its weight per example that serves it.
    pull = {k: w / (transfer * total + (1 - transfer) * data.get(k, 0.0)) for k, w in weights.items() if w}
    common = transfer * math.fsum(pull.values())
    worths = {}
    for name, size in sizes.items():
        use = common + (1 - transfer) * pull.get(name, 0.0)
        repeated = max(0.0, drawn[name] / size - 1)  # passes after the first; a new example is worth 1
        worths[name] = (math.log(use) if use else -math.inf) - repeated / worth
    return worths


def planned(
    sizes: Mapping[str, float],
    examples: float,
    weights: Mapping[str, float] | None = None,
    transfer: float = TRANSFER,
    worth: float = WORTH,
) -> dict[str, float]:
    """The shares that maximise the weighted sum over dev sets k of log(D(k) + transfer * (all other D)).

    D are the effective examples after so many draws in all. weights: {dev set: how much it counts}; None: every dataset
    has a dev set, and all count the same. A dataset that would get nothing, or nearly, gets a little.

    At the best shares one draw more is worth the same everywhere: until it is, shares grow where it is worth more than
    elsewhere. The step is the shorter the steeper the worth of a repeated dataset falls, so that none goes too far.
    """
    weights = dict.fromkeys(sizes, 1.0) if weights is None else weights
    everything = math.fsum(sizes.values())
    shares = {name: size / everything for name, size in sizes.items()}
    for _ in range(_ROUNDS):
        drawn = {name: p * examples for name, p in shares.items()}
        worths = marginals(drawn, sizes, weights, transfer, worth)
        mean = math.fsum(p * worths[name] for name, p in shares.items() if p)
        steps = {name: (worths[name] - mean) / (1 + drawn[name] / (worth * sizes[name])) for name in sizes}
        grown = {name: p * math.exp(min(max(steps[name], -1.0), 1.0)) for name, p in shares.items()}
        total = math.fsum(grown.values())
        shares = {name: p / total for name, p in grown.items()}
        if max(abs(step) for name, step in steps.items() if shares[name]) < _EXACT:
            break
    least = {name: _LEAST * min(1 / len(sizes), size / everything) for name, size in sizes.items()}
    given = {name: max(p, least[name]) for name, p in shares.items()}
    total = math.fsum(given.values())
    return {name: p / total for name, p in given.items()}
