"""What happens when in a training: its length, the learning rate of a step, how often and how large probes are. Pure.

`[mixture] probe_budget` is counted in tokens, before step 1, and what follows from it is written into the run's config:
resuming takes it from there, so that a longer training does not change the past.
"""

import math
from collections.abc import Mapping

from ..batches.sentences import Sentences
from ..common.errors import UserError
from ..config.config import Config, MixtureSettings

UPDATES = 50  # wanted in a training: with more, probes grow; with fewer, an update looks at a part of many pairs
FEW = 16  # pairs, of which every update looks at all
LEAST = 6  # probe batches of an update that looks at a part
SMALLEST, LARGEST = 1000, 4000  # tokens of a probe batch; below, a reward is mostly noise


def planned_sentences(config: Config, data: Mapping[str, Sentences]) -> float:
    """How many sentence pairs the whole training will see."""
    total = sum(len(sentences) for sentences in data.values())
    return planned_steps(config, data) * config.train.tokens / (_all_tokens(data) / total)


def planned_steps(config: Config, data: Mapping[str, Sentences]) -> float:
    by_epochs = config.train.max_epochs * _all_tokens(data) / config.train.tokens
    return min(by_epochs, config.train.max_steps or by_epochs)


def _all_tokens(data: Mapping[str, Sentences]) -> float:
    return sum(float(sentences.all_tokens) for sentences in data.values())


def learning_rate(peak: float, warmup: int, start: float, step: int) -> float:
    """Linear from `start` over the warm-up, then with the inverse square root of the step, counted from 1."""
    if step <= warmup:
        return start + (peak - start) * step / warmup
    return peak * math.sqrt(max(warmup, 1) / step)


def probe_shape(settings: MixtureSettings) -> tuple[int, int]:
    """(how many, how many tokens) the probe batches of a dataset are. The anchored rule compares halves: a single batch
    is cut in two.
    """
    if settings.method in ("anchored", "shuffled") and settings.probe_batches == 1:
        return 2, max(1, settings.probe_tokens // 2)
    return settings.probe_batches, settings.probe_tokens


def probe_passes(config: Config) -> int:
    """Forward and backward passes of an update, each over one probe batch."""
    if in_parts(config):
        return int(part_budget(config.mixture, config.train.tokens) * config.mixture.every)
    return whole_passes(config)


def whole_passes(config: Config) -> int:
    """The same of an update that looks at all pairs."""
    pairs, settings = len(config.data.names), config.mixture
    return (pairs + pairs * pairs if settings.step_ahead else 2 * pairs) * settings.probe_batches


def in_parts(config: Config) -> bool:
    """Whether an update looks at a part of the pairs: `every` and the budget leave no more."""
    budget = config.mixture.probe_budget
    return budget > 0 and _may_look_at_parts(config) and whole_share(config) > budget * (1 + 1e-9)


def part_budget(settings: MixtureSettings, tokens: float) -> float:
    """Probe batches for a training batch of so many tokens."""
    return settings.probe_budget * tokens / settings.probe_tokens


def probe_share(config: Config) -> float:
    """Tokens of probes for a token of training."""
    return config.mixture.probe_budget if in_parts(config) else whole_share(config)


def whole_share(config: Config) -> float:
    """The same if every update looks at all pairs."""
    settings = config.mixture
    return whole_passes(config) * settings.probe_tokens / (settings.every * config.train.tokens)


def _may_look_at_parts(config: Config) -> bool:
    """A step ahead, moving averages and rewards of one's own need all pairs. There is no table of a part."""
    settings = config.mixture
    learned = settings.method in ("anchored", "shuffled", "multidds", "multidds-s")
    return learned and not settings.step_ahead and len(config.data.names) > FEW


def _every(settings: MixtureSettings, passes: int, tokens: int, of_a_step: int) -> int:
    """Steps between updates of so many passes over so many tokens, within the budget."""
    return max(1, math.ceil(passes * tokens / (settings.probe_budget * of_a_step)))


def within_budget(config: Config, steps: float, resumed: Config | None = None) -> Config:
    """The config with `every` and `probe_tokens` chosen for its budget; as it is where there is none.

    steps: of the planned training. resumed: the config of the run that goes on.
    """
    settings = config.mixture
    if not settings.probe_budget or settings.method == "static":
        return config
    if resumed is not None and resumed.mixture.probe_budget == settings.probe_budget:
        every, tokens = resumed.mixture.every, resumed.mixture.probe_tokens
        if not in_parts(resumed) and whole_passes(config) != whole_passes(resumed):  # all pairs, also those added
            every = max(every, _every(settings, whole_passes(config), tokens, config.train.tokens))
        chosen = {"every": every, "probe_tokens": tokens}
    else:
        passes = whole_passes(config)
        budget = settings.probe_budget * config.train.tokens  # tokens of probes per step
        smallest = max(SMALLEST, config.data.max_length + 2)
        wished = int(budget * steps / (UPDATES * passes))
        tokens = min(max(wished, smallest), max(LARGEST, smallest))
        every = _every(settings, passes, tokens, config.train.tokens)
        if every * UPDATES > steps and _may_look_at_parts(config):
            tokens = max(LARGEST, smallest)
            every = max(1, math.ceil(steps / UPDATES), math.ceil(LEAST * tokens / budget))
            passes = LEAST
        if every > steps:
            raise UserError(
                f"[mixture] probe_budget = {settings.probe_budget} is too small: an update of {passes} probes "
                f"of {tokens:,} tokens fits after {every:,} steps, and {steps:,.0f} are planned."
            )
        chosen = {"every": every, "probe_tokens": tokens}
    return config.model_copy(update={"mixture": settings.model_copy(update=chosen)})
