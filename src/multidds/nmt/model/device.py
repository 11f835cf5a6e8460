"""The device of a training, by its config, with one sentence for a device, precision or compiler that is missing."""

import contextlib
import os
from collections.abc import Iterator

import torch

from multidds._base.errors import UserError

from ..config.config import Config
from . import bfloat16


def device_of(config: Config, processes: int = 1) -> torch.device:
    """Returns the device of this process.

    processes: the number of processes of the training.
    """
    wanted = config.train.device
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if processes > 1:
        wanted = _own(wanted)
    try:
        device = torch.device(wanted)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"[train] device = {wanted!r} cannot be used here: {first}") from None
    if processes > 1 and device.type == "cuda":
        torch.cuda.set_device(device)  # of collectives too
    if config.train.precision == "bfloat16" and device.type == "cpu" and (reason := bfloat16.refusal()):
        raise UserError(f'[train] precision = "bfloat16" {reason}')
    return device


def _own(wanted: str) -> str:
    """Returns the device of one of several processes: a GPU for each of a machine, or its CPU for all."""
    if wanted == "cuda":
        place, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= count:
            raise UserError(f"process {place} of this machine has no GPU: there are {count}. Start so many processes.")
        return f"cuda:{place}"
    if wanted != "cpu":
        raise UserError(
            f'[train] device = {wanted!r} cannot be shared by several processes; "auto" gives each its own GPU.'
        )
    return wanted


@contextlib.contextmanager
def compiler_errors() -> Iterator[None]:
    """Turns the error of a missing compiler, at the first step of compiled layers, into a UserError."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ not in ("InductorError", "BackendCompilerFailed"):  # torch._dynamo imports slowly
            raise
        reason = next(line for line in str(error).splitlines() if line.strip() and not line.endswith("raised:"))
        raise UserError(
            f"[train] compile = true: {reason}. torch.compile needs a C++ compiler on a CPU, Triton on a GPU."
        ) from None
