"""KV memory on a real GPU. `test_device.py` tests a fake device, with faults."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from waiting import PATIENCE, until

import cenote
from cenote.device import DeviceError, DeviceMemory, page_layout

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
    return DeviceMemory(CudaDevice.of(layers), region, found, **how)


@on_a_gpu
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("staged", [False, True])
def test_a_gpu_loads_the_blocks_that_another_memory_saved(region: cenote.Region, order: str, staged: bool) -> None:
    blocks = region.namespace(order.encode(), LAYERS * PAGE)
    names = blocks.hash_tokens(list(range(16 * 20)), 16)
    places = list(range(BLOCKS))[::-1][:20]
    saved = caches(order)
    expected = [cache.clone() for cache in saved]
    memory = memory_of(region, saved, staged=staged, staging_bytes=24 * LAYERS * PAGE)
    assert memory.why_staged == ("requested" if staged else "")
    save = memory.save(blocks, names, list(range(20)), places)
    for layer in range(LAYERS):
        save.layer(layer)
    save.finish()
    # The engine reuses the blocks at once.
    for cache in saved:
        cache.zero_()
    until("twenty published blocks", lambda: blocks.count(names) == 20)
    assert memory.close(PATIENCE)

    loaded = caches(order)
    memory = memory_of(region, loaded, staged=staged, staging_bytes=24 * LAYERS * PAGE)
    for cache in loaded:
        cache.fill_(1)
    load = memory.load(blocks.lookup(names), places)
    found = []
    for layer in range(LAYERS):
        assert load.wait_layer(layer, PATIENCE)
        found.append(loaded[layer].clone())
    assert load.wait(PATIENCE)
    assert load.failed() == []
    for layer in range(LAYERS):
        assert torch.equal(found[layer][places], expected[layer][places])
        assert torch.equal(loaded[layer][places], expected[layer][places])
        rest = [block for block in range(BLOCKS) if block not in places]
        assert (loaded[layer][rest] == 1).all()
    assert memory.close(PATIENCE)


def test_memory_is_kept_until_its_last_user_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """This test needs no GPU: it uses CPU memory."""
    from cenote.device.cuda import CudaDevice

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(CudaDevice, "_all", {})
    # Two layers share one storage, as in vLLM, and one has its own. Each call of `of` is a user.
    together, alone = torch.zeros(2, 64), torch.zeros(64)
    layers = [together[0], together[1], alone]
    addresses = [layer.data_ptr() for layer in layers]
    there = [weakref.ref(memory.untyped_storage()) for memory in (together, alone)]
    device = CudaDevice.of(layers)
    assert CudaDevice.of(layers[:2]) is device
    del together, alone, layers
    gc.collect()
    assert None not in [each() for each in there]
    device.forget(addresses)
    assert [device._find(address, 256)[0] for address in addresses[:2]] == [addresses[0]] * 2
    with pytest.raises(DeviceError, match="outside of the memory known to the device"):
        device._find(addresses[2], 1)
    device.forget(addresses[:2])
    assert device._memory == ([], [])
    assert [each() for each in there] == [None, None]
    with pytest.raises(DeviceError):
        device.forget(addresses[:1])
