"""Codecs for vLLM's blocks, where it is known how an attention backend lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from vllm.platforms import current_platform

import cenote

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec

    from cenote.vllm.settings import Settings

_DTYPES: dict[torch.dtype, Literal["f16", "bf16", "f32"]] = {
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
}


def page_codec(config: VllmConfig, settings: Settings, spec: AttentionSpec, num_layers: int) -> cenote.Codec | None:
    """The codec that the settings name, for this worker's pages; none where they are stored as they are."""
    if settings.codec == "raw":
        return None
    what = f"kv_connector_extra_config: codec {settings.codec!r}"
    if not current_platform.is_cuda():
        raise ValueError(
            f"{what} needs to know how the attention backend lays out a page; on {current_platform.device_name} it packs values for the "
            "processor's instructions, so leave it raw"
        )
    if spec.dtype not in _DTYPES or spec.head_size_v != spec.head_size:
        raise ValueError(f"{what} is for keys and values of one size in 16 or 32 bits, and the KV cache has {spec.dtype}")
    if spec.page_size_bytes != 2 * spec.block_size * spec.num_kv_heads * spec.head_size * spec.dtype.itemsize:
        raise ValueError(f"{what}: a page of {spec.page_size_bytes} bytes has more than keys and values in it")
    parallel = config.parallel_config
    profile = None
    if settings.codec_profile is not None:
        if parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            raise ValueError(f"{what}: its profile is of a whole model, and a rank has a part of it")
        profile = Path(settings.codec_profile).read_bytes()
    order = settings.layout.get("order", _order(config))
    return cenote.Codec(
        settings.codec,
        num_layers=num_layers,
        num_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        block_tokens=spec.block_size,
        dtype=_DTYPES[spec.dtype],
        order=order,
        kv=settings.layout.get("kv", "joint"),
        profile=profile,
    )


def _order(config: VllmConfig) -> Literal["NHD", "HND"]:
    """vLLM names the order of a page's axes at the end of its layout."""
    layout = str(config.cache_config.kv_cache_layout)
    return "NHD" if layout.endswith("NHC") else "HND"
