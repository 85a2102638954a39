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


def host_memory() -> Any:
    """The source of hits, in vLLM's counters since 0.32."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError:
        return None
    return CacheHitSource.HOST
