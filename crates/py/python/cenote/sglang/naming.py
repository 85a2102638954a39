"""Who may share pages with whom: everything in which two servers must agree beside SGLang's keys.

A key of SGLang's is a hash over all tokens up to the page's end, seeded with the request's `extra_key` (which has the LoRA's
id in it, which says nothing of the LoRA's content) and `cache_salt`. It says nothing of the model, the shard, or how a page's
bytes lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sglang
from sglang.srt.runtime_context import get_lora, get_mm, get_model, get_serving, get_spec

from cenote.model_files import weights_name

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.pool_host import HostKVCache

# How the engine makes KV of a model's files.
_MODEL = (
    "model_impl",
    "load_format",
    "json_model_override_args",
    "context_length",  # With LongRoPE it chooses the factors of all positions.
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",  # A host pool says only how it is stored: both kinds of fp8 are bytes.
    "modelopt_quant",
    "rl_quant_profile",
    "custom_weight_loader",
)
# Layers of a draft model may lie in the same pages.
_DRAFT = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_load_format",
    "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype",
)
# What embeddings become of an image that has the same hash.
_MULTI_MODAL = ("mm_process_config", "image_processor_backend", "disable_fast_image_processor", "trust_mm_content_hashes")
# A page of one layer, whatever kind of attention the host pool is for.
_PAGE = (
    "storage_format_tag",
    "layer_num",
    "target_layer_num",
    "start_layer",
    "end_layer",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
)


def model(extra: dict[str, Any], where: str) -> str:
    """The name of the model's content: its files, wherever they lie, or a text in their place. Raises ValueError, which says what
    to give, where the engine loads no folder of this machine."""
    path = str(get_model().model_path)
    if not extra.get("model_fingerprint") and not extra.get("model_folder") and Path(path).is_dir():
        extra = extra | {"model_folder": path}
    return weights_name(extra, where)


def refuse_adapters() -> None:
    """Refuses a server with LoRA adapters: their ids are made of names and paths, and not of their content."""
    lora = get_lora()
    if getattr(lora, "enable_lora", None) or getattr(lora, "lora_paths", None):
        raise ValueError(
            "Cenote cannot share pages of a server with LoRA adapters: SGLang's keys do not tell an adapter from what another "
            "server loads under its name; start without --enable-lora and --lora-paths, or without --hicache-storage-backend"
        )


def weight_version() -> str:
    """As the engine has it now: updates of weights while it runs may name another."""
    return str(get_serving().weight_version)


def fingerprint(
    config: HiCacheStorageConfig, extra: dict[str, Any], model: str, pool: HostKVCache, page_bytes: int
) -> bytes:
    """The identity of one rank's pages. `model` is the name of its content."""
    facts = {
        "sglang": sglang.__version__,
        "model": model,
        "weight version": weight_version(),
        "served model": config.model_name,
        "made": {name: getattr(get_model(), name) for name in _MODEL},
        "draft": {name: getattr(get_spec(), name) for name in _DRAFT},
        "multi-modal": {name: getattr(get_mm(), name) for name in _MULTI_MODAL},
        "pool": [type(pool).__name__, str(pool.dtype), pool.layout, pool.page_size, page_bytes],
        # By address and by tensor, a page's pieces come in different order under some layouts.
        "by address": bool(extra.get("interface_v1", 0)),
        "page": {name: getattr(pool, name, None) for name in _PAGE},
        "device": [str(info.buffers.layout) for info in getattr(pool, "_buffer_infos", ())],
        # Ranks of multi-head latent attention all have the same.
        "tensor parallel": [0, 1] if config.is_mla_model else [config.tp_rank, config.tp_size],
        "pipeline parallel": [config.pp_rank, config.pp_size],
        "context parallel": [config.attn_cp_rank, config.attn_cp_size],
        "decode context parallel": [config.dcp_rank, config.dcp_size, config.logical_page_size],
        "tenant salt": str(extra.get("tenant_salt", "")),
    }
    return b"cenote sglang v3 " + json.dumps(facts, sort_keys=True, default=str).encode()
