"""KV cache groups: layers that share a block table. Checks whether Cenote supports their kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupRole,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from cenote.hits import Reach
from cenote.weights import Weights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    from cenote.vllm.names import RequestNames

_REASONS = {
    MambaSpec: "a recurrent state covers all earlier tokens and is not a page of tokens",
    ChunkedLocalAttentionSpec: "chunked local attention is not supported",
    CrossAttentionSpec: "tokens do not name blocks of cross-attention",
    EncoderOnlyAttentionSpec: "the KV of an encoder depends on tokens after a block",
    MLAAttentionSpec: "MLA is supported only as the only group",
    UniformTypeKVCacheSpecs: "its layers have pages of different sizes",
}


@dataclass(frozen=True)
class Group:
    """Layers of the same kind that share one block table."""

    number: int
    kind: str
    reach: Reach
    page_bytes: int
    """Bytes of one block of one layer."""
    hashes_per_block: int
    """vLLM's hashes per block of this group. vLLM hashes units of `hash_block_size` tokens."""
    layer_names: tuple[str, ...]
    window: int | None
    """Window in tokens, as in vLLM's KV events; None for full attention."""
    spec: AttentionSpec
    weights: Weights
    names: RequestNames

    @property
    def block_tokens(self) -> int:
        return self.reach.block_tokens

    def keys(self, request: Request, start: int, end: int) -> list[bytes]:
        """Names of these blocks in the region."""
        return self.names.keys(request, self.weights.keys(self.hashes(request, start, end)))

    def hashes(self, request: Request, start: int, end: int) -> list[bytes]:
        """The last hash of each block, which covers all tokens up to the end of the block."""
        every = self.hashes_per_block
        return list(request.block_hashes[start * every + every - 1 : end * every : every])

    def known(self, request: Request) -> int:
        """Number of the request's blocks that have all their tokens."""
        return len(request.block_hashes) // self.hashes_per_block

    def facts(self) -> dict[str, Any]:
        """Facts of the group that engines must share to exchange its blocks."""
        return {
            "number": self.number,
            "kind": self.kind,
            "block tokens": self.block_tokens,
            "window": self.reach.window,
            "page": self.page_bytes,
            "elements": [str(self.spec.dtype), str(getattr(self.spec, "kv_quant_mode", None))],
        }


def groups_of(config: VllmConfig, kv_cache: KVCacheConfig, weights: Weights, names: RequestNames) -> list[Group]:
    """The groups of a model. Raises ValueError if Cenote does not support one of them."""
    _check_parallel(config, kv_cache)
    groups = kv_cache.kv_cache_groups
    refused = {number: _why_not(group, len(groups)) for number, group in enumerate(groups)}
    said = [
        f"group {number} ({type(group.kv_cache_spec).__name__}, {len(group.layer_names)} layers): {refused[number]}"
        for number, group in enumerate(groups)
        if refused[number]
    ]
    if said or not groups:
        raise ValueError(
            f"Cenote cannot share the KV of this model: it refuses {len(said)} of {len(groups)} KV cache groups. "
            f"{'; '.join(said)}. "
            "--disable-hybrid-kv-cache-manager merges full, sliding-window and chunked local attention into one group"
        )
    hash_tokens = kv_cache.hash_block_size or math.gcd(*(group.kv_cache_spec.block_size for group in groups))
    return [_group(number, group, hash_tokens, weights, names) for number, group in enumerate(groups)]


def fails_by_block(groups: Sequence[Group]) -> bool:
    """True if vLLM can resume at the first block that failed to load.

    This needs all earlier blocks of the prompt in memory. Otherwise vLLM restarts the request."""
    return len(groups) == 1 and groups[0].reach.window is None


def _group(number: int, group: KVCacheGroupSpec, hash_tokens: int, weights: Weights, names: RequestNames) -> Group:
    spec = group.kv_cache_spec
    window = looks_back = None
    if isinstance(spec, SlidingWindowSpec):
        window = spec.sliding_window
        looks_back = window + spec.extra_retained_tokens
    every, rest = divmod(spec.block_size, hash_tokens)
    assert rest == 0, f"blocks of {spec.block_size} tokens, hashes of {hash_tokens}"
    kind = "sliding_window" if window is not None else "full_attention"
    if isinstance(spec, MLAAttentionSpec):
        kind = "mla_attention"
    layers = tuple(group.layer_names)
    return Group(number, kind, Reach(spec.block_size, looks_back), spec.page_size_bytes, every, layers, window, spec, weights, names)


def _why_not(group: KVCacheGroupSpec, groups: int) -> str | None:
    """Reason to refuse a group, or None.

    Only the listed classes are supported, not their subclasses: a subclass may remove or rewrite
    blocks in other ways."""
    spec = group.kv_cache_spec
    if type(spec) in (FullAttentionSpec, SlidingWindowSpec) or (type(spec) is MLAAttentionSpec and groups == 1):
        if group.host_resident or group.role != KVCacheGroupRole.DEFAULT or not group.enable_kv_transfer:
            return "vLLM keeps its blocks outside of the block pool"
        return None
    return _REASONS.get(type(spec), "this kind of KV cache is not supported")


def _check_parallel(config: VllmConfig, kv_cache: KVCacheConfig) -> None:
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if (size := getattr(parallel, name, 1)) > 1:
            raise ValueError(f"Cenote cannot share the KV of a context that is split over ranks: {name} is {size}, not 1")
    if len(kv_cache.kv_cache_groups) > 1 and parallel.pipeline_parallel_size > 1:
        raise ValueError(
            f"Cenote cannot share several KV cache groups over {parallel.pipeline_parallel_size} pipeline stages: the scheduler does "
            "not know the layers per stage and group. --disable-hybrid-kv-cache-manager merges them into one group"
        )
