"""The length of a training, its learning rates, and the number and size of its probes. Pure functions.

`[mixture] probe_budget` is a share of the tokens of training. Before step 1 it fixes `every` and `probe_tokens`, which
are written into the run's config; resuming takes them from there, so that a longer training does not change its past.
"""

import math
from collections.abc import Mapping

from multidds._base.errors import UserError

from ..batches.sentences import Sentences
from ..config.config import Config, MixtureSettings

UPDATES = 50  # per training, wanted: with more, probes grow; with fewer, updates probe a part of many language pairs
ALL_PAIRS = 16  # up to so many language pairs, every update probes all
LEAST_BATCHES = 6  # probe batches of an update that probes a part
SMALLEST, LARGEST = 1000, 4000  # tokens of a probe batch; below, a reward is mostly noise

DEFAULT = ("learned", "shuffled")  # methods with the default rule: itself, and its control


def planned_sentences(config: Config, data: Mapping[str, Sentences]) -> float:
    """Returns the number of sentence pairs that the whole training will see."""
    total = sum(len(sentences) for sentences in data.values())
    return planned_steps(config, data) * config.train.tokens / (_all_tokens(data) / total)


def planned_steps(config: Config, data: Mapping[str, Sentences]) -> float:
    by_epochs = config.train.max_epochs * _all_tokens(data) / config.train.tokens
    return min(by_epochs, config.train.max_steps or by_epochs)


def _all_tokens(data: Mapping[str, Sentences]) -> float:
    return sum(float(sentences.all_tokens) for sentences in data.values())


def learning_rate(peak: float, warmup: int, start: float, step: int) -> float:
    """Rises linearly from `start` over the warm-up, then falls with the square root of the step, counted from 1."""
    if step <= warmup:
        return start + (peak - start) * step / warmup
    return peak * math.sqrt(max(warmup, 1) / step)


def probe_shape(settings: MixtureSettings) -> tuple[int, int]:
    """Returns (number, tokens) of a dataset's probe batches. The default rule compares halves and cuts a single one."""
    if settings.method in DEFAULT and settings.probe_batches == 1:
        return 2, max(1, settings.probe_tokens // 2)
    return settings.probe_batches, settings.probe_tokens


def probe_passes(config: Config) -> int:
    """Returns forward and backward passes of an update, each over one probe batch."""
    if in_parts(config):
        return int(part_budget(config.mixture, config.train.tokens) * config.mixture.every)
    return _whole_passes(config)


def probe_share(config: Config) -> float:
    """Returns tokens of probes per token of training."""
    return config.mixture.probe_budget if in_parts(config) else _whole_share(config)


def in_parts(config: Config) -> bool:
    """Returns whether an update probes a part of the language pairs: `every` and the budget allow no more."""
    budget = config.mixture.probe_budget
    return budget > 0 and _may_probe_parts(config) and _whole_share(config) > budget * (1 + 1e-9)


def part_budget(settings: MixtureSettings, tokens: float) -> float:
    """Returns probe batches per training batch of so many tokens."""
    return settings.probe_budget * tokens / settings.probe_tokens


def _whole_passes(config: Config) -> int:
    """Returns passes of an update that probes all language pairs."""
    pairs, settings = len(config.data.names), config.mixture
    return (pairs + pairs * pairs if settings.step_ahead else 2 * pairs) * settings.probe_batches


def _whole_share(config: Config) -> float:
    """Returns tokens of probes per token of training, if every update probes all language pairs."""
    settings = config.mixture
    return _whole_passes(config) * settings.probe_tokens / (settings.every * config.train.tokens)


def _may_probe_parts(config: Config) -> bool:
    """Returns whether updates may probe a part: a step ahead and moving averages need all language pairs."""
    settings = config.mixture
    learned = settings.method in ("learned", "shuffled", "multidds", "multidds-s")
    return learned and not settings.step_ahead and len(config.data.names) > ALL_PAIRS


def within_budget(config: Config, steps: float, resumed: Config | None = None) -> Config:
    """Returns the config with `every` and `probe_tokens` chosen for its budget; unchanged if there is none.

    steps: the planned number of optimizer steps.
    resumed: the config of the run that is resumed.
    """
    settings = config.mixture
    if not settings.probe_budget or settings.method == "static":
        return config
    if resumed is not None and resumed.mixture.probe_budget == settings.probe_budget:
        every, tokens = resumed.mixture.every, resumed.mixture.probe_tokens
    else:
        every, tokens = _within_budget(config, steps)
    chosen = settings.model_copy(update={"every": every, "probe_tokens": tokens})
    return config.model_copy(update={"mixture": chosen})


def _within_budget(config: Config, steps: float) -> tuple[int, int]:
    """Returns (every, probe_tokens) of a new training of so many steps."""
    passes = _whole_passes(config)
    budget = config.mixture.probe_budget * config.train.tokens  # tokens of probes per step
    smallest = max(SMALLEST, config.data.max_length + 2)
    tokens = min(max(int(budget * steps / (UPDATES * passes)), smallest), max(LARGEST, smallest))
    every = max(1, math.ceil(passes * tokens / budget))
    if every * UPDATES > steps and _may_probe_parts(config):
        passes, tokens = LEAST_BATCHES, max(LARGEST, smallest)
        every = max(1, math.ceil(steps / UPDATES), math.ceil(passes * tokens / budget))
    if every > steps:
        raise UserError(
            f"[mixture] probe_budget = {config.mixture.probe_budget} is too small: an update of {passes} probes "
            f"of {tokens:,} tokens fits after {every:,} steps, and {steps:,.0f} are planned."
        )
    return every, tokens
