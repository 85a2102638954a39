"""Medians, ratios, tables, and facts of the machine."""

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
    """Costs of one mode of a rival, per round."""

    rival: str
    way: str
    # Seconds, one number per round.
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.rival}: {self.way}" if self.way else self.rival

    def times(self, other: Series) -> float:
        """The slowdown relative to `other`: the median over rounds of the ratio in one round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.wall, other.wall, strict=True))


def micro(seconds: Sequence[float]) -> str:
    return f"{1e6 * statistics.median(seconds):.1f}" if seconds else "-"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns."""
    wide = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, wide, strict=True)) + " |"

    return "\n".join([line(headings), "|" + "|".join("-" * (width + 2) for width in wide) + "|", *map(line, rows)])


def machine() -> dict[str, Any]:
    """Facts of the machine, with its load average."""
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
