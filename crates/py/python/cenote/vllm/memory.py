"""Descriptions of vLLM's KV memory for copies from and to the region."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from vllm.platforms import current_platform

import cenote
from cenote.device import DeviceMemory, page_layout
from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    from cenote.vllm.groups import Page
    from cenote.vllm.settings import Settings
    from cenote.vllm.shards import Part

logger = logger_of(__name__)

# Attention backends on GPUs that store the key before the value, for each head and token. vLLM's
# layout name covers the rest of their layout, and the fingerprint contains that name.
_BACKENDS = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION")


def kv_memory(
    caches: dict[str, torch.Tensor],
    num_blocks: int,
    part: Part,
    settings: Settings,
    region: cenote.Region,
    backends: Mapping[str, str],
) -> cenote.KvMemory | DeviceMemory:
    """KV memory of a part, on the CPU or a GPU. Its layers have the order of the group's pages.

    `backends` are the names of the attention backends by layer. Raises ValueError for memory that
    Cenote cannot copy."""
    own = {page.layer: part_of(caches[page.layer], page, part) for page in part.group.pages}
    devices = {cache.device for cache in own.values()}
    if len(devices) != 1:
        raise ValueError(f"the layers' KV is on {len(devices)} devices: {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    if device.type == "cpu":
        return host_memory(own, num_blocks, part, settings.load_threads)
    if device.type != "cuda" or not current_platform.is_cuda():
        raise ValueError(f"the layers' KV is on {device} ({current_platform.device_name}), which this connector does not support")
    for name in [] if part.group.is_state else own:
        if (backend := backends.get(name, "unknown")) not in _BACKENDS:
            raise ValueError(
                f"layer {name}: Cenote does not know the block layout of the attention backend {backend}; use one of {', '.join(_BACKENDS)}"
            )
    from cenote.device.cuda import CudaDevice

    on = CudaDevice.of(device)
    if on.gpu.why_one_by_one:
        logger.info("Cenote: the GPU gets each page by a call of its own: %s", on.gpu.why_one_by_one)
    return device_memory(on.memory, own, part, settings, region)


def part_of(cache: torch.Tensor, page: Page, part: Part) -> torch.Tensor:
    """The heads of a layer's memory that belong to a part."""
    if not isinstance(cache, torch.Tensor):
        raise ValueError(f"layer {page.layer}: its KV is in a {type(cache).__name__}, which this connector cannot copy")
    count = part.share.count
    if count == 1:
        return cache
    if cache.dim() != 4 or cache.shape[1] % count != 0:
        raise ValueError(f"head_shards: layer {page.layer} has memory of shape {tuple(cache.shape)}, which has no axis of heads to divide")
    heads = cache.shape[1] // count
    return cache[:, part.at * heads : (part.at + 1) * heads]


def device_memory(
    made: Callable[..., DeviceMemory],
    caches: dict[str, torch.Tensor],
    part: Part,
    settings: Settings,
    region: cenote.Region,
) -> DeviceMemory:
    """KV memory on a device, which executes the copies. `made` is `CudaDevice.memory`."""
    layers, encoded = [], settings.codec != "raw" and part.encoded
    for page in part.group.pages:
        cache = caches[page.layer]
        real = page.real_bytes // part.share.count
        layout = page_layout(page.layer, cache.shape, cache.stride(), cache.element_size(), real).in_lines()
        layers.append((cache.data_ptr(), layout))
        if encoded and cache[0].numel() * cache.element_size() != real:
            raise ValueError(
                f"layer {page.layer}: the attention backend divides a block into smaller ones, which codec {settings.codec!r} does not support"
            )
    memory = made(
        region,
        layers,
        [caches[page.layer] for page in part.group.pages],
        staging_bytes=settings.staging_bytes,
        # The CPU encodes and decodes, so a codec needs staging memory.
        staged=settings.gpu_copies == "staged" or encoded,
        threads=settings.load_threads,
        gpu_buffer_bytes=settings.gpu_buffer_bytes,
    )
    if memory.why_staged and settings.gpu_copies == "direct" and not encoded:
        logger.warning("Cenote: blocks pass through %d MiB of page-locked memory: %s", settings.staging_bytes >> 20, memory.why_staged)
    elif not memory.why_staged and memory.why_no_kernels:
        logger.info("Cenote: the processor checks blocks, and the GPU gets each page by itself: %s", memory.why_no_kernels)
    return memory


ALL_TOLD = 11


def tell_locking(memory: DeviceMemory, told: int) -> int:
    """Logs how much of the region is page-locked, each tenth once. Returns the tenths told, and `ALL_TOLD` at the end."""
    progress = memory.page_locked if told < ALL_TOLD else None
    if progress is None:
        return ALL_TOLD
    locked, size = progress
    if why := memory.why_staged:
        logger.warning("Cenote: other blocks pass through a buffer, because %s", why)
        return ALL_TOLD
    tenths = 10 * locked // max(size, 1)
    if tenths > told:
        logger.info("Cenote: %d of %d MiB of the region are page-locked; other blocks pass through a buffer", locked >> 20, size >> 20)
    return ALL_TOLD if tenths == 10 else tenths


def host_memory(caches: dict[str, torch.Tensor], num_blocks: int, part: Part, load_threads: int) -> cenote.KvMemory:
    """KV memory that the CPU can access.

    A page is all bytes of one block of one layer, without the padding behind them. Copies are of
    whole pages, so their inner layout is irrelevant."""
    layers = []
    for page in part.group.pages:
        cache = caches[page.layer]
        size = cache.element_size()
        # A backend may divide a block into consecutive smaller ones.
        smaller, rest = divmod(cache.shape[0], num_blocks)
        inner, stride = math.prod(cache.shape[1:]) * size, cache.stride(0) * size
        real = page.real_bytes // part.share.count
        lines = -(-real // 64) * 64
        is_run = _is_run(cache) and (smaller == 1 or stride == inner)
        if rest or not is_run or smaller * inner != real or smaller * stride < lines:
            raise ValueError(
                f"layer {page.layer}: memory of shape {tuple(cache.shape)} and strides {tuple(cache.stride())} is not {num_blocks} blocks of "
                f"{real} bytes in a run"
            )
        layers.append((cache.data_ptr(), smaller * stride, lines))
    return cenote.KvMemory(layers, num_blocks, list(caches.values()), load_threads=load_threads)


def _is_run(cache: torch.Tensor) -> bool:
    """True if the values of a block are contiguous, in any order of the axes."""
    axes = sorted((stride, length) for stride, length in zip(cache.stride()[1:], cache.shape[1:], strict=True) if length > 1)
    run = 1
    for stride, length in axes:
        if stride != run:
            return False
        run *= length
    return True
