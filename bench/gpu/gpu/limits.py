"""The link's limits: page-locked copies of 1 GiB, and the time of page-locking."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from typing import Any

from gpu.cards import Card, Cuda
from gpu.report import GIB, Report, Skip, rate


def link(report: Report, card: Card) -> None:
    """Copies of 1 GiB from and to page-locked memory: each way alone, then both at once."""
    if not isinstance(card, Cuda):
        raise Skip("the tests' driver has no link")
    torch = card.torch
    here = [torch.empty(GIB, dtype=torch.uint8, pin_memory=True).fill_(3) for _ in range(2)]
    there = [torch.empty(GIB, dtype=torch.uint8, device=card.where) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def load() -> None:
        with torch.cuda.stream(streams[0]):
            there[0].copy_(here[0], non_blocking=True)

    def save() -> None:
        with torch.cuda.stream(streams[1]):
            here[1].copy_(there[1], non_blocking=True)

    for way, copy, stream in (("load", load, streams[0]), ("save", save, streams[1])):
        report.add("link", way=way, GBps=rate(GIB, card.seconds(copy, stream, 5)))
    best = float("inf")
    for _ in range(4):
        card.synchronize()
        begun = time.perf_counter()
        load()
        save()
        card.synchronize()
        best = min(best, time.perf_counter() - begun)
    report.add("link", way="both", GBps=rate(2 * GIB, best))


def of(report: Report) -> dict[str, float]:
    """The limits by way, in GB/s; empty if there are none."""
    return {record["way"]: record["GBps"] for record in report.parts.get("link", [])}


def page_locking(report: Report, card: Card) -> None:
    """Seconds a GiB of page-locking shared memory that was never touched, and that was."""
    if not isinstance(card, Cuda):
        raise Skip("the tests' driver locks no pages")
    for is_touched in (False, True):
        record = _lock(card, 2 * GIB, is_touched)
        report.add("page locking", GiB=2, touched=is_touched, **record)


def _lock(card: Cuda, size: int, is_touched: bool) -> dict[str, Any]:
    path = f"/dev/shm/cenote-bench-{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(file, size)
        with mmap.mmap(file, size) as memory:
            buffer = (ctypes.c_uint8 * size).from_buffer(memory)
            address, runtime = ctypes.addressof(buffer), card.torch.cuda.cudart()
            try:
                if is_touched:
                    ctypes.memset(address, 1, size)
                begun = time.perf_counter()
                error = runtime.cudaHostRegister(address, size, 0)
                seconds = time.perf_counter() - begun
                if int(error) != 0:
                    return {"error": str(error)}
                runtime.cudaHostUnregister(address)
            finally:
                del buffer
            return {"seconds_per_GiB": round(seconds * GIB / size, 3)}
    finally:
        os.close(file)
        os.unlink(path)
