"""Saves and loads of an engine's KV memory, layer by layer."""

import ctypes
import random
from collections.abc import Callable

import pytest
from waiting import PATIENCE

import cenote

LAYERS, BLOCKS, PAGE = 3, 80, 1024


class Engine:
    """KV memory of an engine: for each layer, the pages of all blocks."""

    def __init__(self, load_threads: int = 2) -> None:
        self.bytes = (ctypes.c_uint8 * (LAYERS * BLOCKS * PAGE))()
        address = ctypes.addressof(self.bytes)
        layers = [(address + layer * BLOCKS * PAGE, PAGE, PAGE) for layer in range(LAYERS)]
        self.memory = cenote.KvMemory(layers, BLOCKS, self, load_threads=load_threads)

    def page(self, layer: int, block: int) -> bytes:
        at = (layer * BLOCKS + block) * PAGE
        return bytes(self.bytes[at : at + PAGE])

    def fill(self, layer: int, block: int, content: bytes) -> None:
        at = (layer * BLOCKS + block) * PAGE
        self.bytes[at : at + PAGE] = content


def content(layer: int, number: int) -> bytes:
    return random.Random(layer * 1000 + number).randbytes(PAGE)


@pytest.fixture
def blocks(region: cenote.Region) -> cenote.Namespace:
    return region.namespace(b"model", LAYERS * PAGE)


def names_of(blocks: cenote.Namespace, count: int) -> cenote.Hashes:
    return blocks.hash_tokens(list(range(16 * count)), 16)


def save_all(blocks: cenote.Namespace, count: int) -> cenote.Hashes:
    engine, names = Engine(), names_of(blocks, count)
    places = random.Random(5).sample(range(BLOCKS), count)
    save = engine.memory.save(blocks, names, list(range(count)), places)
    assert len(save) == count
    for layer in range(LAYERS):
        for number, place in enumerate(places):
            engine.fill(layer, place, content(layer, number))
        # `finish` copies the last layer.
        if layer < LAYERS - 1:
            save.layer(layer)
        assert blocks.count(names) == 0
    assert save.finish() == {"published": count}
    return names


def test_an_engine_loads_the_blocks_that_another_saved(blocks: cenote.Namespace) -> None:
    names = save_all(blocks, 70)
    engine = Engine()
    places = list(range(BLOCKS))[::-1][:70]
    load = engine.memory.load(blocks.lookup(names), places)
    for layer in range(LAYERS):
        assert load.wait_layer(layer, PATIENCE)
    assert load.wait(PATIENCE)
    assert load.done
    assert load.failed() == []
    for layer in range(LAYERS):
        for number, place in enumerate(places):
            assert engine.page(layer, place) == content(layer, number)


def test_failed_blocks_are_reported(blocks: cenote.Namespace, fail_loads: Callable[[int], None]) -> None:
    names, engine = save_all(blocks, 10), Engine()
    fail_loads(4)
    load = engine.memory.load(blocks.lookup(names), list(range(10)))
    assert load.wait(PATIENCE)
    assert load.failed() == [0, 4, 8]
    for layer in range(LAYERS):
        right = [number for number in range(10) if engine.page(layer, number) == content(layer, number)]
        assert right == [1, 2, 3, 5, 6, 7, 9]


def test_present_blocks_are_not_saved_again(blocks: cenote.Namespace) -> None:
    names = save_all(blocks, 4)
    save = Engine().memory.save(blocks, names, [0, 1, 2, 3], [0, 1, 2, 3])
    assert len(save) == 0
    assert save.finish() == {"duplicate": 4}


def test_an_aborted_save_leaks_nothing(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 4)
    save = Engine().memory.save(blocks, names, [0, 1, 2, 3], [0, 1, 2, 3])
    save.layer(1)
    save.abort()
    assert blocks.count(names) == 0
    assert region.check()["reserved"] == 0


def test_a_cancelled_load_stops_writing(region: cenote.Region, blocks: cenote.Namespace) -> None:
    names, engine = save_all(blocks, 70), Engine(load_threads=1)
    load = engine.memory.load(blocks.lookup(names), list(range(70)))
    load.cancel()
    assert load.done
    before = bytes(engine.bytes)
    assert set(load.failed()) <= set(range(70))
    engine.memory.close()
    assert bytes(engine.bytes) == before
    assert region.check()["pinned"] == 0


def test_invalid_arguments_are_refused(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine, names = Engine(), save_all(blocks, 2)
    with pytest.raises(ValueError, match="block 80"):
        engine.memory.load(blocks.lookup(names), [0, 80])
    with pytest.raises(ValueError, match="twice"):
        engine.memory.load(blocks.lookup(names), [3, 3])
    with pytest.raises(ValueError, match="lease of 2"):
        engine.memory.load(blocks.lookup(names), [3])
    with pytest.raises(ValueError, match="1 depths"):
        engine.memory.save(blocks, names, [0], [0, 1])
    with pytest.raises(ValueError, match="blocks have"):
        engine.memory.save(region.namespace(b"other", 64), names, [0, 1], [0, 1])
    with pytest.raises(ValueError, match="multiple of 64"):
        cenote.KvMemory([(64, 100, 100)], 2, None)
    with pytest.raises(ValueError, match="stride"):
        cenote.KvMemory([(64, 64, 128)], 2, None)
    with pytest.raises(OverflowError):
        engine.memory.load(blocks.lookup(names), [-1, 0])
