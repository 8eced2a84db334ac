"""Human-readable numbers, formatted the same in the terminal and in reports."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """Returns a fraction as a percentage.

    >>> percent(0.98765), percent(math.nan)
    ('98.77 %', 'unknown')
    """
    return "unknown" if math.isnan(share) else f"{100 * share:.2f} %"


def size_text(num_bytes: float) -> str:
    """Returns a number of bytes in a suitable unit.

    >>> size_text(312), size_text(97_660), size_text(12_800_400)
    ('312 B', '97.7 kB', '12.8 MB')
    """
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if num_bytes < 999.95 * size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e9:.1f} GB"


def time_text(seconds: float) -> str:
    """Returns a duration in a suitable unit.

    >>> time_text(0.0123), time_text(42.31), time_text(754), time_text(9000)
    ('0.012 s', '42.3 s', '12.6 min', '2.5 h')
    """
    if seconds < 1:
        return f"{seconds:.2g} s"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 99.95 * 60:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
