"""How the processes of a test with several ranks end."""

import os

import torch.distributed as dist


def leave():
    """Together, and without taking gloo's group apart: torch can wait there for a thread that waits for "
    "the GIL."""
    dist.barrier()
    os._exit(0)
