"""Plain text for people: aligned columns, percentages, short lists. Knows nothing of what is in them."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows, a header first, as lines with two spaces between the columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def percent(share: float) -> str:
    """ "98.76%"; never rounded up to all of it."""
    return f"{int(share * 10_000 + 1e-6) / 100:.2f}%"


def shortened(names: Sequence[str], most: int) -> str:
    """The first so many names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def device_range(names: Sequence[str]) -> str:
    """ "n0/0-3, n1/0" for n0/0, n0/1, n0/2, n0/3, n1/0: runs of numbers on one node."""
    runs: list[tuple[str, int, int]] = []
    for name in names:
        node, _, number = name.rpartition("/")
        index = int(number)
        if runs and runs[-1][0] == node and runs[-1][2] == index - 1:
            runs[-1] = (node, runs[-1][1], index)
        else:
            runs.append((node, index, index))
    return ", ".join(f"{node}/{first}" + (f"-{last}" if last > first else "") for node, first, last in runs)
