"""Blocks that are encoded in the region."""

from __future__ import annotations

import array
import ctypes
import itertools
import json
import random
import struct

import pytest
from fake_device import FakeDevice
from waiting import PATIENCE

import cenote
from cenote.device import DeviceMemory, PageLayout

LAYERS, HEADS, TOKENS, DIM, BLOCKS = 3, 2, 16, 32, 24
VALUES = HEADS * TOKENS * DIM


def values_of(layer: int, number: int) -> dict[tuple[int, int, int, int], float]:
    """A block's values of one layer by side, head, token and channel."""
    source = random.Random(layer * 1000 + number)
    places = itertools.product(range(2), range(HEADS), range(TOKENS), range(DIM))
    return {place: source.gauss(0, 1 + place[0]) for place in places}


def place_of(order: str, kv: str, side: int, head: int, token: int, channel: int) -> int:
    """Index of a value in a layer's page."""
    row = token * HEADS + head if order == "NHD" else head * TOKENS + token
    row = 2 * row + side if kv == "joint" else side * HEADS * TOKENS + row
    return row * DIM + channel


class Layout:
    """Page layout of an engine, and its codec."""

    def __init__(self, order: str, kv: str, dtype: str, codec: str = "int8", profile: bytes | None = None) -> None:
        self.order, self.kv, self.dtype = order, kv, dtype
        self.value_bytes = 4 if dtype == "f32" else 2
        self.page_bytes = 2 * VALUES * self.value_bytes
        self.codec = cenote.Codec(
            codec, num_layers=LAYERS, num_heads=HEADS, head_dim=DIM, block_tokens=TOKENS, dtype=dtype, order=order, kv=kv,  # type: ignore[arg-type]
            profile=profile,
        )  # fmt: skip

    def page(self, layer: int, number: int) -> bytes:
        page = [0.0] * (2 * VALUES)
        for place, value in values_of(layer, number).items():
            page[place_of(self.order, self.kv, *place)] = value
        if self.dtype == "bf16":
            return b"".join(struct.pack("<f", value)[2:] for value in page)
        return struct.pack(f"<{2 * VALUES}{'f' if self.dtype == 'f32' else 'e'}", *page)

    def error(self, page: bytes, layer: int, number: int) -> float:
        """The largest error, relative to the largest value of its side."""
        if self.dtype == "bf16":
            found = [struct.unpack("<f", b"\0\0" + page[at : at + 2])[0] for at in range(0, len(page), 2)]
        else:
            found = list(struct.unpack(f"<{2 * VALUES}{'f' if self.dtype == 'f32' else 'e'}", page))
        expected = values_of(layer, number)
        largest = [max(abs(value) for place, value in expected.items() if place[0] == side) for side in range(2)]
        errors = (
            abs(found[place_of(self.order, self.kv, *place)] - value) / largest[place[0]] for place, value in expected.items()
        )
        return max(errors)


class Engine:
    """KV memory of an engine."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.bytes = (ctypes.c_uint8 * (LAYERS * BLOCKS * layout.page_bytes))()
        address, page = ctypes.addressof(self.bytes), layout.page_bytes
        self.memory = cenote.KvMemory([(address + layer * BLOCKS * page, page, page) for layer in range(LAYERS)], BLOCKS, self)

    def at(self, layer: int, block: int) -> slice:
        start = (layer * BLOCKS + block) * self.layout.page_bytes
        return slice(start, start + self.layout.page_bytes)

    def page(self, layer: int, block: int) -> bytes:
        return bytes(self.bytes[self.at(layer, block)])

    def fill(self, layer: int, block: int, content: bytes) -> None:
        self.bytes[self.at(layer, block)] = content


def namespace(region: cenote.Region, layout: Layout, codec: bool = True) -> cenote.Namespace:
    return region.namespace(b"model", LAYERS * layout.page_bytes, codec=layout.codec if codec else None)


def save(region: cenote.Region, layout: Layout, count: int = 8) -> cenote.Hashes:
    blocks, engine = namespace(region, layout), Engine(layout)
    names = blocks.hash_tokens(list(range(TOKENS * count)), TOKENS)
    save = engine.memory.save(blocks, names, list(range(count)), list(range(count)))
    for layer in range(LAYERS):
        for number in range(count):
            engine.fill(layer, number, layout.page(layer, number))
        save.layer(layer)
    assert save.finish() == {"published": count}
    again = engine.memory.save(blocks, names, list(range(count)), list(range(count)))
    assert again.finish() == {"duplicate": count}
    return names


# INT8 with one scale per page: half a step of 127, plus the rounding to 16 bits.
BOUND = {"f32": 0.5 / 127 + 1e-6, "f16": 0.5 / 127 + 1e-3, "bf16": 0.5 / 127 + 2 / 128}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kv", ["joint", "split"])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_decoded_blocks_are_within_the_error_bound(region: cenote.Region, order: str, kv: str, dtype: str) -> None:
    layout = Layout(order, kv, dtype)
    names = save(region, layout)
    blocks, engine = namespace(region, layout), Engine(layout)
    taken = region.counters()["pool_published_bytes_total"]
    assert taken < 8 * LAYERS * layout.page_bytes * (0.3 if dtype == "f32" else 0.55)
    load = engine.memory.load(blocks.lookup(names), list(range(8))[::-1])
    assert all(load.wait_layer(layer, PATIENCE) for layer in range(LAYERS))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    for layer in range(LAYERS):
        for number in range(8):
            assert layout.error(engine.page(layer, 7 - number), layer, number) < BOUND[dtype]
    # The same through buffers.
    back = bytearray(LAYERS * layout.page_bytes)
    with blocks.lookup(names) as lease:
        assert lease.read_into(2, [memoryview(back)[:128], memoryview(back)[128:]])
    assert bytes(back) == b"".join(engine.page(layer, 5) for layer in range(LAYERS))
    assert region.check(payloads=True)["is_clean"]


STEP = 0.1


def profile(step: float = STEP) -> bytes:
    """A profile in the format of `cenote profile`: a safetensors file."""
    curve = [-6 + 12 * point / 2000 for point in range(2001)]
    sides = [("means", [0.0] * HEADS * DIM), ("deviations", [1.0] * HEADS * DIM), ("steps", [step] * HEADS * DIM)]
    sides += [(name, curve) for name in ("values", "centered", "normal")]
    header: dict[str, object] = {
        "__metadata__": {"format": "cenote-profile", "version": "1", "model": "00" * 32, "tokens": "1", "prompts": "1"}
    }
    content = b""
    for name, numbers in sides:
        data = array.array("f", numbers * (2 * LAYERS)).tobytes()
        header[name] = {
            "dtype": "F32", "shape": [LAYERS, 2, len(numbers)], "data_offsets": [len(content), len(content) + len(data)],
        }  # fmt: skip
        content += data
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + content


@pytest.mark.parametrize("codec", ["qpack:1", "qpackz:1"])
def test_codecs_with_a_profile_need_the_same_profile_and_rate(region: cenote.Region, codec: str) -> None:
    layout = Layout("NHD", "joint", "f32", codec, profile())
    names, engine = save(region, layout), Engine(layout)
    assert region.counters()["pool_published_bytes_total"] < 8 * LAYERS * layout.page_bytes * 0.35
    load = engine.memory.load(namespace(region, layout).lookup(names), list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    for layer in range(LAYERS):
        expected = values_of(layer, 4)
        largest = min(max(abs(value) for place, value in expected.items() if place[0] == side) for side in range(2))
        assert layout.error(engine.page(layer, 4), layer, 4) < 0.51 * STEP / largest
    # A codec with another profile or rate cannot decode them: the load fails.
    for other in (Layout("NHD", "joint", "f32", codec, profile(2 * STEP)), Layout("NHD", "joint", "f32", codec[:-1] + "2", profile())):
        assert other.codec.name != layout.codec.name
        load = engine.memory.load(namespace(region, other).lookup(names), list(range(8)))
        assert load.wait(PATIENCE)
        assert load.failed() == list(range(8))


def test_an_engine_with_another_order_decodes_the_blocks(region: cenote.Region) -> None:
    names = save(region, Layout("NHD", "joint", "f32"))
    other = Layout("HND", "split", "f32", "int8+delta")
    engine = Engine(other)
    load = engine.memory.load(namespace(region, other).lookup(names), list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert other.error(engine.page(1, 3), 1, 3) < BOUND["f32"]


def test_a_namespace_without_a_codec_skips_encoded_blocks(region: cenote.Region) -> None:
    layout = Layout("NHD", "joint", "f32")
    names = save(region, layout)
    assert len(namespace(region, layout, codec=False).lookup(names)) == 0


def test_a_namespace_with_a_codec_finds_raw_blocks(region: cenote.Region) -> None:
    layout = Layout("NHD", "split", "f32")
    blocks, engine = namespace(region, layout), Engine(layout)
    names = blocks.hash_tokens(list(range(2 * TOKENS)), TOKENS)
    raw = [b"".join(layout.page(layer, number) for layer in range(LAYERS)) for number in range(2)]
    for number in range(2):
        assert blocks.publish(names[number], number, raw[number]) == "published"
    load = engine.memory.load(blocks.lookup(names), [4, 5])
    assert load.wait(PATIENCE)
    assert load.failed() == []
    assert b"".join(engine.page(layer, 5) for layer in range(LAYERS)) == raw[1]


def test_keys_with_a_nan_are_stored_raw(region: cenote.Region) -> None:
    layout = Layout("NHD", "joint", "f32")
    blocks, engine = namespace(region, layout), Engine(layout)
    names = blocks.hash_tokens(list(range(TOKENS)), TOKENS)
    odd = array.array("f", [float("nan"), *([1.0] * (2 * VALUES - 1))]).tobytes()
    save = engine.memory.save(blocks, names, [0], [3])
    for layer in range(LAYERS):
        engine.fill(layer, 3, odd)
    assert save.finish() == {"published": 1}
    load = engine.memory.load(blocks.lookup(names), [0])
    assert load.wait(PATIENCE)
    assert load.failed() == []
    # The keys contain a NaN, so they are stored raw. The values are encoded.
    side = [engine.page(0, 0)[at : at + 4] for at in range(0, DIM * 4, 4)]
    assert side == [odd[at : at + 4] for at in range(0, DIM * 4, 4)]


def test_damage_and_foreign_frames_are_misses(region: cenote.Region) -> None:
    layout = Layout("NHD", "joint", "f32")
    names, engine = save(region, layout), Engine(layout)
    lease = namespace(region, layout).lookup(names)
    byte = ctypes.c_uint8.from_address(lease.view(3, verify=False).extent[0] + 40)
    byte.value ^= 1
    load = engine.memory.load(lease, list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == [3]
    # Equal block size but other heads: the frames contain the shape.
    other = Layout("NHD", "joint", "f32")
    other.codec = cenote.Codec(
        "int8", num_layers=LAYERS, num_heads=2 * HEADS, head_dim=DIM // 2, block_tokens=TOKENS, dtype="f32", order="NHD", kv="joint"
    )
    # The reader removed the damaged block, so that it can be saved again. Earlier blocks remain.
    lease = namespace(region, other).lookup(names)
    assert len(lease) == 3
    load = engine.memory.load(lease, list(range(3)))
    assert load.wait(PATIENCE)
    assert load.failed() == list(range(3))


@pytest.mark.parametrize("seed", range(4))
def test_a_device_loads_and_saves_encoded_blocks_through_staging(region: cenote.Region, seed: int) -> None:
    layout = Layout("HND", "split", "f32")
    names, blocks = save(region, layout), namespace(region, layout)
    half = layout.page_bytes // 2
    shape = PageLayout(half, ((0, half), (BLOCKS * half, half)), BLOCKS)

    def memory(device: FakeDevice) -> DeviceMemory:
        layers = [(device.base + layer * BLOCKS * layout.page_bytes, shape) for layer in range(LAYERS)]
        return device.of(region, layers, staged=True, staging_bytes=16 * LAYERS * layout.page_bytes)

    one = FakeDevice(LAYERS * BLOCKS * layout.page_bytes, seed)
    first = memory(one)
    load = first.load(blocks.lookup(names), list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    one.run()

    def page(device: FakeDevice, layer: int, block: int) -> bytes:
        at = layer * BLOCKS * layout.page_bytes + block * half
        return device.read(at, half) + device.read(at + BLOCKS * half, half)

    assert layout.error(page(one, 2, 6), 2, 6) < BOUND["f32"]
    # Save them again under other names.
    others = blocks.alias([bytes([number]) for number in range(8)])
    first.save([(blocks, others, range(8), range(8), None, 0)])
    one.run_until("eight published blocks", lambda: blocks.count(others) == 8)
    two = FakeDevice(LAYERS * BLOCKS * layout.page_bytes, seed)
    second = memory(two)
    load = second.load(blocks.lookup(others), list(range(8)))
    assert load.wait(PATIENCE)
    assert load.failed() == []
    two.run()
    assert layout.error(page(two, 1, 7), 1, 7) < 2 * BOUND["f32"]
    assert first.close(PATIENCE)
    assert second.close(PATIENCE)
    assert not one.wrong
    assert not two.wrong


def test_invalid_codecs_are_refused(region: cenote.Region) -> None:
    def codec(
        name: str = "int8",
        dtype: str = "f32",
        order: str = "NHD",
        kv: str = "joint",
        dim: int = DIM,
        profile: bytes | None = None,
    ) -> cenote.Codec:
        return cenote.Codec(
            name, num_layers=LAYERS, num_heads=HEADS, head_dim=dim, block_tokens=TOKENS, dtype=dtype, order=order,  # type: ignore[arg-type]
            kv=kv, profile=profile,  # type: ignore[arg-type]
        )  # fmt: skip

    for wrong, said in (
        ({"name": "zip"}, "`zip` is no codec"),
        ({"name": "qpack:0.5"}, "needs a profile"),
        ({"name": "qpack:0.5", "profile": b"x"}, "the profile: "),
        ({"name": "qpack:0.5", "profile": profile(), "dim": 2 * DIM}, "64 channels, but the blocks have 3 of 128"),
        ({"dtype": "fp8"}, "not for fp8"),
        ({"order": "DHN"}, "the order is DHN"),
        ({"kv": "apart"}, "kv is apart"),
        ({"dim": 0}, "0 channels"),
    ):
        with pytest.raises(ValueError, match=said):
            codec(**wrong)  # type: ignore[arg-type]
    layout = Layout("NHD", "joint", "f32")
    assert codec().name == "int8"
    with pytest.raises(ValueError, match="a codec for blocks of"):
        region.namespace(b"model", 64, codec=codec())
    names = save(region, layout)
    pages = [(64, 128, 64)] * (LAYERS * layout.page_bytes // 64)
    odd = cenote.KvMemory(pages, 8, None)
    with pytest.raises(ValueError, match="but this memory has other pages"):
        odd.save(namespace(region, layout), names, list(range(8)), list(range(8)))
