"""Followers of a region's stored and evicted blocks."""

import ctypes

import pytest

import cenote

PAGE = 4096


def publish(blocks: cenote.Namespace, names: cenote.Hashes, numbers: range) -> None:
    for number in numbers:
        assert blocks.publish(names[number], number, bytes(PAGE), name=100 + number, parent=99 + number) == "published"


def test_a_follower_gets_the_events_of_other_workers(region: cenote.Region, name: str) -> None:
    blocks = region.namespace(b"model", PAGE)
    names = blocks.hash_tokens(list(range(64)), 16)
    follower = region.follow()
    assert follower.poll() == ([], "begun")
    with cenote.Region.open(name, worker="other") as other:
        publish(other.namespace(b"model", PAGE), names, range(3))
    stored = [("stored", blocks.id, names[number], 100 + number, 99 + number, number) for number in range(3)]
    assert follower.poll() == (stored, None)
    assert region.follow().poll() == (stored, "begun")
    assert blocks.forget() == 3
    events, resync = follower.poll()
    assert {(kind, name) for kind, _, _, name, _, _ in events} == {("removed", 100 + number) for number in range(3)}
    assert resync is None
    assert follower.poll() == ([], None)


def test_events_have_names_of_blocks_written_in_place_and_page_by_page(region: cenote.Region) -> None:
    blocks = region.namespace(b"model", PAGE)
    names = blocks.hash_tokens(list(range(64)), 16)
    filling = blocks.begin(names[0], 0, name=7)
    assert filling is not None
    filling.publish()
    pages = bytearray(3 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    memory = cenote.KvMemory([(start, PAGE, PAGE)], 3, pages)
    memory.save(blocks, names[1:3], [1, 2], [0, 2], names=[8, 9], parent=7).finish()
    memory.close()
    told = [(name, parent) for _, _, _, name, parent, _ in region.follow().poll()[0]]
    assert sorted(told) == [(7, 0), (8, 7), (9, 8)]
    with pytest.raises(ValueError, match="1 names of 2 blocks"):
        memory.save(blocks, names[1:3], [1, 2], [0, 2], names=[8])


def test_a_region_without_an_event_log_cannot_be_followed(name: str) -> None:
    cenote.Region.create(name, "8MiB", max_hosts=2, chunk_size="256KiB", min_block="4KiB")
    with cenote.Region.open(name) as region, pytest.raises(cenote.CenoteError, match="keeps no events"):
        region.follow().poll()
