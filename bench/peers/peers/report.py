"""Medians, ratios, tables, and the machine that they are of."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Series:
    """What one way of doing something took, round by round."""

    rival: str
    way: str
    # Seconds, one number a round.
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.rival}: {self.way}" if self.way else self.rival

    def times(self, other: Series) -> float:
        """By how much this is slower than another: the median over rounds, each against the same round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.wall, other.wall, strict=True))


def micro(seconds: Sequence[float]) -> str:
    return f"{1e6 * statistics.median(seconds):.1f}" if seconds else "-"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, legible as it is."""
    wide = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, wide, strict=True)) + " |"

    return "\n".join([line(headings), "|" + "|".join("-" * (width + 2) for width in wide) + "|", *map(line, rows)])


def machine() -> dict[str, Any]:
    """The machine, and how busy it is with other things."""
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
