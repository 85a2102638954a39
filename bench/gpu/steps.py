"""Prints the engine's time for the save at the end of a step, with the fake driver. Not a test: it reads a clock.

`PYTHONPATH=crates/py/tests python bench/gpu/steps.py`, with the package installed and the driver that `fake_device.library` names."""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path

from fake_device import FakeDevice

import cenote
from cenote.device import PageLayout

LAYERS, PAGE, BLOCKS, TURNS = 32, 4096, 256, 9


def main() -> None:
    name = f"cenote-costs-{uuid.uuid4().hex[:8]}"
    cenote.Region.create(f"shm:{name}", "1GiB")
    try:
        with cenote.Region.open(f"shm:{name}", worker="costs") as region:
            for buffer, how in ((64 << 20, "gathered"), (0, "page by page")):
                measure(region, buffer, how)
    finally:
        Path("/dev/shm", name).unlink()


def measure(region: cenote.Region, buffer: int, how: str) -> None:
    device = FakeDevice(LAYERS * BLOCKS * PAGE)
    layout = PageLayout(PAGE, ((0, PAGE),), BLOCKS)
    layers = [(device.base + layer * BLOCKS * PAGE, layout) for layer in range(LAYERS)]
    memory = device.of(region, layers, gpu_buffer_bytes=buffer)
    blocks = region.namespace(how.encode(), LAYERS * PAGE)
    for requests in (1, 4, 16, 32, 64):
        times, calls = [], 0
        for turn in range(TURNS):
            names = [blocks.alias([f"{requests} {turn} {number}".encode()]) for number in range(requests)]
            # The fake executes work in other threads' calls, and this one's would wait for that.
            device.hold(FakeDevice.FROM_GPU, FakeDevice.ENGINE)
            before = device.driver.fake_calls_of_this_thread()
            begun = time.perf_counter()
            memory.save([(blocks, names[number], [turn], [number], [1], 0) for number in range(requests)])
            times.append(time.perf_counter() - begun)
            calls = device.driver.fake_calls_of_this_thread() - before
            device.hold()
            saved = 0
            while saved < requests:
                saved += sum(memory.take_outcomes().values())
                device.run()
        print(f"{how}: one save of {requests} requests: {statistics.median(times) * 1e3:.2f} ms, {calls} calls of the driver")
    memory.close()


if __name__ == "__main__":
    main()
