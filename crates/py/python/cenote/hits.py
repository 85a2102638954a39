"""Longest usable prefix of a prompt for layers that need different parts of it. No region, no engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reach:
    """Block size of one KV cache group, and the tokens before a token that its computation needs."""

    block_tokens: int
    window: int | None = None
    """Tokens that a token attends to, including itself. None: all."""
    chunk: int | None = None
    """Tokens attend within chunks of so many tokens. None: across."""
    is_state: bool = False
    """A block is the state after its last token, which contains all tokens before."""

    @property
    def is_whole(self) -> bool:
        """True if a token needs all blocks before it."""
        return self.window is None and self.chunk is None and not self.is_state

    def first(self, end: int) -> int:
        """Number of the first block that the computation of token `end` needs."""
        if self.is_state:
            return max(end - 1, 0) // self.block_tokens
        if self.chunk is not None:
            return end // self.chunk * self.chunk // self.block_tokens
        return 0 if self.window is None else max(end - self.window + 1, 0) // self.block_tokens

    def repeats(self, end: int) -> bool:
        """True if the blocks that token `end` needs suffice to compute the token before it again.

        A state already contains that token, and a window may have begun a block earlier for it."""
        return not self.is_state and self.first(end - 1) == self.first(end)


def alignment(reaches: Sequence[Reach]) -> int:
    """Granularity of hits in tokens: a hit ends at a block border of every group."""
    return math.lcm(*(reach.block_tokens for reach in reaches))


def longest_hit(
    reaches: Sequence[Reach], step: int, start: int, end: int, last_missing: Callable[[int, int, int], int | None]
) -> int:
    """Returns the end, in tokens, of the longest hit between `start` and `end`; `start` if none.

    Hits end at multiples of `step`. Every group has the blocks from `start` on that the computation
    of the next token needs. The engine has all blocks before `start`.

    `last_missing(group, first, last)` returns the last missing block of a group with
    `first <= block < last`, or None."""
    end -= end % step
    settled = 0
    group = 0
    # A missing block excludes every end that needs it. Try the longest end that remains.
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
