"""vLLM's KV memory, as the region's blocks go into it and come out of it."""

from __future__ import annotations

import torch

import cenote


def host_memory(caches: dict[str, torch.Tensor], page_bytes: int, load_threads: int) -> tuple[cenote.KvMemory, dict[str, int]]:
    """KV memory that the processor can reach, and the number of each layer.

    A page is all bytes of one block of one layer, whatever the attention backend has put where: only whole ones are copied."""
    layers, num_blocks = [], 0
    for name, cache in caches.items():
        if not isinstance(cache, torch.Tensor) or cache.device.type != "cpu":
            kind = cache.device if isinstance(cache, torch.Tensor) else type(cache).__name__
            raise ValueError(f"layer {name}: its KV lies in {kind}, which this connector cannot copy from")
        page = cache[0]
        size = page.numel() * page.element_size()
        if not page.is_contiguous() or size != page_bytes:
            raise ValueError(
                f"layer {name}: a block has {size} bytes ({'' if page.is_contiguous() else 'not '}contiguous), vLLM's "
                f"configuration says {page_bytes}"
            )
        layers.append((cache.data_ptr(), cache.stride(0) * cache.element_size(), size))
        num_blocks = cache.shape[0]
    memory = cenote.KvMemory(layers, num_blocks, list(caches.values()), load_threads=load_threads)
    return memory, {name: number for number, name in enumerate(caches)}
