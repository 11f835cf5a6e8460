"""How often and how large probes are, from the share of training that they may take. Pure.

`[mixture] probe_budget` is counted in tokens, before step 1, and what follows from it is written into the run's config:
resuming takes it from there, so that a longer training does not change the past.
"""

import math

from .config import Config
from .errors import UserError

UPDATES = 50  # wanted in a training, before probes grow beyond the smallest
SMALLEST, LARGEST = 1000, 4000  # tokens of a probe batch; below, a reward is mostly noise


def passes(config: Config) -> int:
    """Forward and backward passes of an update, each over one probe batch."""
    pairs, settings = len(config.data.names), config.mixture
    return (pairs + pairs * pairs if settings.step_ahead else 2 * pairs) * settings.probe_batches


def share(config: Config) -> float:
    """Tokens of probes for a token of training."""
    settings = config.mixture
    return passes(config) * settings.probe_tokens / (settings.every * config.train.tokens)


def within_budget(config: Config, steps: float, resumed: Config | None = None) -> Config:
    """The config with `every` and `probe_tokens` chosen for its budget; as it is where there is none.

    steps: of the planned training. resumed: the config of the run that goes on.
    """
    settings = config.mixture
    if not settings.probe_budget or settings.method == "static":
        return config
    if resumed is not None and resumed.mixture.probe_budget == settings.probe_budget:
        chosen = {"every": resumed.mixture.every, "probe_tokens": resumed.mixture.probe_tokens}
    else:
        budget = settings.probe_budget * config.train.tokens  # tokens of probes per step
        smallest = max(SMALLEST, config.data.max_length + 2)
        wished = int(budget * steps / (UPDATES * passes(config)))
        tokens = min(max(wished, smallest), max(LARGEST, smallest))
        every = max(1, math.ceil(passes(config) * tokens / budget))
        if every > steps:
            raise UserError(
                f"[mixture] probe_budget = {settings.probe_budget} is too small: an update of {passes(config)} probes "
                f"of {tokens:,} tokens fits after {every:,} steps, and {steps:,.0f} are planned."
            )
        chosen = {"every": every, "probe_tokens": tokens}
    return config.model_copy(update={"mixture": settings.model_copy(update=chosen)})
