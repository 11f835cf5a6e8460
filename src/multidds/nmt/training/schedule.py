"""The schedule of a training: its length and its learning rates. Pure functions."""

import math
from collections.abc import Mapping

from ..batches.sentences import Sentences
from ..config.config import Config


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
