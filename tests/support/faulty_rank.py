"""The command line in a launched process, with faults: FAULTS = {restart: [[rank, place, step, what], ...]}.

place: a method of the training or of its balancer, "step", "update", "validate", "save" or "_optimizer" (while the
training is being made); step: in or after which one; what: "kill", or seconds until the system ends the process in the
middle of whatever it does; "poison" (a weight that is not finite), "full" (files may not grow),
"ENOSPC" (an error that says so), a signal, or "slow".
"""

import errno
import json
import math
import os
import resource
import signal
import time

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as the command does before it imports torch

import torch

from multidds import Balancer
from multidds.nmt.commands import cli
from multidds.nmt.training.train import Training

SLOW = float(os.environ.get("SLOW", "3"))  # seconds


def strike(what, training):
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif isinstance(what, float):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(what, 1e-6))
    elif what == "poison":
        with torch.no_grad():
            training.model.encoder_norm.g.fill_(math.nan)
    elif what == "full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    elif what == "ENOSPC":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data")
    elif what == "slow":
        time.sleep(SLOW)
    else:
        os.kill(os.getpid(), getattr(signal, what))


def inject(rank, place, step, what):
    owner, name = (Balancer, "_update") if place == "update" else (Training, place)
    original = getattr(owner, name)

    def faulty(self, *arguments):
        at = arguments[0] if place == "update" else 0 if place == "_optimizer" else self.progress.step
        if at == step and os.environ["RANK"] == str(rank):
            strike(what, self)
        return original(self, *arguments)

    setattr(owner, name, faulty)


if __name__ == "__main__":
    faults = json.loads(os.environ.get("FAULTS", "{}"))
    for fault in faults.get(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), []):
        inject(*fault)
    cli.main()
