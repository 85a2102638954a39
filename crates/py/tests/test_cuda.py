"""KV memory on a real GPU. The same with a fake one, and with everything that can go wrong: test_device.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import cenote
from cenote.device import DeviceMemory, page_layout

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no PyTorch, so no GPU is tested")
    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch knows")

LAYERS, BLOCKS, HEADS, TOKENS, CHANNELS = 4, 32, 4, 16, 128
PAGE = HEADS * TOKENS * CHANNELS * 2

# Of axes [layer, block, head, token, channel], as vLLM lays them out.
ORDERS = {"LBNHC": (0, 1, 3, 2, 4), "LBHNC": (0, 1, 2, 3, 4)}


def caches(order: str) -> list[torch.Tensor]:
    """Of each layer blocks, heads, tokens, channels; filled with noise."""
    sizes = (LAYERS, BLOCKS, HEADS, TOKENS, CHANNELS)
    steps = ORDERS[order]
    memory = torch.randn([sizes[axis] for axis in steps], device="cuda", dtype=torch.float32).to(torch.bfloat16)
    return list(memory.permute([steps.index(axis) for axis in range(5)]))


def memory_of(region: cenote.Region, layers: list[torch.Tensor], **how: Any) -> DeviceMemory:
    from cenote.device.cuda import CudaDevice

    found = [(cache.data_ptr(), page_layout("l", cache.shape, cache.stride(), 2, PAGE)) for cache in layers]
    return DeviceMemory(CudaDevice.of(layers), region, found, **how)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("staged", [False, True])
def test_what_one_gpu_memory_saved_another_loads(region: cenote.Region, order: str, staged: bool) -> None:
    blocks = region.namespace(order.encode(), LAYERS * PAGE)
    names = blocks.hash_tokens(list(range(16 * 20)), 16)
    places = list(range(BLOCKS))[::-1][:20]
    saved = caches(order)
    expected = [cache.clone() for cache in saved]
    memory = memory_of(region, saved, staged=staged, staging_bytes=24 * LAYERS * PAGE)
    assert memory.why_staged == ("it was asked for" if staged else "")
    save = memory.save(blocks, names, list(range(20)), places)
    for layer in range(LAYERS):
        save.layer(layer)
    save.finish()
    # The engine goes on with the blocks at once.
    for cache in saved:
        cache.zero_()
    deadline = time.monotonic() + 30
    while blocks.count(names) < 20:
        assert time.monotonic() < deadline
    assert memory.close(30)

    loaded = caches(order)
    memory = memory_of(region, loaded, staged=staged, staging_bytes=24 * LAYERS * PAGE)
    for cache in loaded:
        cache.fill_(1)
    load = memory.load(blocks.lookup(names), places)
    found = []
    for layer in range(LAYERS):
        assert load.wait_layer(layer, 30)
        found.append(loaded[layer].clone())
    assert load.wait(30)
    assert load.failed() == []
    for layer in range(LAYERS):
        assert torch.equal(found[layer][places], expected[layer][places])
        assert torch.equal(loaded[layer][places], expected[layer][places])
        rest = [block for block in range(BLOCKS) if block not in places]
        assert (loaded[layer][rest] == 1).all()
    assert memory.close(30)
