"""The time from the start of a connector until it serves, in a region that no process has touched."""

from __future__ import annotations

import time
from pathlib import Path

import cenote
from gpu.cards import Card
from gpu.product import LLAMA, Case
from gpu.report import GIB, Report, rate

TOKENS = 1024


def measure(report: Report, card: Card, name: str, size: int) -> None:
    """Makes a region, saves and loads a prompt while it is being page-locked, and waits for the end of that."""
    begun = time.perf_counter()
    try:
        cenote.Region.create(name, size, chunk_size="32MiB")
        created = time.perf_counter() - begun
        with cenote.Region.open(name, worker="bench-gpu") as region:
            begun = time.perf_counter()

            def now() -> float:
                return round(time.perf_counter() - begun, 3)

            case = Case(card, region, LLAMA, "direct", TOKENS, waits=False)
            made = now()
            names = case.names()
            saved = case.save(names)
            loaded = case.load(names)
            # The comparison of its bytes is no part of serving it.
            served = round(loaded.ended - begun, 3)
            is_locked = case.kv.wait_locked(60)
            locked = now()
            case.close()
    finally:
        Path("/dev/shm", name.removeprefix("shm:")).unlink(missing_ok=True)
    report.add(
        "start", GiB=round(size / GIB, 1), created_s=round(created, 3), memory_made_s=made, served_s=served,
        save_GBps=rate(case.size, saved.seconds), load_GBps=rate(case.size, loaded.seconds), locked_s=locked if is_locked else None,
        locking_s_per_GiB=round(locked * GIB / size, 3), equal=saved.is_right and loaded.is_right,
    )  # fmt: skip
