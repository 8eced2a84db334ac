"""A curve in a terminal, drawn with Braille dots."""

from __future__ import annotations

import math
from collections.abc import Sequence

MARGIN = 9  # characters for the numbers beside the curve
# Bits of the eight dots of a Braille character, by row and column.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def curve(
    accuracies: Sequence[float],
    rounds: int,
    width: int,
    height: int,
    *,
    ascii_only: bool = False,
) -> list[str]:
    """Returns the lines of an accuracy curve, wide enough for all planned rounds.

    >>> for row in curve([0.5, 0.75, 1.0], 3, 13, 3, ascii_only=True):
    ...     print(row)
     100.0 % |  *
             | *
      50.0 % |*
    """
    known = [(n, value) for n, value in enumerate(accuracies) if math.isfinite(value)]
    if not known:
        return []
    low, high = min(v for _, v in known), max(v for _, v in known)
    if high - low < 0.001:
        low, high = low - 0.005, high + 0.005
    columns = width - MARGIN - 1
    across, down = (1, 1) if ascii_only else (2, 4)
    right, bottom = across * columns - 1, down * height - 1

    def place(number: float, value: float) -> tuple[int, int]:
        x = number / max(rounds - 1, 1) * right
        return round(x), round((high - value) / (high - low) * bottom)

    grid = [[0] * columns for _ in range(height)]
    for (n, value), (m, other) in zip(known, known[1:] or known, strict=False):
        (x, y), (end, last) = place(n, value), place(m, other)
        steps = max(abs(end - x), abs(last - y), 1)
        for step in range(steps + 1):
            column = x + round((end - x) * step / steps)
            row = y + round((last - y) * step / steps)
            dot = DOTS[row % down][column % across]
            grid[row // down][column // across] |= dot
    labels = {0: f"{100 * high:.1f} %", height - 1: f"{100 * low:.1f} %"}
    edge = "|" if ascii_only else "│"
    lines = []
    for number, bits in enumerate(grid):
        drawn = "".join(_character(each, ascii_only) for each in bits)
        lines.append(f"{labels.get(number, ''):>{MARGIN - 1}} {edge}{drawn}".rstrip())
    return lines


def _character(bits: int, ascii_only: bool) -> str:
    if ascii_only or not bits:
        return "*" if bits else " "
    return chr(0x2800 + bits)
