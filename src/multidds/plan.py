"""How much of each dataset a whole training should see, from sizes and length alone. Pure.

Data that come again are worth less each time: after U new examples, R further passes are worth U * R* (1 - e^(-R / R*))
new ones, with R* about 15 (Muennighoff et al. 2023). A dev set gains by the logarithm of the data that serve it.
Together they say how far small datasets should be repeated: as temperatures do, but for this length of training.
"""

import math
from collections.abc import Mapping

WORTH = 15.0  # R*: passes after which a repeated example is worth 1/e of a new one


def effective(drawn: float, size: float, worth: float = WORTH) -> float:
    """How many new examples `drawn` draws from a dataset of `size` are worth."""
    if drawn <= size:
        return drawn
    return size + size * worth * -math.expm1(-(drawn / size - 1) / worth)


def marginal(drawn: float, size: float, worth: float = WORTH) -> float:
    """What one draw more adds to the logarithm of the effective examples; falls from infinity to 0."""
    fresh = 1.0 if drawn <= size else math.exp(-(drawn / size - 1) / worth)
    return fresh / effective(drawn, size, worth)


def planned(sizes: Mapping[str, float], examples: float, worth: float = WORTH) -> dict[str, float]:
    """The shares that maximise the sum over datasets of log(effective examples), for so many draws in all.

    At the best shares one draw more is worth the same everywhere: that worth, the price, is found by bisection.
    """
    high = math.log(2 * len(sizes) / examples)  # the logarithm of a price at which too little would be drawn
    low = high - 2 * examples / min(sizes.values()) - 100  # and of one at which too much would be
    for _ in range(200):
        price = (low + high) / 2
        drawn = {name: _drawn_at(price, size, worth) for name, size in sizes.items()}
        low, high = (price, high) if math.fsum(drawn.values()) > examples else (low, price)
    total = math.fsum(drawn.values())
    return {name: count / total for name, count in drawn.items()}


def _drawn_at(log_price: float, size: float, worth: float) -> float:
    """How many draws bring the marginal worth of a dataset down to the price."""
    relative = log_price + math.log(size)
    if relative >= 0:  # within the first pass: the worth of the next draw is 1 / drawn
        return size * math.exp(-relative)
    # e^-x / (size (1 + worth (1 - e^-x))) = price, solved for x: after 1 + worth * x passes
    x = math.log1p(worth * math.exp(relative)) - relative - math.log1p(worth)
    return size * (1 + worth * x)
