"""How an attention backend's tensor holds a block: as runs of bytes, found from shape and strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

# Runs of a block in one layer: keys and values may lie apart.
_RUNS_MAX = 2


@dataclass(frozen=True)
class PageLayout:
    """One layer's pages."""

    stride: int
    """Bytes from one block to the next."""
    runs: tuple[tuple[int, int], ...]
    """Of each run its offset from the block's first byte and its length, in bytes."""
    num_blocks: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return sum(length for _, length in self.runs)


def page_layout(name: str, shape: Sequence[int], strides: Sequence[int], element_bytes: int, page_bytes: int) -> PageLayout:
    """The layout of a layer's tensor. Blocks are its first dimension, or its second where the first is keys and values.

    Backends may divide a block into smaller ones of their own, one behind the other; `page_bytes` tells how many make one.
    `strides` count elements."""
    what = f"layer {name}: a tensor of shape {tuple(shape)} and strides {tuple(strides)}"
    if len(shape) != len(strides) or len(shape) < 2 or min(shape) < 1 or min(strides) < 0:
        raise ValueError(f"{what} is no KV cache")
    blocks = 1 if len(shape) == 5 and shape[0] == 2 else 0
    inner = math.prod(shape) // shape[blocks] * element_bytes
    if page_bytes % inner != 0 or shape[blocks] % (page_bytes // inner) != 0:
        raise ValueError(f"{what} has {inner} bytes a block, where vLLM's configuration says {page_bytes}")
    parts = page_bytes // inner
    stride = strides[blocks] * element_bytes
    # By stride, so that what lies side by side follows each other. Of one there is no stride.
    axes = [(strides[axis] * element_bytes, shape[axis]) for axis in range(len(shape)) if axis != blocks]
    axes = sorted(axis for axis in [*axes, (stride, parts)] if axis[1] > 1)
    run = element_bytes
    while axes and axes[0][0] == run:
        run *= axes.pop(0)[1]
    if axes and axes[0][0] < run:
        raise ValueError(f"{what} has values that lie on top of each other")
    count = math.prod(length for _, length in axes)
    if count > _RUNS_MAX:
        raise ValueError(
            f"{what} holds a block as {count} runs of {run} bytes; Cenote copies blocks of one run, or two. In vLLM, "
            "VLLM_KV_CACHE_LAYOUT=LBNHC or LBHNC has such"
        )
    offsets = sorted(map(sum, itertools.product(*([at * step for at in range(length)] for step, length in axes))))
    return PageLayout(stride * parts, tuple((offset, run) for offset in offsets), shape[blocks] // parts)
