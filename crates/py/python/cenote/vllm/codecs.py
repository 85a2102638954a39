"""Codecs for vLLM's blocks, for attention backends with a known page layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import AttentionSpec

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from cenote.vllm.groups import Group
    from cenote.vllm.parts import Share
    from cenote.vllm.settings import Settings

_DTYPES: dict[torch.dtype, Literal["f16", "bf16", "f32"]] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
}


def page_codec(config: VllmConfig, settings: Settings, group: Group, share: Share) -> dict[str, Any] | None:
    """The arguments of `cenote.Codec` for one shard of this worker's pages; None for raw blocks.

    States and KV of 8 bits are stored as they are. Raises ValueError if the codec does not support
    the pages."""
    spec = group.pages[0].spec
    if settings.codec == "raw" or group.is_state or (isinstance(spec, AttentionSpec) and spec.dtype.itemsize == 1):
        return None
    assert isinstance(spec, AttentionSpec)
    what = f"kv_connector_extra_config: codec {settings.codec!r}"
    if not current_platform.is_cuda():
        raise ValueError(
            f"{what} needs a known page layout; on {current_platform.device_name} the attention backend packs values for the CPU's "
            "instruction set; set codec to raw"
        )
    if spec.dtype not in _DTYPES or spec.head_size_v != spec.head_size:
        raise ValueError(f"{what} needs keys and values of equal size in 16 or 32 bits, but the KV cache has {spec.dtype}")
    if any(page.spec != spec for page in group.pages):
        raise ValueError(f"{what} needs layers with equal pages, but those of group {group.number} differ")
    if spec.unpadded_page_size_bytes != 2 * spec.block_size * spec.num_kv_heads * spec.head_size * spec.dtype.itemsize:
        raise ValueError(f"{what}: a page of {spec.unpadded_page_size_bytes} bytes contains more than keys and values")
    parallel = config.parallel_config
    profile = None
    if settings.codec_profile is not None:
        if parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            raise ValueError(f"{what}: its profile covers a whole model, but a rank has only a part; use one rank or another codec")
        profile = Path(settings.codec_profile).read_bytes()
    order = settings.layout.get("order", _order(config))
    return {
        "codec": settings.codec,
        "num_layers": len(group.pages),
        "num_heads": spec.num_kv_heads // share.count,
        "head_dim": spec.head_size,
        "block_tokens": spec.block_size,
        "dtype": _DTYPES[spec.dtype],
        "order": order,
        "kv": settings.layout.get("kv", "joint"),
        "profile": profile,
    }


def _order(config: VllmConfig) -> Literal["NHD", "HND"]:
    """The order of a page's axes. vLLM's layout name ends with it."""
    layout = str(config.cache_config.kv_cache_layout)
    return "NHD" if layout.endswith("NHC") else "HND"
