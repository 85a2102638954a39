"""Lookups in a region without an engine: groups, ranks and scarce pins."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_groups import chunked, full, groups, mamba, sliding

import cenote
from cenote.hits import alignment
from cenote.vllm.lookup import Lookup
from cenote.vllm.metadata import LoadPart

PAGE, BLOCKS, SIZE, WINDOW = 4096, 40, 32, 128


class Held:
    """Namespaces of groups on two ranks, and a request of `BLOCKS` blocks plus one token."""

    def __init__(self, region: cenote.Region, *specs: Any, of: str = "") -> None:
        self.groups = groups(*specs)
        self.ranks = {
            group.number: [region.namespace(f"{of} {len(specs)} {group.number} {rank}".encode(), PAGE) for rank in range(2)]
            for group in self.groups
        }
        self.request: Any = SimpleNamespace(
            num_tokens=BLOCKS * SIZE + 1,
            block_hashes=[number.to_bytes(32, "big") for number in range(BLOCKS)],
            lora_request=None,
        )
        self.lookup = Lookup(self.groups, alignment([group.reach for group in self.groups]))
        assert self.lookup.limit(self.request) == 0, "the workers have not named their parts yet"
        self.lookup.ranks = [self.ranks[group.number] for group in self.groups]

    def put(self, group: int, rank: int, blocks: range) -> None:
        namespace = self.ranks[group][rank]
        names = namespace.alias(self.request.block_hashes[blocks.start : blocks.stop])
        for name, depth in zip(names, blocks, strict=True):
            assert namespace.publish(name, depth, bytes(PAGE)) == "published"

    def find(self, start: int = 0) -> tuple[int, list[int]]:
        found = self.lookup.find(self.request, start * SIZE, self.lookup.limit(self.request))
        lengths = [len(lease) for lease in found.leases]
        found.release()
        assert (found.end == start * SIZE) == (not lengths)
        return found.end // SIZE, lengths


@pytest.fixture
def region(request: pytest.FixtureRequest) -> Iterator[cenote.Region]:
    name = f"cenote-lookup-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    pins = getattr(request, "param", 1792)
    cenote.Region.create(f"shm:{name}", "16MiB", chunk_size="256KiB", min_block="4KiB", max_hosts=2, pins_per_worker=pins)
    with cenote.Region.open(f"shm:{name}") as region:
        yield region
        # Lookups must not leak pins.
        assert region.check()["pinned"] == 0
    Path("/dev/shm", name).unlink()


def test_a_hit_needs_every_rank_and_every_group(region: cenote.Region) -> None:
    held = Held(region, full(), sliding(WINDOW))
    assert held.find() == (0, [])
    for rank in range(2):
        held.put(0, rank, range(30))
    assert held.find() == (0, [])
    held.put(1, 0, range(40))
    assert held.find() == (0, [])
    # With a window of 128 tokens, a token attends to 127 earlier tokens: four blocks.
    held.put(1, 1, range(16, 20))
    assert held.find() == (20, [20, 20, 4, 4])
    held.put(1, 1, range(21, 25))
    assert held.find() == (25, [25, 25, 4, 4])
    held.put(1, 1, range(25, 40))
    assert held.find() == (30, [30, 30, 4, 4])
    # The lookup skips computed tokens.
    assert held.find(28) == (30, [2, 2, 2, 2])
    assert held.find(30) == (30, [])


def test_names_of_a_request_are_computed_once(region: cenote.Region) -> None:
    """Each lookup of a waiting request hashed all keys again, and so did each worker."""
    held = Held(region, full(), sliding(WINDOW))
    for group in range(2):
        for rank in range(2):
            held.put(group, rank, range(30))
    before = {rank.id: rank.hashes_computed for ranks in held.ranks.values() for rank in ranks}

    def computed() -> list[list[int]]:
        return [[rank.hashes_computed - before[rank.id] for rank in held.ranks[group]] for group in range(2)]

    assert held.find()[0] == 30
    first = computed()
    assert first[0] == [BLOCKS] * 2 and max(first[1]) <= BLOCKS
    assert held.find()[0] == held.find(8)[0] == 30
    part = LoadPart(0, held.lookup.names(held.request, held.groups[0], 2, 30), list(range(28)))
    assert computed() == first

    for rank in held.ranks[0]:
        # A worker has its own object.
        worker = region.namespace(f" 2 0 {held.ranks[0].index(rank)}".encode(), PAGE)
        received = pickle.loads(pickle.dumps(part))
        lease = worker.lookup(received.names_in(worker))
        assert (worker.id, len(lease), worker.hashes_computed) == (rank.id, 28, 0)
        lease.release()
    assert len(part.names_in(region.namespace(b"unknown to the scheduler", PAGE))) == 0

    # A block with another key has another name.
    held.request.block_hashes[5] = bytes(31) + b"x"
    assert held.find()[0] == 5
    held.lookup.forget("")
    assert held.find()[0] == 5


@pytest.mark.parametrize(
    ("specs", "whole"),
    [
        ([full()], True),
        ([full(), sliding(WINDOW)], True),
        # A window that begins at a block's second token, so the token before needs one block more.
        ([full(), sliding(WINDOW + 1)], False),
        # All blocks are a whole number of chunks: the next token begins one and needs nothing.
        ([full(), chunked(BLOCKS * SIZE)], False),
        ([full(), chunked(2 * BLOCKS * SIZE)], True),
        ([full(), mamba()], False),
    ],
)
def test_the_last_block_of_a_prompt_is_loaded_only_if_its_last_token_can_be_computed_again(
    region: cenote.Region, specs: list[Any], whole: bool
) -> None:
    held = Held(region, *specs)
    held.request.num_tokens = BLOCKS * SIZE
    for group in range(len(specs)):
        for rank in range(2):
            held.put(group, rank, range(BLOCKS))
    end = BLOCKS if whole else BLOCKS - 1
    assert held.lookup.limit(held.request) == end * SIZE
    assert held.find()[0] == end
    assert held.find(BLOCKS - 1)[0] == end, "vLLM's own cache has all but the last block"
    held.lookup.repeats = False
    assert held.lookup.limit(held.request) == (BLOCKS - 1) * SIZE
    held.request.num_tokens += 1
    assert held.lookup.limit(held.request) == BLOCKS * SIZE


def test_a_hit_ends_where_every_rank_has_a_state(region: cenote.Region) -> None:
    held = Held(region, full(), mamba(), chunked(128))
    for rank in range(2):
        held.put(0, rank, range(30))
        held.put(2, rank, range(40))
    assert held.find() == (0, [])
    held.put(1, 0, range(9, 10))
    held.put(1, 0, range(19, 20))
    assert held.find() == (0, [])
    held.put(1, 1, range(9, 10))
    # Chunks have four blocks, so after block 9 a token attends to blocks 8 and 9.
    assert held.find() == (10, [10, 10, 1, 1, 2, 2])
    found = held.lookup.find(held.request, 0, held.lookup.limit(held.request))
    assert found.without_state == 20 * SIZE, "all groups but the states have 30 blocks"
    found.release()
    held.put(1, 1, range(19, 20))
    assert held.find() == (20, [20, 20, 1, 1, 0, 0])
    assert held.find(10) == (20, [10, 10, 1, 1, 0, 0])
    assert held.find(20) == (20, [])
    assert held.ranks[1][0].forget() == 2
    assert held.find() == (0, [])


@pytest.mark.parametrize("region", [56], indirect=True)
def test_scarce_pins_shorten_a_hit_evenly(region: cenote.Region) -> None:
    held = Held(region, full(), sliding(WINDOW))
    for group in range(2):
        for rank in range(2):
            held.put(group, rank, range(BLOCKS))
    # The window takes four pins on each of two ranks. The ranks share the rest equally.
    assert held.find() == (24, [24, 24, 4, 4])
    alone = Held(region, full())
    for rank in range(2):
        alone.put(0, rank, range(BLOCKS))
    assert alone.find() == (28, [28, 28])
    # One rank has fewer blocks, and pins suffice.
    less = Held(region, full(), full(), of="less")
    for group, rank, blocks in ((0, 0, 13), (0, 1, 13), (1, 0, 13), (1, 1, 6)):
        less.put(group, rank, range(blocks))
    assert less.find() == (6, [6, 6, 6, 6])


def test_a_block_evicted_before_its_pin_is_missing(region: cenote.Region) -> None:
    held = Held(region, full(), sliding(WINDOW))
    for group in range(2):
        for rank in range(2):
            held.put(group, rank, range(BLOCKS))
    window = held.ranks[1][1]
    asked = []

    class Forgetful:
        """A rank that reports all blocks as present, but pins only two at the first lookup."""

        def __getattr__(self, name: str) -> Any:
            return getattr(window, name)

        def lookup(self, names: cenote.Hashes) -> cenote.Lease:
            asked.append(len(names))
            lease = window.lookup(names)
            if len(asked) == 1:
                lease.truncate(2)
            return lease

    held.lookup.ranks[1] = [window, Forgetful()]  # type: ignore[list-item]
    # The lookup wanted blocks 36 to 39, but 38 was gone.
    assert held.find() == (38, [38, 38, 4, 4])
    assert asked == [4, 4]
