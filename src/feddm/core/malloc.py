"""Tunes how the C library allocates memory for this process."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # constants of glibc's mallopt


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory, and returns whether that worked.

    A pass over a batch allocates and frees megabytes of activations. By default, glibc returns
    them to the system each time, which then has to clear the same pages for the next pass.
    Results do not change. Does nothing with other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    largest = 32 * 2**20  # larger blocks are always mapped separately
    return bool(mallopt(_MMAP_THRESHOLD, largest) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))
