"""What a run measured and what it left out. The file is written after each part, so a killed run leaves the parts before."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

GIB = 1 << 30


class Skip(Exception):  # noqa: N818
    """A part that this machine cannot run. The text says why."""


class Report:
    """Records by part, with the time that is left."""

    def __init__(self, seconds: float, file: Path | None) -> None:
        self._until, self._file = time.monotonic() + seconds, file
        self.parts: dict[str, list[dict[str, Any]]] = {}
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self._until - time.monotonic()

    def add(self, part: str, **record: Any) -> None:
        """Adds a record, and shows it on standard error."""
        self.parts.setdefault(part, []).append(record)
        print(f"{part}: {json.dumps(record)}", file=sys.stderr, flush=True)

    def run(self, name: str, seconds: float, part: Callable[[], None]) -> None:
        """Runs a part that takes about so many seconds, unless they are not left. Its failure ends no other part."""
        if self.left < seconds:
            self.skipped[name] = f"it takes about {seconds:.0f} s, and {max(self.left, 0):.0f} s are left"
        else:
            try:
                part()
            except Skip as reason:
                self.skipped[name] = str(reason)
            except Exception as error:
                self.failed[name] = f"{type(error).__name__}: {error}"
                traceback.print_exc()
        self.write([])

    def write(self, goals: list[dict[str, Any]]) -> str:
        """The report as JSON, which is also written to the file."""
        text = json.dumps({"parts": self.parts, "skipped": self.skipped, "failed": self.failed, "goals": goals}, indent=1)
        if self._file is not None:
            self._file.write_text(text)
        return text


def rate(size: int, seconds: float) -> float:
    """GB (10^9 bytes) a second."""
    return round(size / seconds / 1e9, 2)


def cpu_seconds() -> float:
    """Processor time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def machine() -> dict[str, Any]:
    """Facts of the machine that need no GPU."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in cpuinfo if "model name" in line]
    shm = os.statvfs("/dev/shm")
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "shm_free_GiB": round(shm.f_bavail * shm.f_frsize / GIB, 1),
        "shmem_huge_pages": setting.read_text().strip() if setting.exists() else None,
        "hugetlb_2MiB_free": _number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
    }


def _number(path: str) -> int | None:
    file = Path(path)
    return int(file.read_text()) if file.exists() else None
