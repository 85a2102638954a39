"""Fingerprint of all facts that two workers must share to exchange blocks."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.platforms import current_platform

from cenote.content import contents
from cenote.vllm import tables

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from cenote.vllm.settings import Settings

# Settings that decide the embeddings of an image or a video. Its hash does not cover them.
_MULTI_MODAL = (
    "mm_processor_kwargs",
    "media_io_kwargs",
    "video_pruning_rate",
    "video_pruning_method",
    "mm_device_do_normalize",
    "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype",
    "mm_encoder_tp_mode",
    "mm_hasher_algorithm",
    "language_model_only",
    "mm_encoder_only",
    "interleave_mm_strings",
)

# Settings of the model, the cache and the kernels that affect KV. The digest covers the weights.
_MODEL = (
    "runner",
    "convert",
    "model_impl",
    "config_format",
    "model_class_overrides",
    "trust_remote_code",
    "disable_sliding_window",
    "disable_cascade_attn",
)
_CACHE = ("cache_dtype", "kv_cache_dtype_skip_layers", "mamba_cache_dtype", "mamba_ssm_cache_dtype", "use_replayssm")
_KERNELS = ("moe_backend", "linear_backend", "linear_backend_per_quant")


def _named(given: Any, names: Iterable[str]) -> dict[str, str]:
    return {name: json.dumps(getattr(given, name, None), sort_keys=True, default=str) for name in names}


def _fields(given: Any) -> dict[str, str]:
    """All fields of a configuration."""
    return _named(given, [field.name for field in dataclasses.fields(given)]) if dataclasses.is_dataclass(given) else {}


def _attention(config: VllmConfig) -> dict[str, str]:
    """All attention settings, except one that models set only in workers."""
    facts = _fields(getattr(config, "attention_config", None))
    facts.pop("sparse_mla_force_mqa", None)
    return facts


def _content(path: Any) -> str | None:
    """The BLAKE3 hash, in hex, of a file that a setting names."""
    return contents([Path(path)])[0].digest.hex() if path else None


def _multi_modal(config: VllmConfig) -> dict[str, str] | None:
    given = config.model_config.multimodal_config
    if given is None:
        return None
    return _named(given, _MULTI_MODAL) | {"scales": str(_content(getattr(given, "mm_encoder_fp8_scale_path", None)))}


def _overrides(config: VllmConfig) -> Any:
    """Overrides of the model's configuration. A callable has no name, so its result is used."""
    given = config.model_config.hf_overrides
    if callable(given):
        return config.model_config.hf_config.to_dict()
    quantization = given.get("quantization_config_file") if isinstance(given, dict) else None
    return [given, _content(quantization)] if quantization else given


def _positions(config: VllmConfig) -> int | None:
    """`max_model_len` for LongRoPE, where it selects short or long factors for all positions."""
    model = config.model_config
    is_long = '"longrope"' in json.dumps(model.hf_config.to_dict(), default=str)
    return int(model.max_model_len) if is_long else None


def layout(config: VllmConfig) -> str:
    """Names the byte layout of a block, without its details.

    Only the same vLLM version on the same device kind and instruction set (CPU) or capability (GPU)
    can read the bytes. GPUs of different kinds may have different layouts; vLLM names them."""
    if current_platform.is_cpu():
        kind = torch.backends.cpu.get_cpu_capability()
    else:
        kind = f"{current_platform.get_device_capability()} {config.cache_config.kv_cache_layout}"
    return " ".join((f"vllm-{vllm.__version__}", current_platform.device_type, platform.machine(), kind))


def fingerprint(
    config: VllmConfig, settings: Settings, digest: str | list[str | None], group: dict[str, Any], shard: dict[str, Any]
) -> bytes:
    """The identity of the blocks of one shard of one KV cache group."""
    cache = config.cache_config
    facts = {
        "model": settings.model_fingerprint or digest,
        "model dtype": str(config.model_config.dtype),
        "settings": _named(config.model_config, _MODEL),
        "cache": _named(cache, _CACHE),
        "layout": layout(config),
        "codec": settings.codec_identity(),
        "attention": _attention(config),
        "kernels": _named(getattr(config, "kernel_config", None), _KERNELS),
        "states": _fields(getattr(config, "mamba_config", None)),
        # Quantization that an engine may apply to weights at load time.
        "quantization": [str(config.model_config.quantization), str(config.model_config.quantization_config)],
        "overrides": _overrides(config),
        "positions": _positions(config),
        "multi-modal": _multi_modal(config),
        "hash": cache.prefix_caching_hash_algo,
        "group": group,
        "shard": shard,
        "tenant salt": settings.tenant_salt,
        # Nothing for a model without n-gram tables.
        **tables.facts(config),
    }
    return b"cenote vllm v6 " + json.dumps(facts, sort_keys=True, default=str).encode()


def check_hashes(config: VllmConfig) -> None:
    """Raises ValueError for hashes that another process cannot reproduce: they would never hit."""
    cache = config.cache_config
    if not cache.enable_prefix_caching:
        raise ValueError("Cenote names blocks by vLLM's prefix hashes, but prefix caching is off: give --enable-prefix-caching")
    algorithm = str(cache.prefix_caching_hash_algo)
    if algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in os.environ:
        raise ValueError(
            f"--prefix-caching-hash-algo {algorithm} uses a random seed in every process, so two instances would never share "
            "a block: set PYTHONHASHSEED to the same number everywhere, or use sha256"
        )
