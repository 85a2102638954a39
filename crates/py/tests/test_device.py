"""KV memory on a fake device: the engine uses only saved bytes under any order and any fault."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from fake_device import FakeDevice
from waiting import PATIENCE, ManualTime, until

import cenote
from cenote.device import DeviceMemory, PageLayout, Stream
from cenote.device.memory import Registered
from cenote.device.saves import DeviceSave

LAYERS, BLOCKS, RUN = 3, 64, 512
PAGE = 2 * RUN
BLOCK = LAYERS * PAGE
WAYS = ("direct", "pieces", "staged", "unregistered")


class Engine:
    """An engine on a fake device. Each layer has separate tensors of keys and of values."""

    def __init__(self, region: cenote.Region, seed: int = 0, way: str = "direct", threads: int = 2) -> None:
        self.device = FakeDevice(LAYERS * BLOCKS * PAGE, seed)
        self.errors: list[Exception] = []
        if way != "direct":
            self.device.register_max = {"pieces": 50048, "staged": 0, "unregistered": 0}[way]
        layout = PageLayout(RUN, ((0, RUN), (BLOCKS * RUN, RUN)), BLOCKS)
        layers = [(self.device.base + layer * BLOCKS * PAGE, layout) for layer in range(LAYERS)]
        self.memory = DeviceMemory(
            self.device, region, layers, staging_bytes=24 * BLOCK, staged=way == "staged", piece_bytes=50048, threads=threads,
            told=self.errors.append,
        )  # fmt: skip

    def places(self, layer: int, block: int) -> list[int]:
        at = (layer * 2 * BLOCKS + block) * RUN
        return [at, at + BLOCKS * RUN]

    def fill(self, layer: int, block: int, content: bytes) -> None:
        """Queues a write of a page on the engine's stream."""

        def work() -> None:
            for half, at in enumerate(self.places(layer, block)):
                self.device.write(at, content[half * RUN : (half + 1) * RUN])

        self.device.engine(work)

    def page(self, layer: int, block: int) -> bytes:
        return b"".join(self.device.read(at, RUN) for at in self.places(layer, block))

    def used(self, layer: int, block: int) -> list[bytes]:
        """Queues a read of a page on the engine's stream. The list gets the content later."""
        found: list[bytes] = []
        self.device.engine(lambda: found.append(self.page(layer, block)))
        return found

    def outcomes(self, save: DeviceSave) -> dict[str, int]:
        """Ends a step's save and waits for the outcomes of all its blocks."""
        came = Counter(save.finish())

        def all_known() -> bool:
            came.update(self.memory.take_outcomes())
            return came.total() == len(save)

        self.device.run_until("the outcomes of all blocks", all_known)
        return dict(came)

    def close(self) -> None:
        assert self.memory.close(PATIENCE)
        assert not self.device.wrong, self.device.wrong
        # All memory is unregistered and freed.
        assert not self.device.locked
        assert not self.device.allocated
        layers = {self.device.base + layer * BLOCKS * PAGE for layer in range(LAYERS)}
        staging = {self.memory.staging.base} if self.memory.staging is not None else set()
        assert sorted(self.device.forgotten) == sorted(layers | staging)
        assert self.memory.close(0), "a second close has no effect"
        assert len(self.device.forgotten) == len(layers | staging)


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


def save_step(engine: Engine, blocks: cenote.Namespace, count: int, places: list[int]) -> tuple[cenote.Hashes, DeviceSave]:
    """A step that fills blocks layer by layer and saves them."""
    names = names_of(blocks, count)
    save = engine.memory.save(blocks, names, list(range(count)), places)
    for layer in range(LAYERS):
        for number, place in enumerate(places):
            engine.fill(layer, place, content(layer, number))
        # `finish` announces the last layer.
        if layer < LAYERS - 1:
            save.layer(layer)
    return names, save


def save_all(region: cenote.Region, blocks: cenote.Namespace, count: int, seed: int = 0, way: str = "direct") -> cenote.Hashes:
    engine = Engine(region, seed, way)
    names, save = save_step(engine, blocks, count, random.Random(seed).sample(range(BLOCKS), count))
    assert engine.outcomes(save) == {"published": count}
    assert blocks.count(names) == count
    engine.close()
    assert engine.errors == []
    return names


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", WAYS)
def test_a_device_loads_the_blocks_that_another_saved(region: cenote.Region, blocks: cenote.Namespace, way: str, seed: int) -> None:
    count = 20
    names = save_all(region, blocks, count, seed, way)
    engine = Engine(region, seed + 100, way)
    assert (engine.memory.registered is None) == (way in ("staged", "unregistered"))
    assert (engine.memory.why_staged == "") == (engine.memory.registered is not None)
    places = random.Random(seed + 100).sample(range(BLOCKS), count)
    # The load comes after the engine's queued work on these blocks.
    for place in places:
        engine.fill(0, place, bytes(PAGE))
    load = engine.memory.load(blocks.lookup(names), places)
    used = []
    for layer in range(LAYERS):
        assert load.wait_layer(layer, PATIENCE)
        used.append([engine.used(layer, place) for place in places])
    assert load.wait(PATIENCE)
    assert load.done
    assert load.failed() == []
    engine.device.run()
    for layer in range(LAYERS):
        assert used[layer] == [[content(layer, number)] for number in range(count)]
    engine.close()
    report = region.check(payloads=True)
    assert report["is_clean"], report
    assert (report["pinned"], report["reserved"]) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_may_reuse_blocks_when_the_step_is_over(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 5, way)
    engine.device.held = set(Stream)
    names, save = save_step(engine, blocks, 10, list(range(10)))
    save.finish()
    for place in range(10):
        for layer in range(LAYERS):
            engine.fill(layer, place, bytes(PAGE))
    engine.device.held = set()
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
    spoil(lease.view(3, verify=False).extent[0] + BLOCK - 1)
    engine = Engine(region, 1, way)
    load = engine.memory.load(lease, list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == [3]
    engine.device.run()
    if engine.memory.staging is not None:
        assert engine.page(0, 3) == bytes(PAGE), "the device got no copy of the damaged block"
    assert engine.page(2, 4) == content(2, 4)
    engine.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_block_that_changes_during_its_copy_is_a_miss(region: cenote.Region, blocks: cenote.Namespace, seed: int) -> None:
    names = save_all(region, blocks, 8)
    engine = Engine(region, seed)
    lease = blocks.lookup(names)
    at = lease.view(5, verify=False).extent[0]
    done: list[int] = []

    def change(copy: tuple[int, int, int]) -> None:
        # Within the copy: the device has old and new bytes.
        if at <= copy[1] < at + BLOCK and not done:
            done.append(copy[1])
            spoil(at + seed * 100)

    engine.device.watch = change
    load = engine.memory.load(lease, list(range(8)))
    assert load.wait(PATIENCE)
    assert done
    assert load.failed() == [5]
    engine.close()


def test_a_prompts_layer_is_one_call_of_the_device(region: cenote.Region, blocks: cenote.Namespace) -> None:
    count = 24
    names = save_all(region, blocks, count)
    engine = Engine(region, 5)
    load = engine.memory.load(blocks.lookup(names), list(range(count)))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert engine.device.calls["copy"] == LAYERS
    others = blocks.alias([bytes([number]) * 32 for number in range(count)])
    save = engine.memory.save(blocks, others, list(range(count)), list(range(count)))
    save.layer(LAYERS - 1)
    assert engine.outcomes(save) == {"published": count}
    assert engine.device.calls["copy"] == 2 * LAYERS
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_the_engines_writes_come_after_a_cancelled_late_load(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 12)
    engine = Engine(region, 2, way)
    engine.device.held = {Stream.LOADS}
    load = engine.memory.load(blocks.lookup(names), list(range(12)))
    # The device has the copies, but the engine's stream does not wait for them yet.
    until("the copies of all layers", lambda: engine.device.calls["copy"] == LAYERS)
    assert not load.wait(0)
    assert load.failed() == list(range(12))
    load.cancel()
    assert load.done
    assert not load.wait_layer(0, PATIENCE)
    assert load.failed() == list(range(12))
    # The engine computes the blocks instead, then the device resumes.
    for layer in range(LAYERS):
        for place in range(12):
            engine.fill(layer, place, bytes([7]) * PAGE)
    engine.device.run()
    assert engine.page(1, 1) == bytes(PAGE), "the engine's stream waits for the queued copies"
    assert region.check()["pinned"] == 12 or engine.memory.staging is not None
    engine.device.held = set()
    engine.device.run_until("the end of the device's work", engine.device.idle)
    for layer in range(LAYERS):
        assert all(engine.page(layer, place) == bytes([7]) * PAGE for place in range(12))
    engine.close()
    assert region.check()["pinned"] == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", range(4))
def test_failed_copies_are_misses(region: cenote.Region, blocks: cenote.Namespace, way: str, call: int) -> None:
    names = save_all(region, blocks, 6)
    engine = Engine(region, 3, way, threads=1)
    engine.device.held = {Stream.LOADS}
    engine.device.copies_until = call
    load = engine.memory.load(blocks.lookup(names), list(range(6)))
    if call < LAYERS:
        # The load ends while the device still has some of its copies.
        assert load.wait(PATIENCE)
        assert load.failed() == list(range(6))
        assert engine.errors
        for layer in range(LAYERS):
            for place in range(6):
                engine.fill(layer, place, bytes([9]) * PAGE)
        engine.device.held = set()
        engine.device.run_until("the end of the device's work", engine.device.idle)
        assert all(engine.page(layer, place) == bytes([9]) * PAGE for place in range(6) for layer in range(LAYERS))
    else:
        engine.device.held = set()
        assert load.wait(PATIENCE)
        assert load.failed() == []
        assert engine.errors == []
    engine.close()
    assert region.check()["pinned"] == 0


def test_a_failed_copy_of_a_layer_blocks_no_wait(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names = save_all(region, blocks, 6)
    engine = Engine(region, 3)
    engine.device.copies_until = 1
    load = engine.memory.load(blocks.lookup(names), list(range(6)))
    assert all(load.wait_layer(layer, PATIENCE) for layer in range(LAYERS))
    assert load.wait(PATIENCE)
    assert load.failed() == list(range(6))
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_a_lost_device_may_write_stays_locked(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    names = save_all(region, blocks, 6)
    engine = Engine(region, 3, way)
    engine.device.held = {Stream.LOADS, Stream.SAVES}
    engine.device.queries_until = 3
    load = engine.memory.load(blocks.lookup(names), list(range(6)))
    assert load.wait(PATIENCE)
    assert load.failed() == list(range(6))
    others = [name + bytes(16) for name in (b"x" * 16,)]
    save = engine.memory.save(blocks, blocks.alias(others), [0], [9])
    assert engine.outcomes(save) == {"failed": 1}
    assert blocks.count(blocks.alias(others)) == 0
    locked = dict(engine.device.locked)
    assert not engine.memory.close(PATIENCE), "a lost job is no reason to wait"
    assert engine.device.locked == locked, "the device's memory stays locked"
    assert not engine.device.forgotten
    assert not engine.device.wrong


@pytest.mark.parametrize("way", WAYS)
def test_an_aborted_save_leaks_nothing(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 4, way)
    engine.device.held = {Stream.SAVES}
    names = names_of(blocks, 4)
    save = engine.memory.save(blocks, names, [0, 1, 2, 3], [0, 1, 2, 3])
    save.layer(1)
    until("the copies of two layers", lambda: engine.device.calls["copy"] == 2)
    save.abort()
    if engine.memory.staging is None:
        assert region.check()["reserved"] == 4, "the device still writes these blocks"
    else:
        assert engine.memory.staging.free == 20
    engine.device.held = set()
    engine.device.run_until("the failed save", lambda: engine.memory.take_outcomes() == {"failed": 4})
    engine.close()
    assert blocks.count(names) == 0
    assert region.check()["reserved"] == 0
    if engine.memory.staging is not None:
        assert engine.memory.staging.free == 24


@pytest.mark.parametrize("way", WAYS)
def test_a_save_with_failed_copies_publishes_nothing(region: cenote.Region, blocks: cenote.Namespace, way: str) -> None:
    engine = Engine(region, 4, way)
    engine.device.copies_until = 2
    names, save = save_step(engine, blocks, 4, [0, 1, 2, 3])
    assert engine.outcomes(save) == {"failed": 4}
    assert engine.errors
    engine.close()
    assert blocks.count(names) == 0
    assert region.check()["reserved"] == 0


def test_a_save_fails_if_its_region_is_closed(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine = Engine(region, 4, "staged")
    engine.device.held = {Stream.SAVES}
    _, save = save_step(engine, blocks, 4, [0, 1, 2, 3])
    until("the copies of two layers", lambda: engine.device.calls["copy"] == 2)
    region.close()
    engine.device.held = set()
    assert engine.outcomes(save) == {"failed": 4}
    assert engine.memory.staging is not None
    assert engine.memory.staging.free == 24
    engine.close()


def test_present_blocks_are_not_saved_again(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    names = save_all(region, blocks, 4)
    save = engine.memory.save(blocks, names, [0, 1, 2, 3], [0, 1, 2, 3])
    assert engine.outcomes(save) == {"duplicate": 4}


def test_full_staging_memory_saves_the_first_blocks(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine = Engine(region, 6, "staged")
    names, save = save_step(engine, blocks, 30, list(range(30)))
    assert engine.outcomes(save) == {"published": 24, "no_room": 6}
    assert blocks.count(names) == 24
    assert engine.memory.staging is not None
    assert engine.memory.staging.free == 24
    engine.close()


@pytest.mark.parametrize("way", WAYS)
def test_failed_blocks_are_reported(
    region: cenote.Region, blocks: cenote.Namespace, way: str, fail_loads: Callable[[int], None]
) -> None:
    names = save_all(region, blocks, 40)
    engine = Engine(region, 7, way)
    fail_loads(16)
    load = engine.memory.load(blocks.lookup(names), list(range(40)))
    assert load.wait(PATIENCE)
    # A load through the staging memory is made of loads of 12 blocks, half of that memory.
    part = 12 if engine.memory.staging else 40
    assert load.failed() == [number for number in range(40) if number % part % 16 == 0]
    engine.close()


def test_close_keeps_memory_registered_under_a_copy(
    region: cenote.Region, blocks: cenote.Namespace, manual_time: ManualTime
) -> None:
    names = save_all(region, blocks, 4)
    engine = Engine(region, 8)
    engine.device.held = {Stream.LOADS}
    load = engine.memory.load(blocks.lookup(names), [0, 1, 2, 3])
    assert load.wait_layer(LAYERS - 1, PATIENCE)
    assert not manual_time.expire(load.wait), "the device still has the copies"
    load.cancel()
    assert not manual_time.expire(engine.memory.close)
    assert engine.device.locked
    assert not engine.device.forgotten
    with pytest.raises(RuntimeError, match="closed"):
        engine.memory.load(blocks.lookup(names), [0, 1, 2, 3])


def test_copies_split_at_the_borders_of_registered_pieces(region: cenote.Region) -> None:
    device = FakeDevice(64)
    device.register_max = 1000
    address, length = region.extent
    registered = Registered.share(device, address, length, piece_bytes=1000)
    assert Registered.share(device, address, length, piece_bytes=1000) is registered
    assert sum(device.locked.values()) == length
    for start in (0, 999, 1000, 5500):
        for host in (0, 1):
            copy = (address + start, 7, 2600) if host == 0 else (7, address + start, 2600)
            parts = registered.split(copy, host)
            assert sum(part[2] for part in parts) == 2600
            at = copy
            for part in parts:
                assert part[:2] == at[:2]
                inside = part[host] - address
                assert inside // 1000 == (inside + part[2] - 1) // 1000
                at = (at[0] + part[2], at[1] + part[2], 0)
    registered.leave()
    assert sum(device.locked.values()) == length
    registered.leave()
    assert device.locked == {}


def test_invalid_arguments_are_refused(region: cenote.Region, blocks: cenote.Namespace, engine: Engine) -> None:
    names = save_all(region, blocks, 2)
    with pytest.raises(ValueError, match="block 64"):
        engine.memory.load(blocks.lookup(names), [0, 64])
    with pytest.raises(ValueError, match="twice"):
        engine.memory.load(blocks.lookup(names), [3, 3])
    with pytest.raises(ValueError, match="lease of 2"):
        engine.memory.load(blocks.lookup(names), [3])
    with pytest.raises(ValueError, match="1 depths"):
        engine.memory.save(blocks, names, [0], [0, 1])
    with pytest.raises(ValueError, match="blocks have"):
        engine.memory.save(region.namespace(b"other", 64), names, [0, 1], [0, 1])
    with pytest.raises(ValueError, match="multiple of 64"):
        DeviceMemory(engine.device, region, [(engine.device.base, PageLayout(100, ((0, 100),), 2))])
    with pytest.raises(ValueError, match="staging"):
        DeviceMemory(FakeDevice(64), region, [(1, PageLayout(RUN, ((0, RUN),), 2))], staged=True, staging_bytes=RUN - 1)
