"""Hits for layers with different windows, compared with an exhaustive search."""

import random
from collections.abc import Callable

import pytest

from cenote.hits import Reach, alignment, longest_hit

FULL = Reach(16)


class Held:
    """The present blocks of each group. Counts the queries."""

    def __init__(self, *groups: set[int]) -> None:
        self.groups, self.asked = groups, 0

    def last_missing(self, group: int, first: int, last: int) -> int | None:
        self.asked += 1
        return max((block for block in range(first, last) if block not in self.groups[group]), default=None)


def longest(reaches: list[Reach], start: int, end: int, last_missing: Callable[[int, int, int], int | None]) -> int:
    return longest_hit(reaches, alignment(reaches), start, end, last_missing)


def depends(reach: Reach, at: int, token: int) -> bool:
    """True if the computation of token `at` reads the block of an earlier token."""
    if reach.is_state:
        return token == at - 1
    if reach.chunk is not None:
        return token // reach.chunk == at // reach.chunk
    return reach.window is None or token > at - reach.window


def by_trying(reaches: list[Reach], start: int, end: int, held: Held) -> int:
    """The longest end for which all groups have the needed blocks, by exhaustive search."""
    step = alignment(reaches)
    for at in range(end // step * step, start, -step):
        needed = []
        for reach in reaches:
            # The tokens that token `at` depends on through this group.
            tokens = [token for token in range(at) if depends(reach, at, token)]
            blocks = {token // reach.block_tokens for token in tokens if token >= start}
            needed.append(sorted(blocks))
        if all(set(blocks) <= there for blocks, there in zip(needed, held.groups, strict=True)):
            return at
    return start


@pytest.mark.parametrize(
    "reach",
    [FULL, Reach(16, is_state=True), *(Reach(16, window) for window in range(1, 70)), *(Reach(16, chunk=16 * chunk) for chunk in range(1, 5))],
)
def test_a_token_is_computed_again_only_from_blocks_of_the_hit(reach: Reach) -> None:
    """A state that contains a token is no state to compute this token from."""
    for end in range(16, 400, 16):
        loaded = set(range(reach.first(end), end // 16))
        needed = {token // 16 for token in range(end - 1) if depends(reach, end - 1, token)}
        # The blocks that the computation of the last token reads, and its own.
        suffices = needed | {(end - 1) // 16} <= loaded and not reach.is_state
        assert reach.repeats(end) == suffices, end
    assert FULL.repeats(64)
    assert not Reach(16, is_state=True).repeats(64)
    assert not Reach(16, chunk=64).repeats(64)
    assert Reach(16, chunk=64).repeats(80)


def test_full_attention_needs_every_block() -> None:
    assert longest([FULL], 0, 100, Held(set(range(10))).last_missing) == 96
    assert longest([FULL], 0, 100, Held({0, 1, 3, 4, 5}).last_missing) == 32
    assert longest([FULL], 0, 100, Held({1, 2, 3}).last_missing) == 0
    # Blocks before the start are not needed.
    assert longest([FULL], 16, 100, Held({1, 2, 3}).last_missing) == 64


def test_a_window_needs_its_own_blocks_only() -> None:
    # A token attends to itself and 32 earlier tokens: two blocks.
    window = Reach(16, 33)
    assert window.first(96) == 4
    assert longest([window], 0, 100, Held({4, 5}).last_missing) == 96
    assert longest([window], 0, 100, Held({3, 4}).last_missing) == 80
    assert longest([window], 0, 100, Held({1, 3, 5}).last_missing) == 0
    assert longest([window], 0, 100, Held({0, 2, 4}).last_missing) == 16
    assert longest([window], 64, 100, Held({4}).last_missing) == 80
    # One more token needs a third block.
    assert longest([Reach(16, 34)], 0, 100, Held({4, 5}).last_missing) == 0
    # A token that attends only to itself needs no earlier block.
    assert longest([Reach(16, 1)], 0, 100, Held(set()).last_missing) == 96


def test_all_groups_agree_on_one_end() -> None:
    window = Reach(16, 33)
    whole = set(range(10))
    assert longest([FULL, window], 0, 160, Held(whole, {8, 9}).last_missing) == 160
    assert longest([FULL, window], 0, 160, Held(whole - {9}, whole).last_missing) == 144
    assert longest([FULL, window], 0, 160, Held(whole, whole - {9}).last_missing) == 144
    assert longest([FULL, window, window], 0, 160, Held(whole, {3, 4, 8, 9}, {3, 4, 6, 7}).last_missing) == 80
    assert longest([FULL, window, window], 0, 160, Held(whole, {8, 9}, {6, 7}).last_missing) == 0


def test_a_hit_ends_at_a_block_border_of_every_size() -> None:
    reaches = [Reach(32), Reach(48, 60)]
    assert alignment(reaches) == 96
    assert longest(reaches, 0, 400, Held(set(range(20)), set(range(20))).last_missing) == 384
    assert longest(reaches, 0, 400, Held(set(range(20)) - {11}, set(range(20))).last_missing) == 288
    assert longest(reaches, 96, 400, Held(set(range(3, 20)), set(range(3))).last_missing) == 96


def test_a_state_needs_the_last_block_and_a_chunk_its_own() -> None:
    state, chunk = Reach(16, is_state=True), Reach(16, chunk=64)
    assert (state.first(96), state.first(0), chunk.first(96), chunk.first(64), chunk.first(63)) == (5, 0, 4, 4, 0)
    assert longest([state], 0, 100, Held({2, 4}).last_missing) == 80
    assert longest([FULL, state], 0, 100, Held({0, 1, 2, 3}, {1, 4}).last_missing) == 32
    assert longest([state], 80, 100, Held({2, 4}).last_missing) == 80
    # No token after a border of a chunk attends to one before.
    assert longest([chunk], 0, 70, Held(set()).last_missing) == 64
    assert longest([chunk], 0, 60, Held({0, 2}).last_missing) == 16
    assert not any(reach.is_whole for reach in (state, chunk, Reach(16, 33)))


@pytest.mark.parametrize("seed", range(600))
def test_the_longest_hit_equals_that_of_an_exhaustive_search(seed: int) -> None:
    random_ = random.Random(seed)
    sizes = random_.choice([[16], [16, 32], [8, 24]])
    kinds = [
        lambda size: Reach(size),
        lambda size: Reach(size, random_.randrange(1, 200)),
        lambda size: Reach(size, chunk=random_.randrange(1, 200)),
        lambda size: Reach(size, is_state=True),
    ]
    reaches = [random_.choice(kinds)(random_.choice(sizes)) for _ in range(random_.randrange(1, 5))]
    share = random_.choice([0.5, 0.9, 0.99])
    held = Held(*({block for block in range(100) if random_.random() < share} for _ in reaches))
    start = random_.randrange(4) * alignment(reaches)
    end = random_.randrange(800)
    assert longest(reaches, start, end, held.last_missing) == by_trying(reaches, start, end, held)
    # Each missing block is found at most once; after each find, every group is queried once more.
    assert held.asked <= (800 // 8 + 1) * len(reaches)
