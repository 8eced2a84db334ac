"""How this process asks its system for memory."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of glibc's mallopt


def keep_freed_memory() -> bool:
    """Lets the C library keep what is freed, and returns whether it does.

    A pass over a batch allocates and frees megabytes of activations. By default glibc gives
    them back to the system each time, which then has to clear the same pages again for the next
    pass. Results do not change. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    largest = 32 * 2**20  # beyond this a block is always mapped on its own
    return bool(mallopt(_MMAP_THRESHOLD, largest) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
