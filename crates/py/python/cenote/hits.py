"""Longest usable prefix of a prompt for layers with different windows. No region, no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """Block size and attention window of one KV cache group."""

    block_tokens: int
    window: int | None = None
    """Tokens that a token attends to, including itself. None: all."""

    def first(self, end: int) -> int:
        """Number of the first block that the computation of token `end` needs."""
        return 0 if self.window is None else max(end - self.window + 1, 0) // self.block_tokens


def alignment(reaches: Sequence[Reach]) -> int:
    """Granularity of hits in tokens: a hit ends at a block border of every group."""
    return math.lcm(*(reach.block_tokens for reach in reaches))


def longest_hit(reaches: Sequence[Reach], start: int, end: int, last_missing: Callable[[int, int, int], int | None]) -> int:
    """Returns the end, in tokens, of the longest hit between `start` and `end`; `start` if none.

    Every group has the blocks from `start` on that the computation of the next token needs. The
    engine has all blocks before `start`.

    `last_missing(group, first, last)` returns the last missing block of a group with
    `first <= block < last`, or None."""
    step = alignment(reaches)
    end -= end % step
    settled = 0
    group = 0
    # A missing block excludes every end with this block in its window. Try the longest end that
    # remains.
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
