"""Blocks: publish, lookup, pin, reads and writes in place."""

import array
import copy
import ctypes
import itertools
import os
import pickle

import pytest

import cenote

PAGE = 4096


@pytest.fixture
def blocks(region: cenote.Region) -> cenote.Namespace:
    return region.namespace(b"model", PAGE)


def names_of(blocks: cenote.Namespace, count: int, prompt: int = 0) -> cenote.Hashes:
    return blocks.hash_tokens([prompt * 1000 + token for token in range(16 * count)], 16)


def test_a_lookup_ends_at_the_first_missing_block(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 4)
    for depth in (0, 1, 3):
        assert blocks.publish(names[depth], depth, bytes(PAGE)) == "published"
    assert blocks.publish(names[0], 0, bytes(PAGE)) == "duplicate"
    assert blocks.count(names) == 2
    assert blocks.present(names) == bytes([1, 1, 0, 1])
    assert blocks.present([]) == b""
    with blocks.lookup(names) as lease:
        assert len(lease) == 2
        assert lease.hashes() == names[:2]
    assert len(lease) == 0


def test_what_left_is_told_with_its_cause(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 2)
    assert blocks.publish(names[0], 0, bytes(PAGE)) == "published"
    assert blocks.removed(names) == [None, None], "one is there, and one never was"
    others = itertools.count(1)
    while blocks.count(names[:1]):
        blocks.publish(names_of(blocks, 1, next(others))[0], 0, bytes(PAGE))
    [gone, never] = blocks.removed(names)
    assert gone is not None
    assert never is None
    assert (gone["cause"], gone["host"], gone["pid"]) == ("evicted", 0, os.getpid())
    assert gone["stored"] > 0
    assert gone["time"] > 0
    assert blocks.publish(names[0], 0, bytes(PAGE)) == "published"
    assert blocks.removed(names[:1]) == [gone], "its last removal, although it is back"


def test_a_recorded_request_is_in_the_windows_of_the_region(region: cenote.Region, blocks: cenote.Namespace) -> None:
    number = blocks.record(names_of(blocks, 4), above=1, tokens=70)
    assert number is not None
    blocks.record_answer(number, 9)
    assert blocks.record(names_of(blocks, 2), above=2) is None, "the region is asked for none"
    windows = region.info()["windows"]
    assert [window["seconds"] for window in windows] == [900, 3600, 86400]
    assert (windows[2]["requests"], windows[2]["blocks"]) == (1, 3)


def test_parts_of_any_kind_make_a_block(blocks: cenote.Namespace) -> None:
    name = names_of(blocks, 1)
    keys, values = array.array("f", range(512)), array.array("i", range(512))
    assert blocks.publish(name[0], 0, [keys, values]) == "published"
    back = [array.array("f", bytes(2048)), bytearray(2048)]
    with blocks.lookup(name) as lease:
        assert lease.read_into(0, back)
        assert bytes(memoryview(lease.view(0))) == keys.tobytes() + values.tobytes()
    assert back[0] == keys
    assert back[1] == values.tobytes()


def test_addresses_are_memory_too(blocks: cenote.Namespace) -> None:
    name = names_of(blocks, 1)
    left, right = ctypes.create_string_buffer(b"l" * 1024, 1024), ctypes.create_string_buffer(b"r" * 3072, 3072)
    assert blocks.publish(name[0], 0, [(ctypes.addressof(left), 1024), (ctypes.addressof(right), 3072)]) == "published"
    back = ctypes.create_string_buffer(PAGE)
    with blocks.lookup(name) as lease:
        assert lease.read_into(0, (ctypes.addressof(back), PAGE))
        with pytest.raises(ValueError, match="address 0x0"):
            lease.read_into(0, (0, PAGE))
    assert back.raw == b"l" * 1024 + b"r" * 3072


# Codes and bits of elements.
FLOAT, BOOLEAN = (2, 32), (6, 8)


class Tensor:
    """A tensor with `__dlpack__`: a capsule around a structure. Counts calls of the deleter."""

    def __init__(self, content: bytes, shape: list[int], device: int = 1, strides: list[int] | None = None, kind: tuple[int, int] = FLOAT) -> None:
        self.memory = ctypes.create_string_buffer(content, len(content))
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = (ctypes.c_int64 * len(shape))(*strides) if strides else None
        self.given_back = 0
        self.deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._give_back)
        self.managed = Managed(
            ctypes.addressof(self.memory), device, 0, len(shape), *kind, 1, ctypes.addressof(self.shape),
            ctypes.addressof(self.strides) if self.strides else None, 0, None,
            ctypes.cast(self.deleter, ctypes.c_void_p),
        )  # fmt: skip

    def _give_back(self, _managed: int) -> None:
        self.given_back += 1

    def __dlpack__(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


class Managed(ctypes.Structure):
    """DLPack's `DLManagedTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_kind", ctypes.c_int32), ("device_number", ctypes.c_int32),
        ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


def test_tensors_are_memory_too(blocks: cenote.Namespace) -> None:
    name = names_of(blocks, 1)
    tensors = [Tensor(b"k" * 2048, [16, 32]), Tensor(b"v" * 2048, [4, 1, 128], strides=[128, 7, 1])]
    assert blocks.publish(name[0], 0, tensors) == "published"
    assert [tensor.given_back for tensor in tensors] == [1, 1]
    back = Tensor(bytes(PAGE), [1024])
    with blocks.lookup(name) as lease:
        assert lease.read_into(0, back)
        for wrong, said in ((Tensor(bytes(PAGE), [1024], device=2), "device 2:0"), (Tensor(bytes(PAGE), [32, 32], strides=[1, 32]), "contiguous")):
            with pytest.raises(BufferError, match=said):
                lease.read_into(0, wrong)
            assert wrong.given_back == 1
    assert (back.memory.raw, back.given_back) == (b"k" * 2048 + b"v" * 2048, 1)


def test_buffers_that_do_not_fit_are_refused(blocks: cenote.Namespace) -> None:
    name = names_of(blocks, 1)
    for parts in (bytes(PAGE - 1), [bytes(100), bytes(PAGE - 100)], []):
        with pytest.raises(ValueError):
            blocks.publish(name[0], 0, parts)
    with pytest.raises(TypeError):
        blocks.publish(name[0], 0, 7)
    with pytest.raises(ValueError, match="16 bytes"):
        blocks.publish(b"short", 0, bytes(PAGE))
    blocks.publish(name[0], 0, bytes(PAGE))
    with blocks.lookup(name) as lease, pytest.raises(BufferError, match="read-only"):
        lease.read_into(0, bytes(PAGE))
    with blocks.lookup(name) as lease, pytest.raises(BufferError, match="contiguous"):
        lease.read_into(0, memoryview(bytearray(2 * PAGE))[::2])
    with blocks.lookup(name) as lease, pytest.raises(IndexError):
        lease.read_into(1, bytearray(PAGE))


def test_a_pinned_block_is_not_evicted(region: cenote.Region, blocks: cenote.Namespace) -> None:
    kept = names_of(blocks, 2)
    for depth in range(2):
        blocks.publish(kept[depth], depth, bytes([7]) * PAGE)
    lease = blocks.lookup(kept)
    view = memoryview(lease.view(1))
    for prompt in range(1, 600):
        names = names_of(blocks, 8, prompt)
        for depth in range(8):
            blocks.publish(names[depth], depth, bytes([1]) * PAGE)
    assert region.counters()["pool_evicted_total"] > 0
    assert blocks.count(kept) == 2
    lease.release()
    assert bytes(view) == bytes([7]) * PAGE
    with pytest.raises(TypeError):
        view[0] = 1
    view.release()
    report = region.check(payloads=True)
    assert report["is_clean"], report
    assert report["pinned"] == 0


def test_a_damaged_block_has_no_view(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 2)
    for depth in range(2):
        assert blocks.publish(names[depth], depth, bytes([depth + 1]) * PAGE) == "published"
    with blocks.lookup(names) as lease:
        unchecked = lease.view(1, verify=False)
        ctypes.c_uint8.from_address(unchecked.extent[0] + PAGE - 1).value ^= 1
        assert lease.view(1) is None
        assert lease.view(1, verify=True) is None
        assert not unchecked.verify()
        assert bytes(unchecked) != bytes([2]) * PAGE, "an unchecked view shows what is there"
        whole = lease.view(0)
        assert whole is not None
        assert bytes(whole) == bytes([1]) * PAGE
        del unchecked
    # The reader that found the damage removed the block.
    assert blocks.count(names) == 1


def test_a_block_is_written_in_place(region: cenote.Region, blocks: cenote.Namespace) -> None:
    name = names_of(blocks, 2)
    filling = blocks.begin(name[0], 0)
    assert filling is not None
    view = memoryview(filling)
    view[:] = bytes([9]) * PAGE
    assert blocks.count(name) == 0
    with pytest.raises(BufferError, match="lent"):
        filling.publish()
    view.release()
    assert filling.publish() == "published"
    with pytest.raises(ValueError, match="published"):
        memoryview(filling)
    with blocks.lookup(name) as lease:
        assert lease.view(0, verify=False).verify()
        assert bytes(lease.view(0)) == bytes([9]) * PAGE
    given_up = blocks.begin(name[1], 1)
    assert given_up is not None
    given_up.abort()
    assert region.check()["reserved"] == 0


def test_aliases_differ_between_namespaces(region: cenote.Region, blocks: cenote.Namespace) -> None:
    other = region.namespace(b"another model", PAGE)
    keys = [bytes([number]) * 32 for number in range(3)]
    assert blocks.alias(keys) == blocks.alias(keys)
    assert blocks.alias(keys) != other.alias(keys)
    assert cenote.Hashes.frombytes(blocks.alias(keys).tobytes()) == blocks.alias(keys)
    with pytest.raises(ValueError):
        cenote.Hashes.frombytes(bytes(16))


def test_forget_removes_all_blocks_of_a_namespace(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 3)
    for depth in range(3):
        blocks.publish(names[depth], depth, bytes(PAGE))
    assert blocks.forget() == 3
    assert blocks.count(names) == 0


def test_a_quota_limits_the_published_blocks(blocks: cenote.Namespace) -> None:
    blocks.set_quota(2 * PAGE)
    names = names_of(blocks, 3)
    for depth in range(3):
        blocks.publish(names[depth], depth, bytes(PAGE))
    assert sum(blocks.count([names[depth]]) for depth in range(3)) == 2


def test_kept_bytes_stay_while_another_namespace_needs_room(region: cenote.Region, blocks: cenote.Namespace) -> None:
    other = region.namespace(b"of others", PAGE)
    names, theirs = names_of(blocks, 2), names_of(other, 5_000)
    for depth in range(2):
        blocks.publish(names[depth], depth, bytes(PAGE))
    blocks.keep(2 * PAGE)
    for name in theirs:
        other.lookup([name]).release()
        assert other.publish(name, 0, bytes(PAGE)) == "published"
    assert region.counters()["pool_evicted_total"] > 0
    assert (blocks.count(names), other.count(theirs[:1])) == (2, 0)
    with pytest.raises(cenote.CenoteError, match="half of its own"):
        other.keep(1 << 40)


def test_blocks_of_one_call_have_an_outcome_each(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 4)
    assert blocks.publish(names[1], 1, bytes([1]) * PAGE) == "published"
    parts = [bytes([number]) * PAGE for number in range(4)]
    order = [0, 1, 2, 0, 3]
    outcomes = blocks.publish_all([names[at] for at in order], order, [parts[at] for at in order])
    assert outcomes == ["published", "duplicate", "published", "duplicate", "published"]
    assert blocks.publish_all([], [], []) == []
    with blocks.lookup(names) as lease:
        assert [bytes(memoryview(lease.view(number))) for number in range(4)] == parts
    # A wrong payload publishes none.
    later = names_of(blocks, 2, prompt=1)
    for wrong in ([bytes(PAGE)], [bytes(PAGE), bytes(64)]):
        with pytest.raises(ValueError, match="payload|bytes"):
            blocks.publish_all(later, [0, 1], wrong)
    with pytest.raises(ValueError, match="2 hashes, 1 depths"):
        blocks.publish_all(later, [0], [bytes(PAGE)] * 2)
    assert blocks.count(later) == 0


def test_blocks_written_in_place_are_published_together(blocks: cenote.Namespace) -> None:
    names = names_of(blocks, 3)
    assert blocks.publish(names[1], 1, bytes(PAGE)) == "published"
    first, there, last = blocks.begin_all(names, range(3))
    assert there is None
    assert first is not None
    assert last is not None
    for filling in (first, last):
        memoryview(filling)[:] = b"x" * PAGE
    view = memoryview(last)
    with pytest.raises(BufferError):
        blocks.publish_filled([first, last])
    view.release()
    assert blocks.count(names) == 0
    assert blocks.publish_filled([first, last]) == ["published", "published"]
    with blocks.lookup(names) as lease:
        assert bytes(memoryview(lease.view(2))) == b"x" * PAGE
    with pytest.raises(ValueError, match="published or aborted"):
        blocks.publish_filled([first])


def test_two_namespaces_share_no_block_whatever_its_name(region: cenote.Region) -> None:
    """A raw hash found another model's block, and kept this model from publishing its own."""
    one, other = (region.namespace(f"model-{number}".encode(), PAGE) for number in range(2))
    key, theirs = b"k" * 16, one.hash_tokens(range(4), block_tokens=4)
    assert one.publish(key, 0, bytes([1]) * PAGE) == "published"
    assert one.publish(theirs[0], 0, bytes([1]) * PAGE) == "published"
    for names in ([key], theirs, [theirs[0]], cenote.Hashes.frombytes(theirs.tobytes())):
        assert other.count(names) == 0 and other.present(names) == b"\0"
        with other.lookup(names) as lease:
            assert len(lease) == 0
    assert other.publish(key, 0, bytes([2]) * PAGE) == "published"
    for number, blocks in enumerate((one, other), start=1):
        for names in ([key], blocks.alias([key]), [blocks.alias([key])[0]]):
            with blocks.lookup(names) as lease:
                assert bytes(lease.view(0)) == bytes([number]) * PAGE


def test_a_name_is_bytes_and_stays_a_name(region: cenote.Region) -> None:
    """Bytes that are no name are keys, so a name must survive copies and other processes."""
    blocks = region.namespace(b"model", PAGE)
    name = blocks.alias([b"key"])[0]
    assert blocks.publish(name, 0, bytes(PAGE)) == "published"
    for again in (name, pickle.loads(pickle.dumps(name)), copy.copy(name), cenote.BlockName(bytes(name))):
        assert isinstance(again, bytes) and len(again) == 16 and again == name and hash(again) == hash(bytes(name))
        assert blocks.count([again]) == 1
    assert blocks.count([bytes(name)]) == 0
