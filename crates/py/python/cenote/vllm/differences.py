"""What differs between the versions of vLLM that the connector supports. Nothing else may ask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core import kv_cache_utils

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def hash_tokens(config: VllmConfig, kv_cache: KVCacheConfig) -> int:
    """Tokens that one of vLLM's hashes covers. Before 0.32 its scheduler alone was told."""
    if not hasattr(kv_cache, "hash_block_size"):
        return int(kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache, config)[1])
    return kv_cache.hash_block_size or math.gcd(*(group.kv_cache_spec.block_size for group in kv_cache.kv_cache_groups))


def hit_tokens(config: VllmConfig, kv_cache: KVCacheConfig) -> int:
    """Granularity of hits in vLLM's own prefix cache. Before 0.32 its scheduler alone was told."""
    if not hasattr(kv_cache, "cache_hit_alignment_tokens"):
        return int(kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache, config)[0])
    return kv_cache.cache_hit_alignment_tokens or 1


def event_keys(keys: list[tuple[Any, ...] | None]) -> Sequence[Any]:
    """Extra keys in the form of vLLM's KV events. Before 0.31 events had the keys themselves."""
    convert = getattr(kv_cache_utils, "to_event_extra_keys", None)
    return keys if convert is None else convert(keys)


def hints_of(request: Any) -> Any:
    """A request's envelope of KV hints: vLLM's own field since 0.32, or what came in `kv_transfer_params`. None: it has
    none."""
    if (envelope := getattr(request, "kv_hints", None)) is not None:
        return envelope
    params = getattr(request, "kv_transfer_params", None)
    return params.get("kv_hints", params.get("kv_hint")) if isinstance(params, dict) else None


def count_as_computed(request: Any) -> None:
    """Takes tokens that vLLM computes again out of a request's cached tokens, if these are not reported yet.

    vLLM counts them when it admits a request, and not again if a part of its load fails."""
    computed = request.num_computed_tokens
    if (stats := getattr(request, "prefill_stats", None)) is not None:
        external = max(stats.num_external_cached_tokens - max(stats.num_cached_tokens - computed, 0), 0)
        stats.set(stats.num_prompt_tokens, min(stats.num_local_cached_tokens, max(computed - external, 0)), external)
    elif getattr(request, "num_cached_tokens", -1) > computed:
        # Before vLLM had these statistics.
        request.num_cached_tokens = computed


def host_memory() -> Any:
    """The source of hits, in vLLM's counters since 0.32."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST
