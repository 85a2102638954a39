"""Fingerprint of all facts that servers must share to exchange pages, in addition to SGLang's keys.

A key of SGLang is a hash over all tokens up to the end of the page, seeded with `extra_key` and
`cache_salt` of the request. `extra_key` contains the LoRA's id, which does not cover the LoRA's
content. The key does not cover the model, the shard or the layout of a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sglang
from sglang.srt.runtime_context import get_lora, get_mm, get_model, get_serving, get_spec

from cenote.model_files import WeightsName, refuse_media, weights_name

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.pool_host import HostKVCache

# Settings that decide how the engine computes KV from a model's files.
_MODEL = (
    "model_impl",
    "load_format",
    "json_model_override_args",
    "context_length",  # Selects the factors of all positions under LongRoPE.
    "dtype",
    "quantization",
    "quantization_param_path",
    "kv_cache_dtype",  # A host pool has only the storage type: both kinds of fp8 are bytes.
    "modelopt_quant",
    "rl_quant_profile",
    "custom_weight_loader",
)
# A page may contain layers of a draft model.
_DRAFT = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_load_format",
    "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype",
)
# Settings that decide the embeddings of an image. The hash of the image does not cover them.
_MULTI_MODAL = ("mm_process_config", "image_processor_backend", "disable_fast_image_processor", "trust_mm_content_hashes")
# Attributes of a host pool that decide a layer's page, for all kinds of attention.
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
# Pools of hybrid models beside the KV. A page of one depends on the tokens up to its end, as the KV does.
SIDE_POOLS = frozenset(("swa", "mamba", "indexer"))
# Attributes of a host pool of recurrent states that decide the bytes of a state.
_STATE = (
    "num_mamba_layers",
    "conv_state_shapes",
    "temporal_state_shape",
    "conv_dtype",
    "temporal_dtype",
)
# Attributes of a host pool of an index that decide a page.
_INDEX = (
    "indexer_dtype",
    "indexer_page_stride_size",
    "indexer_layout_dim",
    "_live_target_layers",
    "_device_to_host_layer",
)


def model(extra: dict[str, Any], where: str) -> WeightsName:
    """The name of the model's content: a digest of its files, or the configured text.

    Raises ValueError, with the settings to give, if the engine loads no folder of this machine, or if its clients
    may name images."""
    path = str(get_model().model_path)
    if getattr(get_mm(), "enable_multimodal", None) is not False:
        for folder in (Path(place) for place in (path, extra.get("model_folder")) if place and Path(place).is_dir()):
            refuse_media(extra, where, folder, "clients may name them (mm_hashes)")
    if not extra.get("model_fingerprint") and not extra.get("model_folder") and Path(path).is_dir():
        extra = extra | {"model_folder": path}
    return weights_name(extra, where)


def refuse_adapters() -> None:
    """Refuses a server with LoRA adapters: their ids cover names and paths but not content."""
    lora = get_lora()
    if getattr(lora, "enable_lora", None) or getattr(lora, "lora_paths", None):
        raise ValueError(
            "Cenote cannot share pages of a server with LoRA adapters: SGLang's keys do not distinguish adapters of the same name "
            "on two servers; start without --enable-lora and --lora-paths, or without --hicache-storage-backend"
        )


def weight_version() -> str:
    """The engine's current weight version. Updates of weights at run time may change it."""
    return str(get_serving().weight_version)


def fingerprint(
    config: HiCacheStorageConfig, extra: dict[str, Any], model: str, pool: HostKVCache, page_bytes: int, name: str = "kv"
) -> bytes:
    """The identity of one rank's pages in one pool. `model` is the name of the model's content."""
    facts = {
        "sglang": sglang.__version__,
        "model": model,
        "weight version": weight_version(),
        "served model": config.model_name,
        "made": {name: getattr(get_model(), name) for name in _MODEL},
        "draft": {name: getattr(get_spec(), name) for name in _DRAFT},
        "multi-modal": {name: getattr(get_mm(), name) for name in _MULTI_MODAL},
        "pool": [type(pool).__name__, str(pool.dtype), pool.layout, pool.page_size, page_bytes],
        # Under some layouts the pieces of a page have one order by address and another by tensor.
        "by address": bool(extra.get("interface_v1", 0)),
        "page": {name: getattr(pool, name, None) for name in _PAGE},
        "device": [str(info.buffers.layout) for info in getattr(pool, "_buffer_infos", ())],
        # All ranks of multi-head latent attention have the same KV, but each its own recurrent states.
        "tensor parallel": [0, 1] if config.is_mla_model and name != "mamba" else [config.tp_rank, config.tp_size],
        "pipeline parallel": [config.pp_rank, config.pp_size],
        "context parallel": [config.attn_cp_rank, config.attn_cp_size],
        "decode context parallel": [config.dcp_rank, config.dcp_size, config.logical_page_size],
        "tenant salt": str(extra.get("tenant_salt", "")),
    }
    if name != "kv":
        # The KV's name stays as it is for models without other pools.
        facts["side pool"] = [name, {fact: getattr(pool, fact, None) for fact in (*_STATE, *_INDEX)}]
    return b"cenote sglang v3 " + json.dumps(facts, sort_keys=True, default=str).encode()
