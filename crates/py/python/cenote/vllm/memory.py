"""Descriptions of vLLM's KV memory for copies from and to the region."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

import cenote
from cenote.device import DeviceMemory, page_layout
from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    from cenote.vllm.settings import Settings

logger = logger_of(__name__)

# Attention backends on GPUs that store the key before the value, for each head and token. vLLM's
# layout name covers the rest of their layout, and the fingerprint contains that name.
_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def kv_memory(
    caches: dict[str, torch.Tensor],
    page_bytes: int,
    settings: Settings,
    region: cenote.Region,
    backends: Mapping[str, str],
    told: Callable[[Exception], None],
) -> tuple[cenote.KvMemory | DeviceMemory, dict[str, int]]:
    """KV memory on the CPU or a GPU, and the number of each layer.

    `backends` are the names of the attention backends by layer. `told` gets later errors of copies.
    Raises ValueError for memory that Cenote cannot copy."""
    for name, cache in caches.items():
        if not isinstance(cache, torch.Tensor):
            raise ValueError(f"layer {name}: its KV is in a {type(cache).__name__}, which this connector cannot copy")
    devices = {cache.device for cache in caches.values()}
    if len(devices) != 1:
        raise ValueError(f"the layers' KV is on {len(devices)} devices: {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    if device.type == "cpu":
        return host_memory(caches, page_bytes, settings.load_threads)
    if device.type != "cuda" or not current_platform.is_cuda():
        raise ValueError(f"the layers' KV is on {device} ({current_platform.device_name}), which this connector does not support")
    for name in caches:
        if (backend := backends.get(name, "unknown")) not in _BACKENDS:
            raise ValueError(
                f"layer {name}: Cenote does not know the block layout of the attention backend {backend}; use one of {', '.join(_BACKENDS)}"
            )
    from cenote.device.cuda import CudaDevice

    return device_memory(CudaDevice.of(list(caches.values())), caches, page_bytes, settings, region, told)


def device_memory(
    device: cenote.device.Device,
    caches: dict[str, torch.Tensor],
    page_bytes: int,
    settings: Settings,
    region: cenote.Region,
    told: Callable[[Exception], None],
) -> tuple[DeviceMemory, dict[str, int]]:
    """KV memory on a device, which executes the copies; and the number of each layer."""
    layers = []
    for name, cache in caches.items():
        layout = page_layout(name, cache.shape, cache.stride(), cache.element_size(), page_bytes)
        layers.append((cache.data_ptr(), layout))
        if settings.codec != "raw" and cache[0].numel() * cache.element_size() != page_bytes:
            raise ValueError(f"layer {name}: the attention backend divides a block into smaller ones, which codec {settings.codec!r} does not support")
    memory = DeviceMemory(
        device,
        region,
        layers,
        staging_bytes=settings.staging_bytes,
        # The CPU encodes and decodes, so a codec needs staging memory.
        staged=settings.gpu_copies == "staged" or settings.codec != "raw",
        threads=settings.load_threads,
        told=told,
    )
    if memory.staging is not None and settings.gpu_copies == "direct" and settings.codec == "raw":
        logger.warning("Cenote: blocks pass through %d MiB of page-locked memory: %s", settings.staging_bytes >> 20, memory.why_staged)
    return memory, {name: number for number, name in enumerate(caches)}


def host_memory(caches: dict[str, torch.Tensor], page_bytes: int, load_threads: int) -> tuple[cenote.KvMemory, dict[str, int]]:
    """KV memory that the CPU can access, and the number of each layer.

    A page is all bytes of one block of one layer. Copies are of whole pages, so their inner layout
    is irrelevant."""
    layers, num_blocks = [], 0
    for name, cache in caches.items():
        page = cache[0]
        size = page.numel() * page.element_size()
        if not page.is_contiguous() or size != page_bytes:
            raise ValueError(
                f"layer {name}: a block has {size} bytes ({'' if page.is_contiguous() else 'not '}contiguous), but vLLM's "
                f"configuration says {page_bytes}"
            )
        layers.append((cache.data_ptr(), cache.stride(0) * cache.element_size(), size))
        num_blocks = cache.shape[0]
    memory = cenote.KvMemory(layers, num_blocks, list(caches.values()), load_threads=load_threads)
    return memory, {name: number for number, name in enumerate(caches)}
