"""KV memory on a real GPU. `test_device.py` tests a fake device, with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE, until

import cenote
from cenote.device import DeviceMemory, page_layout

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no PyTorch, so no GPU is tested")

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch knows")

LAYERS, BLOCKS, HEADS, TOKENS, CHANNELS = 4, 32, 4, 16, 128
PAGE = HEADS * TOKENS * CHANNELS * 2

# Order in memory of the axes [layer, block, head, token, channel], for vLLM's layouts.
ORDERS = {"LBNHC": (0, 1, 3, 2, 4), "LBHNC": (0, 1, 2, 3, 4)}


def caches(order: str) -> list[torch.Tensor]:
    """One tensor per layer: [block, head, token, channel], filled with noise."""
    sizes = (LAYERS, BLOCKS, HEADS, TOKENS, CHANNELS)
    steps = ORDERS[order]
    memory = torch.randn([sizes[axis] for axis in steps], device="cuda", dtype=torch.float32).to(torch.bfloat16)
    return list(memory.permute([steps.index(axis) for axis in range(5)]))


def memory_of(region: cenote.Region, layers: list[torch.Tensor], **how: Any) -> DeviceMemory:
    from cenote.device.cuda import CudaDevice

    found = [(cache.data_ptr(), page_layout("l", cache.shape, cache.stride(), 2, PAGE)) for cache in layers]
    return CudaDevice.of(layers[0].device).memory(region, found, layers, **how)


@on_a_gpu
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("how", [{}, {"scatter_below": 1 << 30}, {"gpu_buffer_bytes": 0}, {"staged": True}], ids=str)
def test_a_gpu_loads_the_blocks_that_another_memory_saved(region: cenote.Region, order: str, how: dict[str, Any]) -> None:
    blocks = region.namespace(order.encode(), LAYERS * PAGE)
    names = blocks.hash_tokens(list(range(16 * 20)), 16)
    places = list(range(BLOCKS))[::-1][:20]
    saved = caches(order)
    expected = [cache.clone() for cache in saved]
    how = {"staging_bytes": 24 * LAYERS * PAGE, **how}
    memory = memory_of(region, saved, **how)
    assert memory.wait_locked(PATIENCE)
    assert memory.why_staged == ("requested" if "staged" in how else "")
    assert bool(memory.why_no_kernels) == ("staged" in how or how.get("gpu_buffer_bytes") == 0), memory.why_no_kernels
    memory.save([(blocks, names, range(20), places, None, 0)])
    # The engine reuses the blocks at once.
    for cache in saved:
        cache.zero_()
    until("twenty published blocks", lambda: blocks.count(names) == 20)
    assert memory.close(PATIENCE)

    loaded = caches(order)
    memory = memory_of(region, loaded, **how)
    for cache in loaded:
        cache.fill_(1)
    load = memory.load(blocks.lookup(names), places)
    assert load.wait(PATIENCE)
    assert load.failed() == []
    for layer in range(LAYERS):
        assert torch.equal(loaded[layer][places], expected[layer][places])
        rest = [block for block in range(BLOCKS) if block not in places]
        assert (loaded[layer][rest] == 1).all()
    assert memory.close(PATIENCE)
