"""Runs of bytes that hold a block in an attention backend's tensor, from shape and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Most runs of a block in one layer: keys and values may be separate.
_RUNS_MAX = 2


@dataclass(frozen=True)
class PageLayout:
    """One layer's pages."""

    stride: int
    """Bytes from one block to the next."""
    runs: tuple[tuple[int, int], ...]
    """Per run: offset from the block's first byte, and length, both in bytes."""
    num_blocks: int

    @property
    def page_bytes(self) -> int:
        return sum(length for _, length in self.runs)

    def in_lines(self) -> PageLayout:
        """The layout with padding up to whole lines of 64 bytes, which is copied with the page."""
        more = -self.page_bytes % 64
        if not more:
            return self
        (offset, length), last = self.runs[-1], len(self.runs) - 1
        if offset + length + more > self.stride:
            raise ValueError(f"pages of {self.page_bytes} bytes at distances of {self.stride} are not in lines of 64 bytes")
        return PageLayout(self.stride, (*self.runs[:last], (offset, length + more)), self.num_blocks)


def page_layout(name: str, shape: Sequence[int], strides: Sequence[int], element_bytes: int, page_bytes: int) -> PageLayout:
    """The layout of a layer's tensor. Raises ValueError for a tensor that Cenote cannot copy.

    Blocks are the first dimension, or the second one if the first is keys and values. `strides`
    count elements. A backend may divide a block into consecutive smaller blocks; `page_bytes`
    determines their number."""
    what = f"layer {name}: a tensor of shape {tuple(shape)} and strides {tuple(strides)}"
    if len(shape) != len(strides) or len(shape) < 2 or min(shape) < 1 or min(strides) < 0:
        raise ValueError(f"{what} is not a KV cache")
    blocks = 1 if len(shape) == 5 and shape[0] == 2 else 0
    inner = math.prod(shape) // shape[blocks] * element_bytes
    if page_bytes % inner != 0 or shape[blocks] % (page_bytes // inner) != 0:
        raise ValueError(f"{what} has {inner} bytes per block, but vLLM's configuration says {page_bytes}")
    parts = page_bytes // inner
    stride = strides[blocks] * element_bytes
    # Sort by stride, so that contiguous axes merge into one run. An axis of length 1 has no stride.
    axes = [(strides[axis] * element_bytes, shape[axis]) for axis in range(len(shape)) if axis != blocks]
    axes = sorted(axis for axis in [*axes, (stride, parts)] if axis[1] > 1)
    run = element_bytes
    while axes and axes[0][0] == run:
        run *= axes.pop(0)[1]
    if axes and axes[0][0] < run:
        raise ValueError(f"{what} has overlapping values")
    count = math.prod(length for _, length in axes)
    if count > _RUNS_MAX:
        raise ValueError(
            f"{what} holds a block as {count} runs of {run} bytes; Cenote copies blocks of one or two runs. In vLLM, "
            "set VLLM_KV_CACHE_LAYOUT to LBNHC or LBHNC"
        )
    offsets = sorted(map(sum, itertools.product(*([at * step for at in range(length)] for step, length in axes))))
    return PageLayout(stride * parts, tuple((offset, run) for offset in offsets), shape[blocks] // parts)
