"""Prints what saves and loads cost an engine's thread and the interpreter, with the fake driver, and a verdict for each bound.

`PYTHONPATH=crates/py/tests python bench/gpu/steps.py`, with the package installed and the driver that `fake_device.library` names. It
is no test: it reads a clock. Fails if a bound is exceeded."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fake_device import FakeDevice
from test_device import interpreter_calls

import cenote
from cenote.device import PageLayout

LAYERS, PAGE, BLOCKS, TURNS = 32, 4096, 256, 9
REQUESTS = 32
SAVE_MS_MAX = 1.0
CALLS_MAX = 8
SLOWER_MAX = 2.0
SECONDS = 60.0


class Bounds:
    """Verdicts, each in a line."""

    failed = False

    def hold(self, what: str, figure: float, most: float, unit: str) -> None:
        is_held = figure <= most
        self.failed |= not is_held
        print(f"{'held' if is_held else 'EXCEEDED'}: {what}: {figure:.3g} {unit}, at most {most:g}")


def main() -> int:
    name, bounds = f"cenote-costs-{uuid.uuid4().hex[:8]}", Bounds()
    cenote.Region.create(f"shm:{name}", "1GiB")
    try:
        with cenote.Region.open(f"shm:{name}", worker="costs") as region:
            for buffer, how in ((64 << 20, "gathered"), (0, "page by page")):
                saves(region, buffer, how, bounds)
            with publishing(region):
                saves(region, 64 << 20, "gathered, beside a publisher in another process", None)
            loads(region, bounds)
    finally:
        Path("/dev/shm", name).unlink()
    return int(bounds.failed)


def memory_on(device: FakeDevice, region: cenote.Region, buffer: int) -> cenote.device.DeviceMemory:
    layout = PageLayout(PAGE, ((0, PAGE),), BLOCKS)
    layers = [(device.base + layer * BLOCKS * PAGE, layout) for layer in range(LAYERS)]
    return device.of(region, layers, gpu_buffer_bytes=buffer, scatter_below=1 << 20)


def saves(region: cenote.Region, buffer: int, how: str, bounds: Bounds | None) -> None:
    """One save at the end of a step, of one new block of each request."""
    device = FakeDevice(LAYERS * BLOCKS * PAGE)
    memory = memory_on(device, region, buffer)
    blocks = region.namespace(how.encode(), LAYERS * PAGE)
    for requests in (1, 4, 16, REQUESTS, 64):
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
            wait_for_saves(device, memory, requests)
        took, longest = statistics.median(times) * 1e3, max(times) * 1e3
        print(f"{how}: one save of {requests} requests: {took:.2f} ms (longest {longest:.2f}), {calls} calls of the driver")
        # Beside another process the scheduler decides, so there is no bound.
        if requests == REQUESTS and bounds is not None:
            bounds.hold(f"engine's time in a save of {requests} requests, {how}", took, SAVE_MS_MAX, "ms")
    memory.close()


# Publishes blocks of the size of `saves` until its input ends. The region is full soon, so it evicts too.
_PUBLISHER = f"""
import select, sys, cenote
with cenote.Region.open(sys.argv[1], worker="publisher") as region:
    blocks, number = region.namespace(b"beside", {LAYERS * PAGE}), 0
    payload = bytes({LAYERS * PAGE})
    while not select.select([sys.stdin], [], [], 0)[0]:
        names = blocks.alias([f"{{number}} {{at}}".encode() for at in range(64)])
        blocks.publish_all(names, range(64), [payload] * 64)
        number += 1
        if number == 1:
            print("published", flush=True)
"""


@contextmanager
def publishing(region: cenote.Region) -> Iterator[None]:
    """A process that publishes without pause."""
    command = [sys.executable, "-c", _PUBLISHER, region.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "published\n":
            raise RuntimeError("the publisher published nothing")
        try:
            yield
        finally:
            process.stdin.close()


def wait_for_saves(device: FakeDevice, memory: cenote.device.DeviceMemory, count: int) -> None:
    saved, ends = 0, time.monotonic() + SECONDS
    while saved < count:
        if time.monotonic() > ends:
            raise TimeoutError(f"{saved} of {count} blocks were saved within {SECONDS:g} s")
        saved += sum(memory.take_outcomes().values())
        device.run()


def loads(region: cenote.Region, bounds: Bounds) -> None:
    """Loads alone, and beside a thread that runs Python without pause."""
    device = FakeDevice(LAYERS * BLOCKS * PAGE)
    memory = memory_on(device, region, 64 << 20)
    blocks = region.namespace(b"loads", LAYERS * PAGE)
    names = blocks.hash_tokens(list(range(16 * BLOCKS)), 16)
    memory.save([(blocks, names, list(range(BLOCKS)), list(range(BLOCKS)), None, 0)])
    wait_for_saves(device, memory, BLOCKS)

    def load(count: int) -> None:
        begun = memory.load(blocks.lookup(names[:count]), range(count))
        if not begun.wait(SECONDS) or begun.failed():
            raise RuntimeError(f"a load of {count} blocks failed")

    calls = {count: interpreter_calls(partial(load, count)) for count in (1, 32, BLOCKS)}
    print(f"one load: interpreter's calls by blocks: {calls}")
    bounds.hold("interpreter's calls of a load, whatever its blocks", max(calls.values()), CALLS_MAX, "calls")

    def taken() -> float:
        begun = time.perf_counter()
        load(BLOCKS)
        return 1e3 * (time.perf_counter() - begun)

    alone = statistics.median(taken() for _ in range(TURNS))
    with spinning():
        beside = statistics.median(taken() for _ in range(TURNS))
    print(f"one load of {BLOCKS} blocks: {alone:.1f} ms, beside a Python thread without pause {beside:.1f} ms")
    bounds.hold("that load beside the thread", beside / alone, SLOWER_MAX, "times as long")
    memory.close()


@contextmanager
def spinning() -> Iterator[None]:
    """A thread that runs Python without pause."""
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
