"""Freed memory, kept for the next step instead of being returned to the system. Linux with glibc only.

glibc returns large blocks as soon as they are free, and the next step pays for every page again. A training needs the
same blocks at every step. Does not import torch.
"""

import ctypes
import os
import platform

SWITCH = "MULTIDDS_KEEP_MEMORY"  # 0: leave glibc as it is
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_THEIRS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Sets the thresholds of malloc, unless SWITCH is 0 or the user has set them, and returns whether it did."""
    if os.environ.get(SWITCH) == "0" or any(name in os.environ for name in _THEIRS):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Blocks above the second threshold are still mapped one by one; old versions of glibc refuse more than 32 MB.
    blocks = any(mallopt(_MMAP_THRESHOLD, size) for size in (2**30, 2**25))
    return bool(blocks and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
