"""Rows of pinned blocks, gathered into one buffer."""

import array
import ctypes

import pytest

import cenote

TOKENS, WIDTH = 16, 256
PAGE = TOKENS * WIDTH
BLOCK = 2 * PAGE
COUNT = 6


def payload(block: int) -> bytes:
    """Each token's row of each page is of one value."""
    return b"".join(bytes([block * 40 + page * 17 + token]) * WIDTH for page in range(2) for token in range(TOKENS))


@pytest.fixture
def blocks(region: cenote.Region) -> cenote.Namespace:
    return region.namespace(b"rows", BLOCK)


@pytest.fixture
def names(blocks: cenote.Namespace) -> cenote.Hashes:
    names = blocks.hash_tokens(list(range(TOKENS * COUNT)), TOKENS)
    for depth in range(COUNT):
        assert blocks.publish(names[depth], depth, payload(depth)) == "published"
    return names


def pairs(*rows: tuple[int, int]) -> "array.array[int]":
    return array.array("I", [number for row in rows for number in row])


def test_rows_come_in_the_order_of_the_list(blocks: cenote.Namespace, names: cenote.Hashes) -> None:
    wanted = [(5, 15), (0, 0), (3, 7), (5, 15), (1, 2)]
    lease = blocks.lookup(names)
    with lease.rows() as rows:
        assert len(rows) == COUNT
        assert len(lease) == 0, "the pins have moved"
        for page in range(2):
            into = bytearray(len(wanted) * WIDTH)
            assert rows.gather(pairs(*wanted), into, size=WIDTH, offset=page * PAGE, count=TOKENS) == []
            assert into == b"".join(bytes([block * 40 + page * 17 + token]) * WIDTH for block, token in wanted)
        assert rows.verify() == []
        into = bytearray(2 * 2 * 8)
        assert rows.gather(pairs((2, 1), (4, 3)), into, size=8, stride=WIDTH, pieces=2, piece_stride=PAGE) == []
        assert into == bytes([81] * 8 + [98] * 8 + [163] * 8 + [180] * 8)
        assert rows.gather(b"", bytearray(), size=WIDTH) == []
    assert len(rows) == 0


def test_what_cannot_be_is_a_value_error(blocks: cenote.Namespace, names: cenote.Hashes) -> None:
    rows = blocks.lookup(names).rows()
    into = bytearray(b"x" * WIDTH)
    for wrong in [(COUNT, 0), (0, TOKENS), (0, 2**32 - 1), (2**32 - 1, 0)]:
        with pytest.raises(ValueError, match="row 0 of the list"):
            rows.gather(pairs(wrong), into, size=WIDTH, count=TOKENS)
    with pytest.raises(ValueError, match="pairs of 32-bit numbers"):
        rows.gather(bytes(7), into, size=WIDTH)
    for size in [0, WIDTH - 1, 2**63]:
        with pytest.raises(ValueError):
            rows.gather(pairs((0, 0)), into, size=size)
    with pytest.raises(ValueError):
        rows.gather(pairs((0, 0)), into, size=WIDTH, stride=2**63, offset=2**63)
    with pytest.raises(ValueError, match="one piece"):
        rows.gather(pairs((0, 0), (0, 1)), [bytearray(WIDTH), bytearray(WIDTH)], size=WIDTH)
    with pytest.raises(BufferError):
        rows.gather(pairs((0, 0)), bytes(WIDTH), size=WIDTH)
    assert into == b"x" * WIDTH
    rows.release()
    with pytest.raises(ValueError, match="released"):
        rows.gather(pairs((0, 0)), into, size=WIDTH)


def press(blocks: cenote.Namespace, prompt: int) -> None:
    """Publishes more blocks than the region has room for, which are younger than all others."""
    others = blocks.hash_tokens(list(range(prompt << 20, (prompt << 20) + 1500 * TOKENS)), TOKENS)
    blocks.lookup(others).release()
    for depth in range(len(others)):
        assert blocks.publish(others[depth], depth, bytes(BLOCK)) != "no_room"


def test_a_set_keeps_its_blocks_until_it_is_released(blocks: cenote.Namespace, names: cenote.Hashes) -> None:
    lease = blocks.lookup(names)
    view = lease.view(0)
    assert view is not None
    rows = lease.rows()
    press(blocks, 1)
    assert blocks.count(names) == COUNT
    into = ctypes.create_string_buffer(WIDTH)
    assert rows.gather(pairs((0, 4)), (ctypes.addressof(into), WIDTH), size=WIDTH) == []
    assert into.raw == payload(0)[4 * WIDTH : 5 * WIDTH]
    del view
    rows.release()
    press(blocks, 2)
    assert blocks.count(names) == 0
