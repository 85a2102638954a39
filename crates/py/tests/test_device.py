"""KV memory on a GPU of the fake driver: the engine uses only saved bytes under any order and any fault."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import pytest
from fake_device import FakeDevice, library
from waiting import PATIENCE, until

import cenote
from cenote.device import PageLayout

LAYERS, BLOCKS, RUN = 3, 96, 512
PAGE = 2 * RUN
BLOCK = LAYERS * PAGE
SLOTS = 24
# With kernels in the direct way, and in pieces; without them in `pages`.
WAYS = ("direct", "pieces", "pages", "staged", "unregistered")
COPY = "cuMemcpyBatchAsync"


class Engine:
    """An engine on a fake GPU. Each layer has separate tensors of keys and of values."""

    def __init__(self, region: cenote.Region, seed: int = 0, way: str = "direct", is_locked: bool = True) -> None:
        self.device = FakeDevice(LAYERS * BLOCKS * PAGE, seed)
        self.device.call("gate", b"cuMemHostRegister", not is_locked)
        if way not in ("direct", "pages"):
            self.device.call("register_max", {"pieces": 53248, "staged": 0, "unregistered": 0}[way])
        layout = PageLayout(RUN, ((0, RUN), (BLOCKS * RUN, RUN)), BLOCKS)
        layers = [(self.device.base + layer * BLOCKS * PAGE, layout) for layer in range(LAYERS)]
        self.memory = (self.device.of if is_locked else self.device.locking)(
            region, layers, staging_bytes=SLOTS * BLOCK, staged=way == "staged", piece_bytes=53248,
            gpu_buffer_bytes=0 if way == "pages" else 256 * BLOCK,
        )  # fmt: skip
        self.has_kernels = way in ("direct", "pieces") and region.info()["seal"] == "none"
        # If no piece of the region can be locked, kernels have nothing to do.
        if way != "unregistered":
            assert bool(self.memory.why_no_kernels) != self.has_kernels, self.memory.why_no_kernels

    def places(self, layer: int, block: int) -> list[int]:
        at = (layer * 2 * BLOCKS + block) * RUN
        return [at, at + BLOCKS * RUN]

    def fill(self, layer: int, block: int, content: bytes) -> None:
        """Queues a write of a page on the engine's stream."""
        for half, at in enumerate(self.places(layer, block)):
            self.device.engine_writes(at, content[half * RUN : (half + 1) * RUN])

    def page(self, layer: int, block: int) -> bytes:
        return b"".join(self.device.read(at, RUN) for at in self.places(layer, block))

    def used(self, layer: int, block: int) -> Callable[[], bytes]:
        """Queues a read of a page on the engine's stream, and returns what it found."""
        found = [self.device.engine_reads(at, RUN) for at in self.places(layer, block)]
        return lambda: b"".join(half.raw for half in found)

    def compute(self, places: Sequence[int]) -> None:
        """A step that fills blocks."""
        for layer in range(LAYERS):
            for number, place in enumerate(places):
                self.fill(layer, place, content(layer, number))

    def outcomes(self, count: int) -> dict[str, int]:
        """Waits for the outcomes of so many blocks."""
        came: Counter[str] = Counter()

        def all_known() -> bool:
            came.update(self.memory.take_outcomes())
            return came.total() >= count

        self.device.run_until(f"the outcomes of {count} blocks", all_known)
        return dict(came)

    def close(self) -> None:
        assert self.memory.close(PATIENCE)
        assert not self.device.wrong, self.device.wrong
        # All memory is unregistered and freed.
        assert not self.device.locked
        assert not self.device.call("allocations")
        assert self.memory.close(0), "a second close has no effect"


def content(layer: int, number: int) -> bytes:
    return random.Random(layer * 1000 + number).randbytes(PAGE)


@pytest.fixture
def blocks(region: cenote.Region) -> cenote.Namespace:
    return region.namespace(b"model", BLOCK)


@pytest.fixture
def engine(region: cenote.Region) -> Iterator[Engine]:
    engine = Engine(region)
    yield engine
    engine.close()


def names_of(blocks: cenote.Namespace, count: int) -> cenote.Hashes:
    return blocks.hash_tokens(list(range(16 * count)), 16)


def save_step(engine: Engine, blocks: cenote.Namespace, places: Sequence[int]) -> cenote.Hashes:
    """A step that fills blocks and saves them."""
    names = names_of(blocks, len(places))
    engine.compute(places)
    engine.memory.save([(blocks, names, range(len(places)), places, None, 0)])
    return names


def save_all(region: cenote.Region, blocks: cenote.Namespace, count: int, seed: int = 0, way: str = "direct") -> cenote.Hashes:
    engine = Engine(region, seed, way)
    names = save_step(engine, blocks, random.Random(seed).sample(range(BLOCKS), count))
    assert engine.outcomes(count) == {"published": count}
    assert blocks.count(names) == count
    assert engine.memory.take_errors() == []
    engine.close()
    return names


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_a_device_loads_the_blocks_that_another_saved(region: cenote.Region, blocks: cenote.Namespace, way: str, seed: int) -> None:
    count = 20 + 5 * seed
    names = save_all(region, blocks, count, seed, way)
    engine = Engine(region, seed + 100, way)
    assert bool(engine.memory.why_staged) == (way in ("staged", "unregistered"))
    assert engine.memory.free_slots == SLOTS
    places = random.Random(seed + 100).sample(range(BLOCKS), count)
    # The load comes after the engine's queued work on these blocks.
    for place in places:
        engine.fill(0, place, bytes(PAGE))
    load = engine.memory.load(blocks.lookup(names), places)
    assert load.wait(PATIENCE)
    assert load.done
    assert load.failed() == []
    assert (engine.device.calls("cenote_sums") > 0) == engine.has_kernels
    used = [[engine.used(layer, place) for place in places] for layer in range(LAYERS)]
    engine.device.run()
    for layer in range(LAYERS):
        assert [found() for found in used[layer]] == [content(layer, number) for number in range(count)]
    engine.close()
    report = region.check(payloads=True)
    assert report["is_clean"], report
    assert (report["pinned"], report["reserved"]) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_may_reuse_blocks_when_the_step_is_over(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 5, way)
    engine.device.hold(FakeDevice.TO_GPU, FakeDevice.FROM_GPU, FakeDevice.ENGINE)
    names = save_step(engine, blocks, range(10))
    engine.memory.end_step()
    for place in range(10):
        for layer in range(LAYERS):
            engine.fill(layer, place, bytes(PAGE))
    engine.device.hold()
    engine.device.run_until("ten published blocks", lambda: blocks.count(names) == 10)
    back = bytearray(BLOCK)
    with blocks.lookup(names) as lease:
        for number in range(10):
            assert lease.read_into(number, back)
            assert bytes(back) == b"".join(content(layer, number) for layer in range(LAYERS))
    engine.close()


def spoil(address: int) -> None:
    """Flips a bit of memory."""
    byte = ctypes.c_uint8.from_address(address)
    byte.value ^= 1


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_block_is_reported(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 8)
    lease = blocks.lookup(names)
    view = lease.view(3, verify=False)
    assert view is not None
    spoil(view.extent[0] + BLOCK - 1)
    engine = Engine(region, 1, way)
    load = engine.memory.load(lease, range(8))
    assert load.wait(PATIENCE)
    assert load.failed() == [3]
    engine.device.run()
    if engine.memory.why_staged:
        assert engine.page(0, 3) == bytes(PAGE), "the device got no copy of the damaged block"
    assert engine.page(2, 4) == content(2, 4)
    engine.close()


@pytest.mark.parametrize("way", ["direct", "pages"])
@pytest.mark.parametrize("seed", range(8))
def test_a_block_that_changes_during_its_copy_is_a_miss(
    region: cenote.Region, blocks: cenote.Namespace, way: str, seed: int
) -> None:
    names = save_all(region, blocks, 8)
    engine = Engine(region, seed, way)
    lease = blocks.lookup(names)
    view = lease.view(5, verify=False)
    assert view is not None
    at = view.extent[0]
    # Within the copy: the device has old and new bytes.
    engine.device.spoil(at, BLOCK, at + seed * 100)
    load = engine.memory.load(lease, range(8))
    assert load.wait(PATIENCE)
    assert engine.device.call("spoiled")
    is_whole = all(engine.page(layer, 5) == content(layer, 5) for layer in range(LAYERS))
    # The GPU sums what arrived there, the processor what is in the region afterwards.
    assert load.failed() == ([] if engine.has_kernels and is_whole else [5])
    del view
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_engines_writes_come_after_a_cancelled_late_load(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 12)
    engine = Engine(region, 2, way)
    engine.device.hold(FakeDevice.TO_GPU)
    load = engine.memory.load(blocks.lookup(names), range(12))
    # The device has the copies, but the engine's stream does not wait for them yet.
    until("the copies of all blocks", lambda: engine.device.copies == 1)
    assert not load.wait(0)
    assert load.failed() == list(range(12))
    load.cancel()
    assert load.done
    assert load.failed() == list(range(12))
    # The engine computes the blocks instead, then the device resumes.
    for layer in range(LAYERS):
        for place in range(12):
            engine.fill(layer, place, bytes([7]) * PAGE)
    engine.device.run()
    assert engine.page(1, 1) == bytes(PAGE), "the engine's stream waits for the queued copies"
    assert region.check()["pinned"] == 12 or engine.memory.why_staged
    engine.device.hold()
    engine.device.run_until("the end of the device's work", engine.device.idle)
    for layer in range(LAYERS):
        assert all(engine.page(layer, place) == bytes([7]) * PAGE for place in range(12))
    engine.close()
    assert region.check()["pinned"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["cuStreamWaitEvent", COPY])
@pytest.mark.parametrize("after", range(3))
def test_failed_copies_are_misses(region: cenote.Region, blocks: cenote.Namespace, way: str, call: str, after: int) -> None:
    count = 80
    names = save_all(region, blocks, count)
    engine = Engine(region, 3, way)
    engine.device.fail(call, after)
    load = engine.memory.load(blocks.lookup(names), range(count))
    assert load.wait(PATIENCE)
    failed = load.failed()
    # Whole parts failed, also such of which the device has some copies.
    part = 12 if engine.memory.why_staged else 32
    assert failed == [number for number in range(count) if number in failed or number // part * part in failed]
    assert failed
    assert engine.memory.take_errors()
    engine.device.fail(call, (1 << 64) - 1)
    engine.memory.end_step()
    for layer in range(LAYERS):
        for place in failed:
            engine.fill(layer, place, bytes([9]) * PAGE)
    assert load.failed() == failed
    engine.device.run_until("the end of the device's work", engine.device.idle)
    good = [place for place in range(count) if place not in failed]
    assert all(engine.page(layer, place) == content(layer, place) for place in good for layer in range(LAYERS))
    # Parts whose end the device did not tell end when it does.
    engine.close()
    assert region.check()["pinned"] == 0


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_a_lost_device_may_write_stays_locked(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 6)
    engine = Engine(region, 3, way)
    engine.device.hold(FakeDevice.TO_GPU, FakeDevice.FROM_GPU)
    engine.device.fail("cuEventQuery", 3)
    load = engine.memory.load(blocks.lookup(names), range(6))
    assert load.wait(PATIENCE)
    assert load.failed() == list(range(6))
    others = blocks.alias([b"x" * 32])
    engine.memory.save([(blocks, others, [0], [9], None, 0)])
    assert engine.outcomes(1) == {"failed": 1}
    assert blocks.count(others) == 0
    locked = engine.device.locked
    assert locked
    assert not engine.memory.close(PATIENCE), "a lost part is no reason to wait"
    assert engine.device.locked == locked, "the device's memory stays locked"
    assert not engine.device.wrong


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", ["cuStreamWaitEvent", COPY])
def test_a_save_with_failed_copies_publishes_nothing(region: cenote.Region, blocks: cenote.Namespace, way: str, call: str) -> None:
    engine = Engine(region, 4, way)
    engine.device.fail(call)
    names = save_step(engine, blocks, range(4))
    assert engine.outcomes(4) == {"failed": 4}
    assert engine.memory.take_errors()
    assert blocks.count(names) == 0
    engine.device.fail(call, (1 << 64) - 1)
    # The next step's event on the engine's stream tells when the gather has ended.
    engine.memory.end_step()
    engine.close()
    assert region.check()["reserved"] == 0


def test_a_save_that_the_driver_refuses_at_once_is_counted(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    engine.device.fail("cuEventCreate")
    with pytest.raises(cenote.CenoteError, match=r"cuEventCreate: CUDA_ERROR_UNKNOWN \(999\)"):
        engine.memory.save([(blocks, names_of(blocks, 4), range(4), range(4), None, 0)])
    assert engine.memory.take_outcomes() == {"failed": 4}
    assert region.check()["reserved"] == 0
    names = save_all(region, blocks, 4)
    with pytest.raises(cenote.CenoteError, match="cuEventCreate"):
        engine.memory.load(blocks.lookup(names), range(4))
    assert region.check()["pinned"] == 0


def test_present_blocks_are_not_saved_again(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    names = save_all(region, blocks, 4)
    engine.memory.save([(blocks, names, range(4), range(4), None, 0)])
    assert engine.memory.take_outcomes() == {"duplicate": 4}


def test_saves_beyond_the_backlog_are_dropped(region: cenote.Region, blocks: cenote.Namespace) -> None:
    device = FakeDevice(BLOCKS * BLOCK)
    layout = PageLayout(BLOCK, ((0, BLOCK),), BLOCKS)
    memory = device.of(region, [(device.base, layout)], backlog_bytes=5 * BLOCK)
    device.hold(FakeDevice.FROM_GPU)
    names = names_of(blocks, 12)
    memory.save([(blocks, names[:4], range(4), range(4), None, 0)])
    memory.save([(blocks, names[4:], range(4, 12), range(4, 12), None, 0)])
    assert memory.take_outcomes() == {"busy": 7}
    device.hold()
    device.run_until("five published blocks", lambda: blocks.count(names) == 5)
    assert memory.close(PATIENCE)


def test_a_repeated_block_is_as_the_first_one(region: cenote.Region, blocks: cenote.Namespace) -> None:
    """Of eight blocks, the last three have no room in the backlog, and a second request has all of them too."""
    device = FakeDevice(BLOCKS * BLOCK)
    memory = device.of(region, [(device.base, PageLayout(BLOCK, ((0, BLOCK),), BLOCKS))], backlog_bytes=5 * BLOCK)
    device.hold(FakeDevice.FROM_GPU)
    order = (blocks, names_of(blocks, 8), range(8), range(8), None, 0)
    memory.save([order, order])
    assert memory.take_outcomes() == {"busy": 6, "duplicate": 5}
    device.hold()
    assert outcomes_of(device, memory, 5) == {"published": 5}
    assert memory.close(PATIENCE)


@pytest.mark.parametrize("way", ["staged", "unregistered"])
def test_staged_saves_wait_for_slots(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 6, way)
    names = save_step(engine, blocks, range(90))
    assert engine.outcomes(90) == {"published": 90}
    assert blocks.count(names) == 90
    engine.memory.end_step()
    for place in range(90):
        engine.fill(0, place, bytes(PAGE))
    assert engine.memory.free_slots == SLOTS
    engine.close()


def test_staged_saves_without_a_slot_are_dropped_when_the_next_step_begins(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine = Engine(region, 6, "staged")
    engine.device.hold(FakeDevice.FROM_GPU)
    names = save_step(engine, blocks, range(30))
    engine.memory.end_step()
    for place in range(30):
        for layer in range(LAYERS):
            engine.fill(layer, place, bytes(PAGE))
    engine.device.hold()
    assert engine.outcomes(30) == {"published": 24, "late": 6}
    assert blocks.count(names) == 24
    back = bytearray(BLOCK)
    with blocks.lookup(names) as lease:
        for number in range(24):
            assert lease.read_into(number, back)
            assert bytes(back) == b"".join(content(layer, number) for layer in range(LAYERS))
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_requests_of_one_step_may_share_blocks(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    """A second request of a step hits the blocks that the first one computes in it."""
    engine, names = Engine(region, 5, way), names_of(blocks, 10)
    engine.compute(range(10))
    shared = (blocks, names[:6], range(6), range(6), None, 0)
    engine.memory.save([shared, (blocks, names[6:], range(6, 10), range(6, 10), None, 0), shared])
    assert engine.outcomes(16) == {"published": 10, "duplicate": 6}
    load = engine.memory.load(blocks.lookup(names), range(20, 30))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert all(engine.page(layer, 20 + number) == content(layer, number) for layer in range(LAYERS) for number in range(10))
    engine.close()


@pytest.mark.parametrize("way", ["direct", "pieces"])
def test_a_region_is_page_locked_while_it_is_served(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 5, way, is_locked=False)
    until("a thread that locks", lambda: engine.device.call("at_gate") == 1)
    # The kernel was tried at start.
    tried = engine.device.calls("cenote_move")
    names = save_step(engine, blocks, range(40))
    assert engine.outcomes(40) == {"published": 40}
    # A load of the first request, with all blocks through the buffer, and one when all are in their places.
    for places in (range(50, 90), range(10, 50)):
        load = engine.memory.load(blocks.lookup(names), places)
        assert load.wait(PATIENCE)
        assert load.failed() == []
        assert all(engine.page(layer, places[number]) == content(layer, number) for layer in range(LAYERS) for number in range(40))
        progress = engine.memory.page_locked
        assert progress is not None
        if places[0] == 50:
            assert (progress[0], engine.device.calls("cenote_move")) == (0, tried)
            assert not engine.memory.wait_locked(0)
            engine.device.call("gate", b"cuMemHostRegister", False)
            assert engine.memory.wait_locked(PATIENCE)
        else:
            assert progress[0] == progress[1]
            assert engine.device.calls("cenote_sums") > 0
    assert engine.memory.why_staged == ""
    engine.close()


def test_blocks_of_pieces_that_the_driver_refuses_are_staged(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine = Engine(region, 5, "pieces", is_locked=False)
    until("a thread that locks", lambda: engine.device.call("at_gate") == 1)
    progress = engine.memory.page_locked
    assert progress is not None
    # Half of the region, so that its blocks are on both sides.
    pieces = progress[1] // 53248 // 2
    engine.device.fail("cuMemHostRegister", pieces)
    engine.device.call("gate", b"cuMemHostRegister", False)
    assert engine.memory.wait_locked(PATIENCE)
    assert engine.memory.page_locked == (pieces * 53248, progress[1])
    assert engine.memory.why_staged.startswith(f"{pieces * 53248} of {progress[1]} bytes of the region are page-locked: cuMemHostRegister")
    names = save_step(engine, blocks, range(90))
    assert engine.outcomes(90) == {"published": 90}
    load = engine.memory.load(blocks.lookup(names), range(90))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert all(engine.page(layer, number) == content(layer, number) for layer in range(LAYERS) for number in range(90))
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_failed_blocks_are_reported(
    region: cenote.Region, blocks: cenote.Namespace, way: str, fail_loads: Callable[[int], None]
) -> None:
    names = save_all(region, blocks, 40)
    engine = Engine(region, 7, way)
    fail_loads(16)
    load = engine.memory.load(blocks.lookup(names), range(40))
    assert load.wait(PATIENCE)
    assert load.failed() == [0, 16, 32]
    engine.close()


def test_close_keeps_memory_registered_under_a_copy(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names = save_all(region, blocks, 4)
    engine = Engine(region, 8)
    engine.device.hold(FakeDevice.TO_GPU)
    load = engine.memory.load(blocks.lookup(names), range(4))
    until("the copies", lambda: engine.device.copies == 1)
    load.cancel()
    assert not engine.memory.close(0), "the device still has the copies"
    assert engine.device.locked
    with pytest.raises(cenote.CenoteError, match="closed"):
        engine.memory.load(blocks.lookup(names), range(4))
    engine.device.hold()
    engine.close()


def test_invalid_arguments_are_refused(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    names = save_all(region, blocks, 2)
    with pytest.raises(ValueError, match="block 96"):
        engine.memory.load(blocks.lookup(names), [0, 96])
    with pytest.raises(ValueError, match="twice"):
        engine.memory.load(blocks.lookup(names), [3, 3])
    with pytest.raises(ValueError, match="lease of 2"):
        engine.memory.load(blocks.lookup(names), [3])
    with pytest.raises(ValueError, match="1 depths"):
        engine.memory.save([(blocks, names, [0], [0, 1], None, 0)])
    with pytest.raises(ValueError, match="block 96"):
        engine.memory.save([(blocks, names[:1], [0], [5], None, 0), (blocks, names[1:], [0], [96], None, 0)])
    with pytest.raises(ValueError, match="blocks have"):
        engine.memory.save([(region.namespace(b"other", 64), names, [0, 1], [0, 1], None, 0)])
    device = engine.device
    with pytest.raises(ValueError, match="multiple of 64"):
        device.of(region, [(device.base, PageLayout(100, ((0, 100),), 2))])
    with pytest.raises(ValueError, match="leave the engine's memory"):
        device.of(region, [(device.base, PageLayout(RUN, ((0, RUN),), LAYERS * BLOCKS * 2 + 1))])
    with pytest.raises(ValueError, match="staging"):
        device.of(region, [(device.base, PageLayout(RUN, ((0, RUN),), 2))], staged=True, staging_bytes=RUN - 1)


# --- shapes of other models ---

# Bytes of a block's runs, by layer.
SHAPES = {
    "fp8": [[1024, 1024]] * 3,
    "fp8, with scales of 16 bits beside": [[1024, 1024], [64]] * 2,
    "MLA": [[18432]] * 2,
    "MLA with an indexer": [[73728], [8448]],
    "hybrid": [[33280], [4096, 4096], [33280]],
}
PLACES = 24


class Shaped:
    """A GPU with pages of these shapes, one after the other in a layer."""

    def __init__(self, region: cenote.Region, shape: list[list[int]], seed: int, way: str) -> None:
        self.shape, self.block_bytes = shape, sum(map(sum, shape))
        self.device, self.layers, at = FakeDevice(PLACES * self.block_bytes, seed), [], 0
        for runs in shape:
            offsets = [sum(runs[:number]) * PLACES for number in range(len(runs))]
            assert len(set(runs)) == 1, "the runs of a layer have one distance"
            layout = PageLayout(runs[0], tuple(zip(offsets, runs, strict=True)), PLACES)
            self.layers.append((self.device.base + at, layout))
            at += PLACES * sum(runs)
        self.region, self.how = region, {"staged": way == "staged", "piece_bytes": 53248, "staging_bytes": 6 * self.block_bytes}
        self.how["gpu_buffer_bytes"] = 0 if way == "pages" else 12 * self.block_bytes

    def memory(self) -> cenote.device.DeviceMemory:
        return self.device.of(self.region, self.layers, **self.how)

    def runs(self, block: int) -> Iterator[tuple[int, int]]:
        """Place and length of each run of a block."""
        for address, layout in self.layers:
            for offset, length in layout.runs:
                yield address - self.device.base + offset + block * layout.stride, length

    def fill(self, block: int, number: int) -> None:
        for at, length in self.runs(block):
            self.device.engine_writes(at, random.Random(f"{number} {length}").randbytes(length))

    def has(self, block: int, number: int) -> bool:
        return all(self.device.read(at, length) == random.Random(f"{number} {length}").randbytes(length) for at, length in self.runs(block))


def outcomes_of(device: FakeDevice, memory: cenote.device.DeviceMemory, count: int) -> dict[str, int]:
    came: Counter[str] = Counter()

    def all_known() -> bool:
        came.update(memory.take_outcomes())
        return came.total() >= count

    device.run_until(f"the outcomes of {count} blocks", all_known)
    return dict(came)


@pytest.mark.parametrize("way", ["direct", "pages", "staged"])
@pytest.mark.parametrize("shape", SHAPES)
def test_pages_of_other_shapes_survive_the_way(region: cenote.Region, shape: str, way: str) -> None:
    saver, loader = (Shaped(region, SHAPES[shape], seed, way) for seed in (1, 2))
    blocks = region.namespace(shape.encode(), saver.block_bytes)
    names, places = names_of(blocks, 10), random.Random(1).sample(range(PLACES), 10)
    memory = saver.memory()
    # Pages of fewer bytes than a thread block moves have no kernels.
    assert bool(memory.why_no_kernels) == (way != "direct" or "scales" in shape), memory.why_no_kernels
    for number, place in enumerate(places):
        saver.fill(place, number)
    memory.save([(blocks, names, range(10), places, None, 0)])
    assert outcomes_of(saver.device, memory, 10) == {"published": 10}
    assert memory.close(PATIENCE)
    memory, places = loader.memory(), random.Random(2).sample(range(PLACES), 10)
    load = memory.load(blocks.lookup(names), places)
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert all(loader.has(place, number) for number, place in enumerate(places))
    assert memory.close(PATIENCE)
    for device in (saver.device, loader.device):
        assert (device.wrong, device.locked, device.call("allocations")) == ("", 0, 0)


@pytest.mark.parametrize("way", ["direct", "pages", "staged"])
def test_groups_share_the_memory_of_a_device(region: cenote.Region, way: str) -> None:
    """As sliding windows beside full attention: each group has blocks of its own in the same tensors."""
    engine = Shaped(region, [[2048]] * 3, 3, way)
    groups = [(engine.memory(), region.namespace(f"group {number}".encode(), engine.block_bytes)) for number in range(3)]
    names = [names_of(blocks, 4) for _, blocks in groups]
    for place in range(12):
        engine.fill(place, place)
    for number, (memory, blocks) in enumerate(groups):
        memory.save([(blocks, names[number], range(4), range(4 * number, 4 * number + 4), None, 0)])
    for memory, _ in groups:
        assert outcomes_of(engine.device, memory, 4) == {"published": 4}
        memory.end_step()
    loads = []
    for number, (memory, blocks) in enumerate(groups):
        loads.append(memory.load(blocks.lookup(names[number]), range(12 + 4 * number, 16 + 4 * number)))
    for load in loads:
        assert load.wait(PATIENCE)
        assert load.failed() == []
    assert all(engine.has(12 + number, number) for number in range(12))
    assert all([memory.close(PATIENCE) for memory, _ in groups])
    assert (engine.device.wrong, engine.device.locked, engine.device.call("allocations")) == ("", 0, 0)


def test_memories_and_tables_of_a_gpu_compile_its_kernels_once(region: cenote.Region) -> None:
    engine = Shaped(region, [[2048]], 4, "direct")
    memories = [engine.memory() for _ in range(3)]
    cenote.device.RowKernel(engine.device.gpu)
    assert engine.device.calls("cuModuleLoadData") == 1
    assert all([memory.close(PATIENCE) for memory in memories])


def test_orders_of_namespaces_that_an_iterator_makes_are_apart(region: cenote.Region) -> None:
    """Each namespace is gone before the next one is made, so both may have one address."""
    engine = Shaped(region, [[2048]], 5, "direct")
    memory = engine.memory()
    for place in range(2):
        engine.fill(place, place)

    def orders() -> Iterator[object]:
        for number in range(2):
            blocks = region.namespace(f"made {number}".encode(), engine.block_bytes)
            yield blocks, names_of(blocks, 1), [0], [number], None, 0
            del blocks

    memory.save(orders())
    assert outcomes_of(engine.device, memory, 2) == {"published": 2}
    for number in range(2):
        blocks = region.namespace(f"made {number}".encode(), engine.block_bytes)
        assert blocks.count(names_of(blocks, 1)) == 1, number
    assert memory.close(PATIENCE)


def test_a_block_that_is_there_is_used_by_the_save_that_finds_it(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    before = region.counters()["pool_duplicates_total"]
    save_step(engine, blocks, range(4))
    assert engine.outcomes(4) == {"published": 4}
    save_step(engine, blocks, range(4))
    assert engine.outcomes(4) == {"duplicate": 4}
    assert region.counters()["pool_duplicates_total"] == before + 4


def test_a_forked_child_touches_nothing_of_its_parents_gpu(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names = save_all(region, blocks, 4)
    engine = Engine(region, 8)
    gpu, registration = engine.device.gpu, engine.device.register(region)
    kernel = cenote.device.RowKernel(gpu)
    engine.device.hold(FakeDevice.TO_GPU)
    load = engine.memory.load(blocks.lookup(names), range(4))
    until("the copies", lambda: engine.device.copies == 1)
    pid = os.fork()
    if pid == 0:
        refused = 0
        for call in (
            lambda: load.wait(None), load.failed, load.cancel, registration.close, lambda: gpu.register(region),
            lambda: cenote.device.RowKernel(gpu),
        ):  # fmt: skip
            try:
                call()
            except cenote.CenoteError as error:
                refused += "another process" in str(error)
        del registration, load, call, kernel
        gc.collect()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    del kernel
    registration.close()
    engine.device.hold()
    assert load.wait(PATIENCE)
    assert load.failed() == []
    engine.close()


# --- what the engine's thread and the interpreter have to do with it ---


def interpreter_calls(what: Callable[[], object]) -> int:
    """Calls that the interpreter makes meanwhile."""
    calls = [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        what()
    finally:
        sys.setprofile(None)
    return calls[0]


@pytest.mark.parametrize("way", ["direct", "staged"])
def test_a_load_is_as_few_calls_of_the_interpreter_whatever_its_blocks(
    region: cenote.Region, blocks: cenote.Namespace, way: str
) -> None:
    names = save_all(region, blocks, 90)
    engine, counts = Engine(region, 1, way), []
    for count in (1, 12, 90):
        lease, places = blocks.lookup(names[:count]), list(range(count))

        def load_all(lease: cenote.Lease = lease, places: list[int] = places) -> None:
            load = engine.memory.load(lease, places)
            assert load.wait(PATIENCE)
            assert load.failed() == []

        counts.append(interpreter_calls(load_all))
    assert counts[0] == counts[1] == counts[2] <= 8, counts
    engine.close()


def test_a_load_goes_on_while_another_thread_has_the_interpreters_lock(region: cenote.Region, blocks: cenote.Namespace) -> None:
    """Stronger than a thread that spins: it gives the lock up now and then, and this one does not."""
    names = save_all(region, blocks, 64)
    engine = Engine(region, 1)
    before = engine.device.calls("cuEventDestroy")
    load = engine.memory.load(blocks.lookup(names), range(64))
    # A call that keeps the lock. It ends when both parts' copies are done.
    locked = ctypes.PyDLL(library())
    locked.fake_await.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64)
    locked.fake_await.restype = ctypes.c_bool
    assert locked.fake_await(engine.device.number, b"cuEventDestroy", before + 2, 1 << 26)
    assert load.wait(PATIENCE)
    assert load.failed() == []
    engine.close()


def test_one_save_of_many_requests_is_few_calls_of_the_driver(region: cenote.Region, blocks: cenote.Namespace) -> None:
    """One new block of each of 32 sequences, as at every 16th step of decoding."""
    engine = Engine(region)
    driver, counts = engine.device.driver, []
    # The first save has no events of an earlier one to give back.
    for first, count in ((0, 1), (1, 1), (2, 32)):
        hashes = [blocks.alias([bytes([first + number]) * 32]) for number in range(count)]
        orders = [(blocks, hashes[number], [7], [first + number], [1], 0) for number in range(count)]
        engine.device.hold(FakeDevice.FROM_GPU)
        before = driver.fake_calls_of_this_thread()
        engine.memory.save(orders)
        counts.append(driver.fake_calls_of_this_thread() - before)
        engine.device.hold()
        assert engine.outcomes(count) == {"published": count}
    assert counts[1] == counts[2] <= 20, counts
    engine.close()


@pytest.mark.parametrize("way", ["direct", "pages"])
def test_a_save_beyond_the_regions_room_keeps_the_prefix(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    """Memory is reserved part by part, while the first parts cross the bus and could be published and evicted."""
    engine, count = Engine(region, 1, way), 4096
    names = blocks.hash_tokens(list(range(16 * count)), 16)
    engine.memory.save([(blocks, names, range(count), [number % BLOCKS for number in range(count)], None, 0)])
    outcomes = engine.outcomes(count)
    assert outcomes.keys() == {"published", "no_room"}
    assert blocks.count(names) == outcomes["published"] > 64
    engine.close()


def test_a_save_waits_for_no_load(region: cenote.Region, blocks: cenote.Namespace) -> None:
    """The load's copies do not end, and the thread that queues the next part of it hangs in the driver."""
    names = save_all(region, blocks, 64)
    engine = Engine(region)
    engine.device.hold(FakeDevice.TO_GPU)
    engine.device.call("gate", COPY.encode(), True)
    load = engine.memory.load(blocks.lookup(names), range(64))
    until("a thread of the mover in the driver", lambda: engine.device.call("at_gate") >= 1)
    others = blocks.alias([bytes([number]) * 32 for number in range(8)])
    engine.memory.save([(blocks, others, range(8), range(80, 88), None, 0)])
    assert engine.device.copies == 1, "the save's copies are queued, and none of the load's"
    assert not load.done, "the engine's thread asks without a wait for the thread in the driver"
    engine.device.call("gate", COPY.encode(), False)
    engine.device.run_until("eight published blocks", lambda: blocks.count(others) == 8)
    assert not load.done
    engine.device.hold()
    assert load.wait(PATIENCE)
    assert load.failed() == []
    engine.close()


def test_threads_may_load_and_save_at_once(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names = save_all(region, blocks, 20)
    engine, wrong = Engine(region, 9), list[object]()

    def use(number: int) -> None:
        own = range(20 * number, 20 * number + 20)
        for turn in range(5):
            load = engine.memory.load(blocks.lookup(names), own)
            others = blocks.alias([bytes([number, turn, at]) * 8 for at in range(20)])
            if not load.wait(PATIENCE) or load.failed():
                wrong.append(load.failed())
            engine.memory.save([(blocks, others, range(20), own, None, 0)])

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not wrong
    assert engine.outcomes(400).keys() <= {"published", "no_room"}
    engine.close()


@pytest.mark.parametrize("way", ["direct", "pages", "staged"])
def test_a_process_that_dies_in_a_copy_leaves_nothing(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 8)
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import cenote, test_device
from fake_device import FakeDevice
from waiting import until
region = cenote.Region.open({region.name!r}, worker="victim")
blocks = region.namespace(b"model", {BLOCK})
engine = test_device.Engine(region, 1, {way!r})
engine.device.hold(FakeDevice.TO_GPU, FakeDevice.FROM_GPU)
load = engine.memory.load(blocks.lookup(test_device.names_of(blocks, 8)), range(8))
engine.memory.save([(blocks, blocks.alias([b"x" * 32]), [0], [50], None, 0)])
until("the copies", lambda: engine.device.copies == 2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE).returncode == -9
    region.gc()
    report = region.check(payloads=True)
    assert report["is_clean"], report
    assert (report["reserved"], report["pinned"]) == (0, 0)
    engine = Engine(region, 2, way)
    load = engine.memory.load(blocks.lookup(names), range(8))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    engine.close()
