"""How much of a prompt can be used, where layers look back differently far. Pure: no region, no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """How far back the layers of one KV cache group look."""

    block_tokens: int
    window: int | None = None
    """Tokens that a token attends to, itself among them. None: all."""

    def first(self, end: int) -> int:
        """The first block that somebody needs who goes on at token `end`."""
        return 0 if self.window is None else max(end - self.window + 1, 0) // self.block_tokens


def alignment(reaches: Sequence[Reach]) -> int:
    """Tokens of which every hit is a multiple: it ends where a block of each group ends."""
    return math.lcm(*(reach.block_tokens for reach in reaches))


def longest_hit(reaches: Sequence[Reach], start: int, end: int, last_missing: Callable[[int, int, int], int | None]) -> int:
    """Where a prefix ends, at most at token `end`, that has of every group the blocks from token `start` on which are needed to
    go on behind it. What lies before `start` is there already. Returns `start` if there is none.

    `last_missing(group, first, last)` is the last block from `first` on and before `last` that the group lacks."""
    step = alignment(reaches)
    end -= end % step
    settled = 0
    group = 0
    # A block that is missing rules out every end whose window it is in, and of the shorter ones the longest is tried next.
    while end > start and settled < len(reaches):
        reach = reaches[group]
        size = reach.block_tokens
        missing = last_missing(group, max(reach.first(end), start // size), end // size)
        if missing is None:
            settled += 1
        else:
            settled = 0
            end = missing * size // step * step
        group = (group + 1) % len(reaches)
    return max(end, start)
