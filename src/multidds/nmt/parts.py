"""What a run is made of, from its config: the model, the prior, how long it will be, the learning rate, the device.

Functions only; `train` puts them together.
"""

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from multidds import Alignment, Mixture

from . import bfloat16
from .batches import Sentences
from .config import Config
from .errors import UserError
from .model import Transformer
from .prepare import Prepared


def model_of(config: Config, prepared: Prepared) -> Transformer:
    sizes = {side: len(tokens) for side, tokens in prepared.vocabulary.items()}
    longest = config.data.max_length + 2  # a tag and </s>
    return Transformer(sizes["source"], sizes["target"], longest, **config.model.model_dump())


def prior_of(config: Config, sizes: dict[str, int], data: dict[str, Sentences]) -> Mixture:
    settings = config.mixture
    if settings.prior == "explicit":
        total = math.fsum(settings.probabilities.values())
        return Mixture({name: settings.probabilities[name] / total for name in sizes})
    if settings.prior == "temperature":
        return Mixture.temperature(sizes, settings.temperature)
    if settings.prior == "uniform":
        return Mixture.uniform(sizes)
    if settings.prior == "unimax":
        return Mixture.unimax(sizes, planned_sentences(config, data), settings.max_passes)
    return Mixture.proportional(sizes)


def planned_sentences(config: Config, data: dict[str, Sentences]) -> float:
    """How many sentence pairs the whole training will see."""
    total = sum(len(sentences) for sentences in data.values())
    return planned_steps(config, data) * config.train.tokens / (_all_tokens(data) / total)


def planned_steps(config: Config, data: dict[str, Sentences]) -> float:
    by_epochs = config.train.max_epochs * _all_tokens(data) / config.train.tokens
    return min(by_epochs, config.train.max_steps or by_epochs)


def _all_tokens(data: dict[str, Sentences]) -> float:
    return sum(float(sentences.lengths.sum()) for sentences in data.values())


def constant_rewards(alignment: Alignment, weights: Tensor) -> Tensor:
    """The control: what of a gain is only the drift from the prior towards uniform?"""
    return torch.ones(len(alignment.train_names))


def learning_rate(peak: float, warmup: int, start: float, step: int) -> float:
    """Linear from `start` over the warm-up, then with the inverse square root of the step, counted from 1."""
    if step <= warmup:
        return start + (peak - start) * step / warmup
    return peak * math.sqrt(max(warmup, 1) / step)


def device_of(config: Config) -> torch.device:
    wanted = config.train.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"[train] device = {wanted!r} cannot be used here: {first}") from None
    if config.train.precision == "bfloat16" and device.type == "cpu" and (reason := bfloat16.refusal()):
        raise UserError(f'[train] precision = "bfloat16" {reason}')
    return device


@contextlib.contextmanager
def compiler_errors() -> Iterator[None]:
    """A missing compiler shows at the first step of compiled layers."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ not in ("InductorError", "BackendCompilerFailed"):  # torch._dynamo imports slowly
            raise
        reason = next(line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:"))
        raise UserError(
            f"[train] compile = true: {reason}. torch.compile needs a C++ compiler on a CPU, Triton on a GPU."
        ) from None
