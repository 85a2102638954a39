"""Hostile arguments: every call returns or raises an `Exception`, and the process survives.

Excluded are addresses of unmapped memory: callers guarantee the validity of addresses.
"""

import ctypes
import itertools
import json
import random
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeDevice, library
from waiting import PATIENCE

import cenote
from cenote import _native, engram
from cenote.device import DeviceMemory, Gpu, PageLayout, RowGather, RowKernel, TablePlace
from conftest import SMALL
from tables_of import Made
from test_blocks import Managed, Tensor
from test_engram import QWEN
from test_memory import BLOCKS, LAYERS, PAGE, Engine

BLOCK = LAYERS * PAGE
SEEDS = range(6)
CALLS = 60


@pytest.fixture
def blocks(region: cenote.Region) -> cenote.Namespace:
    return region.namespace(b"model", BLOCK)


def names_of(blocks: cenote.Namespace, count: int) -> cenote.Hashes:
    return blocks.hash_tokens(list(range(16 * count)), 16)


@pytest.fixture
def lease(blocks: cenote.Namespace) -> cenote.Lease:
    names = names_of(blocks, 1)
    assert blocks.publish(names[0], 0, bytes([7]) * BLOCK) == "published"
    return blocks.lookup(names)


class Liar:
    """A sequence that claims to be long."""

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, index: int) -> int:
        if index > 2:
            raise IndexError(index)
        return index


def test_lengths_do_not_wrap(blocks: cenote.Namespace) -> None:
    memory = ctypes.create_string_buffer(BLOCK)
    address, half = ctypes.addressof(memory), (1 << 63) - 64
    name = names_of(blocks, 1)[0]
    # The sum of the lengths is a block, modulo 2^64.
    with pytest.raises(ValueError, match="more than memory"):
        blocks.publish(name, 0, [(address, half), (address, half), (address, 128), (address, BLOCK)])
    for wrong in ((address, 1 << 63), (address, (1 << 64) - 1), ((1 << 64) - 64, BLOCK)):
        with pytest.raises(ValueError, match="cannot be memory"):
            blocks.publish(name, 0, wrong)
    with pytest.raises((OverflowError, TypeError)):
        blocks.publish(name, 0, (address, 1 << 64))


def test_overlapping_writable_parts_are_refused(lease: cenote.Lease) -> None:
    memory = bytearray(2 * BLOCK)
    view, address = memoryview(memory), ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
    third = BLOCK // 3
    overlapping: list[list[Any]] = [
        [view[:third], view[:third], view[third : 2 * third]],
        [view[third - 64 : 2 * third - 64], view[:third], view[2 * third : 3 * third]],
        [view[:third], (address + third - 1, third), view[2 * third :][:third]],
        [(address, 2 * third), (address + 64, third)],
    ]
    for parts in overlapping:
        with pytest.raises(ValueError, match="overlap"):
            lease.read_into(0, parts)
    assert lease.read_into(0, [view[third : 2 * third], (address, third), view[2 * third : 3 * third], view[:0]])
    assert bytes(view[:BLOCK]) == bytes([7]) * BLOCK


def test_read_only_parts_may_overlap(blocks: cenote.Namespace) -> None:
    part = bytes([3]) * (BLOCK // 3)
    assert blocks.publish(names_of(blocks, 1)[0], 0, [part, part, part]) == "published"


def hostile_tensors() -> Iterator[Tensor]:
    for shape in ([-1], [1 << 62, 4], [(1 << 63) - 1, (1 << 63) - 1, 16], [1 << 32, 1 << 32, 2], [-2, -512]):
        yield Tensor(bytes(BLOCK), shape)
        yield Tensor(bytes(BLOCK), shape, strides=[1] * len(shape))
    for field, value in (
        ("dimensions", -1),
        ("dimensions", 1 << 30),
        ("shape", None),
        ("data", None),
        ("byte_offset", (1 << 64) - 1),
        ("byte_offset", 1 << 63),
        ("lanes", 0xFFFF),
        ("bits", 3),
    ):
        tensor = Tensor(bytes(BLOCK), [BLOCK // 4])
        setattr(tensor.managed, field, value)
        yield tensor


def test_impossible_tensors_are_refused(blocks: cenote.Namespace, lease: cenote.Lease) -> None:
    for tensor in hostile_tensors():
        fields = {name: getattr(tensor.managed, name) for name, _ in Managed._fields_}
        with pytest.raises((ValueError, BufferError)):
            blocks.publish(b"n" * 16, 0, tensor)
        with pytest.raises((ValueError, BufferError)):
            lease.read_into(0, tensor)
        assert tensor.given_back == 2, fields
    scalar = Tensor(bytes(4), [])
    with pytest.raises(ValueError, match="4 bytes"):
        blocks.publish(b"n" * 16, 0, scalar)
    # If one length is 0, the other lengths and the strides are irrelevant.
    empty = Tensor(bytes(4), [1 << 62, 0, 1 << 62], strides=[5, 5, 5])
    with pytest.raises(ValueError, match="0 bytes"):
        blocks.publish(b"n" * 16, 0, empty)


def test_no_memory_is_reserved_for_a_claimed_length(blocks: cenote.Namespace) -> None:
    engine = Engine()
    for claims in (Liar(), range(1 << 40), range(1 << 60)):
        for call in (
            lambda: blocks.hash_tokens(claims, 16),
            lambda: blocks.count(claims),
            lambda: engine.memory.save(blocks, names_of(blocks, 1), claims, [0]),
            lambda: engine.memory.save(blocks, names_of(blocks, 1), [0], claims),
            lambda: engine.memory.save(blocks, names_of(blocks, 1), [0], [0], names=claims),
            lambda: engine.memory.load(blocks.lookup([]), claims),
            lambda: cenote.KvMemory(claims, 1, None),
        ):
            with pytest.raises(ValueError, match="items"):
                call()
    with pytest.raises(ValueError, match="items"):
        blocks.hash_tokens(itertools.repeat(1), 16)


def test_impossible_sizes_are_refused() -> None:
    most = (1 << 63) - 64
    for layers, num_blocks in (
        ([(64, most, most), (64, most, most)], 0),
        ([(64, most, most)] * 4, 1),
        ([(64, 1 << 40, 64)], 1 << 30),
        ([((1 << 64) - 64, 64, 64)], 2),
    ):
        with pytest.raises(ValueError):
            cenote.KvMemory(layers, num_blocks, None)
    with pytest.raises(ValueError, match="stores none above"):
        cenote.Codec(
            "int8", num_layers=65535, num_heads=65535, head_dim=65535, block_tokens=65535, dtype="f32", order="NHD", kv="split"
        )


def test_a_panic_raises_a_cenote_error(blocks: cenote.Namespace, lease: cenote.Lease) -> None:
    names = names_of(blocks, 3)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("publish.reserved", lambda: blocks.publish(names[1], 1, bytes(BLOCK))),
        ("publish.reserved", lambda: blocks.begin(names[1], 1)),
        ("publish.payload", lambda: blocks.publish(names[1], 1, bytes(BLOCK))),
        ("read.copied", lambda: lease.read_into(0, bytearray(BLOCK))),
    ]
    for point, call in calls:
        _native._panic_at(point, 1)
        with pytest.raises(cenote.CenoteError, match=f"a bug in cenote: at {point}"):
            call()
    assert blocks.publish(names[2], 2, bytes(BLOCK)) == "published"
    assert lease.read_into(0, bytearray(BLOCK))


def test_a_save_that_panicked_publishes_nothing(region: cenote.Region, blocks: cenote.Namespace) -> None:
    engine, names = Engine(), names_of(blocks, 4)
    save = engine.memory.save(blocks, names, list(range(4)), list(range(4)))
    # The first two blocks have the page that the others lack.
    _native._panic_at("save.page", 2)
    with pytest.raises(cenote.CenoteError, match=r"save\.page"):
        save.layer(0)
    assert save.finish() == {}
    assert blocks.count(names) == 0
    assert region.check(payloads=True)["reserved"] == 0


def test_a_load_that_panicked_ends_and_reports_failed_blocks(blocks: cenote.Namespace) -> None:
    engine, names = Engine(load_threads=1), names_of(blocks, 40)
    save = engine.memory.save(blocks, names, list(range(40)), list(range(40)))
    assert save.finish() == {"published": 40}
    _native._panic_at("load.layer", 2)
    load = engine.memory.load(blocks.lookup(names), list(range(40)))
    assert load.wait(PATIENCE)
    assert all(load.wait_layer(layer, PATIENCE) for layer in range(LAYERS))
    # One of the two tasks panicked: the one of 32 blocks.
    assert load.failed() == list(range(32))
    again = engine.memory.load(blocks.lookup(names), list(range(40)))
    assert again.wait(PATIENCE)
    assert again.failed() == []


INTS = [0, 1, 2, 16, 64, -1, 255, 256, 1 << 16, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63)]
FLOATS = [0.0, 0.01, -1.0, 1e18, 1e300, float("nan"), float("inf")]
TEXTS = ["", "x", "\0", "\ud800", "é" * 100, "lru", "f16", "NHD", "joint", "int8", "oaken:9/9", "qpack:1e308", "1e400GiB"]
BYTES = [b"", b"x", bytes(15), bytes(16), b"h" * 16, b"h" * 32, b"\xff" * 4096]
OTHERS = [None, True, object(), [], {}, Liar(), range(1 << 40), [1, 2, 3], ["x"], slice(None)]
ANYTHING = [*INTS, *FLOATS, *TEXTS, *BYTES, *OTHERS]
# Sizes of regions that cannot be created. A valid size would take its memory.
SIZES = [0, 1, 4096, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, "0", "x", "99999999TiB", "1e400GiB", None]


def memory(chance: random.Random) -> Any:
    buffer = bytearray(BLOCK)
    kinds: list[Any] = [
        buffer,
        bytes(BLOCK),
        memoryview(buffer)[::-1],
        [buffer, buffer],
        [memoryview(buffer)[:PAGE]] * LAYERS,
        (0, BLOCK),
        ((1 << 64) - 1, BLOCK),
        (1 << 63, 1 << 63),
        [(64, (1 << 63) - 64)] * 3,
        chance.choice(list(hostile_tensors())),
    ]
    return chance.choice([*kinds, chance.choice(ANYTHING)])


def tables_of_region(name: str, region: cenote.Region, any_of: Callable[..., Any]) -> Iterator[tuple[str, Callable[[random.Random], object]]]:
    """The calls of tables and addresses. The working folder is the test's own."""
    made = Made(Path.cwd(), "bf16", 100, 32)
    engram.load(region, "t", **made.how)  # type: ignore[arg-type]
    table, addresses = engram.Table(region, "t", threads=2), engram.Addresses(json.dumps(QWEN))

    def rows(chance: random.Random) -> Any:
        return any_of(chance, array("q", [chance.randrange(100) for _ in range(32)]), range(32), memory(chance))

    def out(chance: random.Random) -> Any:
        return any_of(chance, bytearray(32 * 64), memory(chance))

    def dtype(chance: random.Random) -> Any:
        return any_of(chance, "stored", "bfloat16")

    yield "Table", lambda chance: engram.Table(
        region, any_of(chance, "t", *TEXTS), verify=any_of(chance, True), threads=any_of(chance, 1, 2, 65)
    ).threads
    yield "Table.gather", lambda chance: table.gather(rows(chance), out(chance), dtype=dtype(chance))
    yield "Table.start", lambda chance: table.start(rows(chance), out(chance), dtype=dtype(chance)).wait()
    yield "Pending.wait", lambda chance: table.start([1] * 32, bytearray(32 * 64)).wait(any_of(chance, *FLOATS, None))
    yield "Addresses", lambda chance: engram.Addresses(
        any_of(chance, json.dumps(QWEN), *TEXTS), tokenizer=any_of(chance, None, *BYTES), token_map=any_of(chance, None, [0, 1, 2])
    ).columns
    yield "Addresses.rows", lambda chance: addresses.rows(
        any_of(chance, [1, 2, 3], [chance.randrange(200) for _ in range(3)], memory(chance)), starts=any_of(chance, None, [0, 1, 3]),
        lookback=any_of(chance, None, [-1, 5, 5, -1]), masked=any_of(chance, None, [0, 1, 0]), layer=any_of(chance, None, 2),
    )  # fmt: skip
    yield "load_tables", lambda chance: engram.load(
        any_of(chance, region, name), any_of(chance, "t", *TEXTS),
        **({**made.how, "wait": 5.0} | {key: chance.choice(ANYTHING) for key in chance.sample(["scale", "tensor", "layers", "wait", "model"], 2)}),
    )  # fmt: skip
    yield "default_table_name", lambda chance: engram.default_name(any_of(chance, "/m/final", *TEXTS))
    for what, call in (("tables", engram.tables), ("check_table", engram.check), ("drop_table", engram.drop)):
        names = [] if what == "tables" else ["u", *TEXTS]
        yield what, lambda chance, call=call, names=names: call(  # type: ignore[misc]
            any_of(chance, region, name), *([any_of(chance, *names)] if names else []), host_slot=any_of(chance, 0)
        )


def devices_of_region(
    region: cenote.Region, blocks: cenote.Namespace, names: cenote.Hashes, seed: int, any_of: Callable[..., Any]
) -> Iterator[tuple[str, Callable[[random.Random], object]]]:
    """The calls of GPUs, on the fake driver. Sizes of buffers are sound: the fake has them in the processor's memory."""
    device = FakeDevice(LAYERS * BLOCKS * PAGE, seed)
    layers = [(device.base + layer * BLOCKS * PAGE, PageLayout(PAGE, ((0, PAGE),), BLOCKS)) for layer in range(LAYERS)]
    sizes = {"staging_bytes": 4 * BLOCK, "gpu_buffer_bytes": 4 * BLOCK}
    memory, kernel = device.of(region, layers, **sizes), RowKernel(device.gpu)

    def number(chance: random.Random) -> Any:
        return any_of(chance, *INTS)

    def numbers(chance: random.Random) -> Any:
        return any_of(chance, list(range(6)), [0] * 6, [BLOCKS], [chance.choice(INTS) for _ in range(6)])

    def layouts(chance: random.Random) -> Any:
        some = [chance.choice(INTS) for _ in range(4)]
        return any_of(chance, layers, [(some[0], PageLayout(some[1], ((0, some[2]),), some[3]))], [(device.base, chance.choice(ANYTHING))])

    def make(chance: random.Random) -> None:
        places = any_of(chance, [(device.base, len(device.memory))], [(number(chance), number(chance))])
        how = {"staged": any_of(chance, True), "piece_bytes": number(chance), "threads": any_of(chance, 1, 65), "backlog_bytes": number(chance)}
        how |= {key: chance.choice([0, 64, size]) for key, size in sizes.items()} | {"scatter_below": any_of(chance, None, *INTS)}
        stream = any_of(chance, lambda: 0)
        DeviceMemory(any_of(chance, device.gpu), any_of(chance, region), layouts(chance), places, None, stream, **how).close()

    def load(chance: random.Random, call: Callable[[cenote.device.DeviceLoad], object]) -> object:
        begun = memory.load(blocks.lookup(names), range(blocks.count(names)))
        assert begun.wait(PATIENCE)
        return call(begun)

    def gather(chance: random.Random) -> None:
        table = TablePlace(device.base, device.base, 1, 1, 64, 32, any_of(chance, "bf16", *TEXTS), any_of(chance, 1.0, *FLOATS))
        rows = RowGather(
            device.base, any_of(chance, 4, 8), (0, 0), any_of(chance, 0, 1, -1), 1, any_of(chance, 0, 1), 0, any_of(chance, 0, -1),
            device.base + any_of(chance, 128, 129), 0, any_of(chance, True, False),
        )  # fmt: skip
        kernel.gather(any_of(chance, table), any_of(chance, rows), any_of(chance, 0))

    yield "Gpu", lambda chance: Gpu(number(chance), library=any_of(chance, library(), *TEXTS)).why_one_by_one
    yield "Gpu.register", lambda chance: device.gpu.register(
        any_of(chance, region), piece_bytes=number(chance), timeout=any_of(chance, 10.0, *FLOATS)
    ).close()
    yield "Registration.close", lambda chance: [one.close() for one in [device.gpu.register(region)] * 2]
    yield "DeviceMemory", make
    yield "DeviceMemory.load", lambda chance: memory.load(
        any_of(chance, blocks.lookup(names)), numbers(chance), timeout=any_of(chance, None, *FLOATS)
    ).wait(PATIENCE)
    yield "DeviceMemory.save", lambda chance: memory.save(
        any_of(chance, [(any_of(chance, blocks), any_of(chance, names), numbers(chance), numbers(chance), any_of(chance, None, numbers(chance)), number(chance))])
    )
    yield "DeviceMemory.end_step", lambda chance: memory.end_step()
    yield "DeviceMemory.take_outcomes", lambda chance: memory.take_outcomes()
    yield "DeviceMemory.take_errors", lambda chance: memory.take_errors()
    yield "DeviceMemory.wait_locked", lambda chance: memory.wait_locked(any_of(chance, *FLOATS))
    yield "DeviceMemory.close", lambda chance: device.of(region, layers, **sizes).close(any_of(chance, *FLOATS))
    yield "DeviceLoad.wait", lambda chance: load(chance, lambda one: one.wait(any_of(chance, *FLOATS, None)))
    yield "DeviceLoad.failed", lambda chance: load(chance, lambda one: one.failed())
    yield "DeviceLoad.cancel", lambda chance: load(chance, lambda one: (one.cancel(), one.failed()))
    yield "RowKernel", lambda chance: RowKernel(any_of(chance, device.gpu))
    yield "RowKernel.gather", gather


def callables(name: str, seed: int) -> Iterator[tuple[str, Callable[[random.Random], object]]]:
    """Calls of every public callable with random arguments. Each seed has its own region."""
    cenote.Region.create(name, "8MiB", **SMALL)
    region = cenote.Region.open(name, worker="boundary", quarantine=1e9)
    blocks, engine = region.namespace(b"model", BLOCK), Engine()
    names = names_of(blocks, 8)
    for depth in range(6):
        blocks.publish(names[depth], depth, bytes([depth]) * BLOCK)
    lease, follower = blocks.lookup(names), region.follow()
    view, rows = lease.view(0, verify=False), blocks.lookup(names).rows()
    codec = {"num_layers": 1, "num_heads": 1, "head_dim": 16, "block_tokens": 16, "dtype": "f16", "order": "NHD", "kv": "split"}

    def any_of(chance: random.Random, *sound: object) -> Any:
        return chance.choice([*sound, *sound, *sound, chance.choice(ANYTHING)])

    def hashes(chance: random.Random) -> Any:
        return any_of(chance, names, list(names[:3].__getitem__(at) for at in range(3)), names[2:1], [b"h" * 16] * 3)

    def numbers(chance: random.Random) -> Any:
        return any_of(chance, list(range(8)), [0] * 8, [BLOCKS], [chance.choice(INTS) for _ in range(8)], (0, 1, 2))

    def hash_of(chance: random.Random) -> Any:
        return any_of(chance, names[7], chance.randbytes(16))

    def number(chance: random.Random) -> Any:
        return any_of(chance, *INTS)

    def filling(chance: random.Random, call: Callable[[Any], object]) -> object:
        begun = blocks.begin(chance.randbytes(16), 0)
        return begun and call(begun)

    def abort_all(begun: list[cenote.Filling | None]) -> None:
        for one in begun:
            if one is not None:
                one.abort()

    def save(chance: random.Random, call: Callable[[Any], object]) -> object:
        return call(engine.memory.save(blocks, [chance.randbytes(16)], [0], [chance.randrange(BLOCKS)]))

    def load(chance: random.Random, call: Callable[[Any], object]) -> object:
        begun = engine.memory.load(blocks.lookup(names), list(range(blocks.count(names))))
        begun.wait(PATIENCE)
        return call(begun)

    def open_and_close(chance: random.Random, **wrong: object) -> object:
        cenote.Region.open(chance.choice([name, name, "shm:", "anon", chance.choice(TEXTS[:4])]), **wrong).close()  # type: ignore[arg-type]
        return None

    def create(chance: random.Random) -> object:
        keys = ["chunk_size", "min_block", "max_hosts", "pins_per_worker", "flush", "mode", "hash_seed", "events", "eviction"]
        wrong = {key: chance.choice(ANYTHING) for key in chance.sample(keys, 3)}
        return cenote.Region.create(any_of(chance, name, "anon"), chance.choice(SIZES), **wrong)

    yield "Region.create", create
    for key in ("worker", "host_slot", "lock_timeout", "host_timeout", "quarantine", "hash_seed", "numa_node", "huge_pages", "peers", "peer_key_file", "nixl"):
        yield "Region.open", lambda chance, key=key: open_and_close(chance, **{key: chance.choice(ANYTHING)})  # type: ignore[misc]
    yield "Region.namespace", lambda chance: region.namespace(
        any_of(chance, b"a", b"b"), number(chance), label=any_of(chance, *TEXTS), block_tokens=number(chance), num_layers=number(chance)
    )
    yield "Region.follow", lambda chance: region.follow()
    yield "Region.counters", lambda chance: region.counters()
    yield "Region.info", lambda chance: region.info()
    yield "Region.namespaces", lambda chance: region.namespaces()
    yield "Region.drop_old_facts", lambda chance: region.drop_old_facts()
    yield "Region.check", lambda chance: region.check(any_of(chance, True))
    yield "Region.gc", lambda chance: region.gc()
    yield "Region.put_object", lambda chance: region.put_object(any_of(chance, *TEXTS), any_of(chance, *BYTES))
    yield "Region.get_object", lambda chance: region.get_object(any_of(chance, *TEXTS))
    yield "Region.settle_cold", lambda chance: region.settle_cold(any_of(chance, 0, -1.0, float("nan")))
    yield "Region.close", lambda chance: open_and_close(chance)
    yield "Hashes.frombytes", lambda chance: cenote.Hashes.frombytes(any_of(chance, *BYTES))
    yield "Hashes.tobytes", lambda chance: names[any_of(chance, slice(number(chance), number(chance), number(chance)))].tobytes()
    yield "Codec", lambda chance: cenote.Codec(
        any_of(chance, *TEXTS, "int8+delta", "oaken:1/1/1", "oaken:4/90/6:5", "qpackz:1"),
        **{**codec, **{key: chance.choice(ANYTHING) for key in chance.sample([*codec, "profile"], 2)}},
    )
    yield "Region.bind_thread", lambda chance: region.bind_thread()
    yield "Namespace.hash_tokens", lambda chance: blocks.hash_tokens(numbers(chance), number(chance))
    yield "Namespace.alias", lambda chance: blocks.alias(any_of(chance, BYTES))
    yield "Namespace.count", lambda chance: blocks.count(hashes(chance))
    yield "Namespace.present", lambda chance: blocks.present(hashes(chance))
    yield "Namespace.removed", lambda chance: blocks.removed(hashes(chance))
    yield "Namespace.lookup", lambda chance: blocks.lookup(hashes(chance)).hashes()
    yield "Namespace.record", lambda chance: blocks.record(hashes(chance), above=number(chance), tokens=number(chance))
    yield "Namespace.record_answer", lambda chance: blocks.record_answer(number(chance), number(chance))
    yield "Namespace.publish", lambda chance: blocks.publish(
        hash_of(chance), number(chance), memory(chance), name=number(chance), parent=number(chance)
    )
    yield "Namespace.publish_all", lambda chance: blocks.publish_all(
        hashes(chance), numbers(chance), any_of(chance, [memory(chance), memory(chance)], []), names=numbers(chance)
    )
    yield "Namespace.begin_all", lambda chance: abort_all(blocks.begin_all(hashes(chance), numbers(chance)))
    yield "Namespace.publish_filled", lambda chance: blocks.publish_filled(any_of(chance, [blocks.begin(hash_of(chance), 0)], []))
    yield "Namespace.begin", lambda chance: blocks.begin(hash_of(chance), number(chance), name=number(chance))
    yield "Namespace.keep", lambda chance: blocks.keep(any_of(chance, 0, 1 << 10, 1 << 40, (1 << 64) - 1))
    yield "Namespace.set_quota", lambda chance: blocks.set_quota(any_of(chance, 0, 1 << 40, (1 << 64) - 1))
    yield "Follower.poll", lambda chance: follower.poll()
    yield "Lease.read_into", lambda chance: lease.read_into(any_of(chance, 0, 1), memory(chance))
    yield "Lease.view", lambda chance: lease.view(number(chance), verify=any_of(chance, True, False))
    yield "Lease.hashes", lambda chance: lease.hashes()[number(chance)]
    yield "Lease.split", lambda chance: blocks.lookup(names).split(number(chance))
    yield "Lease.truncate", lambda chance: blocks.lookup(names).truncate(number(chance))
    yield "Lease.release", lambda chance: blocks.lookup(names).release()
    yield "Lease.rows", lambda chance: blocks.lookup(names).rows().verify()
    yield "Rows.verify", lambda chance: rows.verify()
    yield "Rows.gather", lambda chance: rows.gather(
        any_of(chance, array("I", [chance.randrange(8) for _ in range(8)]), memory(chance)), memory(chance), size=number(chance),
        offset=number(chance), stride=number(chance), pieces=number(chance), piece_stride=number(chance), count=number(chance),
    )  # fmt: skip
    yield "Rows.release", lambda chance: blocks.lookup(names).rows().release()
    yield "Namespace.retain", lambda chance: blocks.retain(
        hashes(chance), number(chance), priority=number(chance), session=any_of(chance, None, "s"), tenant=any_of(chance, None, "t")
    )
    yield "Namespace.promote", lambda chance: blocks.promote(hashes(chance), all=any_of(chance, True))
    yield "BlockView.verify", lambda chance: view.verify()
    yield "Filling.publish", lambda chance: filling(chance, lambda one: (one.publish(), one.publish()))
    yield "Filling.abort", lambda chance: filling(chance, lambda one: (one.abort(), one.abort()))
    yield "KvMemory", lambda chance: cenote.KvMemory(
        any_of(chance, [tuple(chance.choice(INTS) for _ in range(3)) for _ in range(2)]), number(chance), None, load_threads=any_of(chance, 1)
    ).block_bytes
    yield "KvMemory.save", lambda chance: engine.memory.save(
        blocks, hashes(chance), numbers(chance), numbers(chance), names=any_of(chance, None, numbers(chance)), parent=number(chance)
    ).finish()
    yield "KvMemory.load", lambda chance: engine.memory.load(blocks.lookup(names), numbers(chance)).wait(PATIENCE)
    yield "KvMemory.close", lambda chance: Engine().memory.close()
    yield "Save.layer", lambda chance: save(chance, lambda one: (one.layer(number(chance)), one.finish(), one.layer(0)))
    yield "Save.finish", lambda chance: save(chance, lambda one: (one.finish(), one.finish()))
    yield "Save.abort", lambda chance: save(chance, lambda one: (one.abort(), one.layer(0), one.finish()))
    yield "Load.wait", lambda chance: load(chance, lambda one: one.wait(any_of(chance, *FLOATS, None)))
    yield "Load.wait_layer", lambda chance: load(chance, lambda one: one.wait_layer(number(chance), any_of(chance, *FLOATS)))
    yield "Load.failed", lambda chance: load(chance, lambda one: one.failed())
    yield "Load.cancel", lambda chance: load(chance, lambda one: (one.cancel(), one.failed()))
    yield from tables_of_region(name, region, any_of)
    yield from devices_of_region(region, blocks, names, seed, any_of)
    # Last, because it removes the blocks.
    yield "Namespace.forget", lambda chance: blocks.forget()
    report = region.check(payloads=True)
    assert report["is_clean"], (seed, report)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_argument_returns_or_raises_an_exception(
    name: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name without `shm:` is a path.
    monkeypatch.chdir(tmp_path)
    called = set()
    for what, call in callables(name, seed):
        called.add(what)
        for number in range(CALLS):
            try:
                call(random.Random(f"{seed} {what} {number}"))
            except Exception as error:
                assert "a bug in cenote" not in str(error), (seed, what, number, error)
            except BaseException as error:
                raise AssertionError(f"seed {seed}, {what}, call {number}: {error!r}") from error
    assert called == set(public_callables())


def public_callables() -> Iterator[str]:
    yield from ("check_table", "default_table_name", "drop_table", "load_tables", "tables")
    for kind in vars(_native).values():
        # A promotion needs a cold tier: tests/test_cold.py.
        if not isinstance(kind, type) or issubclass(kind, BaseException) or kind is _native.Promotion:
            continue
        if kind in (cenote.Addresses, cenote.Codec, cenote.KvMemory, cenote.Table, DeviceMemory, Gpu, RowKernel):
            yield kind.__name__
        for name in vars(kind):
            if not name.startswith("_") and callable(getattr(kind, name)):
                yield f"{kind.__name__}.{name}"
