"""Where a training runs: the device that its config asks for, whether it can do what is wanted of it, and the compiler.

What cannot be used is one sentence with the key that asks for it.
"""

import contextlib
from collections.abc import Iterator

import torch

from . import bfloat16
from .config import Config
from .errors import UserError


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
