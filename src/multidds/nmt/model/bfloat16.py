"""The use of bfloat16 on this CPU, decided by a trial in a child process. Does not import torch.

Some virtual machines report AMX and do not grant it. oneDNN relies on the report, and torch's product of two bfloat16
matrices ends the process with an illegal instruction. It works if oneDNN is kept from AMX before its first product.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from multidds._base.errors import UserError

# The answer, for this process and those that it starts: "works", "limited" (works if oneDNN is kept from AMX) or
# "never". Set by hand, it takes the place of the trial.
ANSWER = "MULTIDDS_BFLOAT16"
LIMIT = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # everything below AMX
CPU_FLAGS = Path("/proc/cpuinfo")
# Large enough for oneDNN to choose the kernels that training would reach: products, batches of them, and backward.
TRIAL = """
import torch

a = torch.ones(256, 256)
layer = torch.nn.Linear(256, 256)
with torch.autocast("cpu", dtype=torch.bfloat16):
    torch.bmm(layer(a).view(4, 64, 256), a.expand(4, 256, 256)).sum().backward()
b = a.bfloat16()
b @ b
"""


def answer() -> str:
    """Makes the trial, once in a tree of processes and only if the CPU may have AMX, and returns its result."""
    found = os.environ.get(ANSWER)
    if found not in ("works", "limited", "never"):
        found = "works" if not may_have_amx() or survives() else "limited" if survives(LIMIT) else "never"
        os.environ[ANSWER] = found
    return found


def refusal() -> str | None:
    """Returns the reason why this process cannot use bfloat16 on its CPU, with a remedy; None if it can."""
    found, (name, value) = answer(), LIMIT
    if found == "works" or (found == "limited" and os.environ.get(name) == value):
        return None
    if found == "limited":
        return f"ends the process on this CPU, whose AMX is not granted; set {name}={value} before Python starts."
    return "ends the process on this CPU, with and without AMX; use float32."


def limit_onednn(say: Callable[[str], None]) -> None:
    """Keeps oneDNN from AMX if that helps, before torch is imported, and says so."""
    if "torch" in sys.modules or refusal() is None:
        return
    name, value = LIMIT
    if answer() == "never":
        raise UserError(f'[train] precision = "bfloat16" {refusal()}')
    os.environ[name] = value
    say(f"bfloat16: this CPU reports AMX but the system does not grant it; going on with {name}={value}")


def may_have_amx() -> bool:
    """Returns whether the CPU reports AMX; True if the system does not report such features."""
    try:
        return "amx" in CPU_FLAGS.read_text(encoding="utf-8")
    except OSError:
        return True


def survives(limit: tuple[str, str] | None = None) -> bool:
    """Returns whether a child process gets through the trial, with a limit for oneDNN in its environment or without."""
    environment = os.environ | (dict([limit]) if limit else {})
    done = subprocess.run([sys.executable, "-c", TRIAL], env=environment, capture_output=True)
    return done.returncode == 0
