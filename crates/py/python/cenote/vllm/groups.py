"""KV cache groups: layers that share a block table. Checks whether Cenote supports their kinds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupRole,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    get_kv_cache_spec_kind,
)

from cenote.hits import Reach, alignment
from cenote.vllm.differences import hash_tokens, hit_tokens
from cenote.weights import Weights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec
    from vllm.v1.request import Request

    from cenote.vllm.names import RequestNames

_WHOLE = (FullAttentionSpec, SinkFullAttentionSpec, MLAAttentionSpec)
_WINDOWS = (SlidingWindowSpec, SlidingWindowMLASpec)

_REASONS: dict[type, str] = {
    CrossAttentionSpec: "tokens do not name blocks of cross-attention",
    EncoderOnlyAttentionSpec: "the KV of an encoder depends on tokens after a block",
    RSWASpec: "a token's KV depends on whether the token was generated",
}

# Fields of a spec that say where its pages lie, and not what is in them.
_PLACES = {"page_size_padded", "block_stride_alignment", "num_kv_heads", "num_head_slots", "max_tp_shards", "dcp_sharded"}

# Pages are copied in multiples of so many bytes.
_LINE = 64


@dataclass(frozen=True)
class Page:
    """One layer's part of a block."""

    layer: str
    spec: KVCacheSpec

    @property
    def real_bytes(self) -> int:
        """Bytes of its content, without vLLM's padding."""
        spec = self.spec
        content = spec.unpadded_page_size_bytes if isinstance(spec, AttentionSpec) else spec.state_content_size_bytes
        return int(content)

    @property
    def bytes(self) -> int:
        """Bytes that are copied: whole lines."""
        return -(-self.real_bytes // _LINE) * _LINE

    def facts(self) -> dict[str, str]:
        """What the content means."""
        fields = [field.name for field in dataclasses.fields(self.spec) if field.name not in _PLACES]
        return {"layer": self.layer, "spec": type(self.spec).__name__} | {name: str(getattr(self.spec, name)) for name in fields}


@dataclass(frozen=True)
class Group:
    """Layers of the same kind that share one block table."""

    number: int
    """Its place among vLLM's groups."""
    kind: str
    """Its kind in vLLM's KV events."""
    reach: Reach
    pages: tuple[Page, ...]
    """In the scheduler's process these are the layers of one rank, with the specification of one layer."""
    hashes_per_block: int
    """vLLM's hashes per block of this group. vLLM hashes units of `hash_block_size` tokens."""
    window: int | None
    """Window in tokens, as in vLLM's KV events; None without one."""
    weights: Weights
    names: RequestNames

    @property
    def block_tokens(self) -> int:
        return self.reach.block_tokens

    @property
    def is_state(self) -> bool:
        return self.reach.is_state

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of these layers."""
        return sum(page.bytes for page in self.pages)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(page.layer for page in self.pages)

    def keys(self, request: Request, start: int, end: int) -> list[bytes]:
        """Names of these blocks in the region."""
        keys = self.weights.keys(self.hashes(request, start, end))
        ends = [(number + 1) * self.block_tokens for number in range(start, start + len(keys))]
        return self.names.keys(request, keys, ends)

    def hashes(self, request: Request, start: int, end: int) -> list[bytes]:
        """The last hash of each block, which covers all tokens up to the end of the block."""
        every = self.hashes_per_block
        return list(request.block_hashes[start * every + every - 1 : end * every : every])

    def known(self, request: Request) -> int:
        """Number of the request's blocks that have all their tokens."""
        return len(request.block_hashes) // self.hashes_per_block

    def facts(self) -> dict[str, Any]:
        """Facts of the group that engines must share to exchange its blocks."""
        facts: dict[str, Any] = {
            "number": self.number,
            "kind": self.kind,
            "block tokens": self.block_tokens,
            "window": self.reach.window,
            "chunk": self.reach.chunk,
            "pages": [page.facts() for page in self.pages],
        }
        if self.is_state:
            facts["convolution layout"] = str(getattr(envs, "VLLM_SSM_CONV_STATE_LAYOUT", None))
        return facts


def groups_of(config: VllmConfig, kv_cache: KVCacheConfig, weights: Weights, names: RequestNames) -> list[Group]:
    """The groups of a model that Cenote shares. Raises ValueError if it cannot share one.

    Groups that vLLM itself rebuilds after a hit are left out."""
    _check_parallel(config)
    wanted = [(number, group) for number, group in enumerate(kv_cache.kv_cache_groups) if not _is_rebuilt(group)]
    refused = {number: _why_not(group) for number, group in wanted}
    said = [
        f"group {number} ({type(group.kv_cache_spec).__name__}, {len(group.layer_names)} layers): {refused[number]}"
        for number, group in wanted
        if refused[number]
    ]
    if said or not wanted:
        raise ValueError(
            f"Cenote cannot share the KV of this model: it refuses {len(said)} of {len(kv_cache.kv_cache_groups)} KV cache groups. "
            f"{'; '.join(said)}"
        )
    unit = hash_tokens(config, kv_cache)
    return [_group(number, group, unit, weights, names) for number, group in wanted]


def hit_alignment(config: VllmConfig, groups: Sequence[Group], kv_cache: KVCacheConfig) -> int:
    """Granularity of hits in tokens: of these groups, and of those that vLLM rebuilds."""
    return math.lcm(alignment([group.reach for group in groups]), hit_tokens(config, kv_cache))


def fails_by_block(groups: Sequence[Group], kv_cache: KVCacheConfig) -> bool:
    """True if vLLM can resume at the first block that failed to load.

    This needs all earlier blocks of the prompt in memory. Otherwise vLLM restarts the request."""
    return len(kv_cache.kv_cache_groups) == 1 and groups[0].reach.is_whole


def _specs(group: KVCacheGroupSpec) -> list[KVCacheSpec]:
    """The specification of each layer."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return [spec.kv_cache_specs[name] for name in group.layer_names]
    return [spec] * len(group.layer_names)


def _reach(spec: KVCacheSpec) -> Reach:
    size = spec.block_size
    if isinstance(spec, MambaSpec):
        return Reach(size, is_state=True)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return Reach(size, chunk=spec.attention_chunk_size)
    if isinstance(spec, SlidingWindowSpec):
        return Reach(size, spec.sliding_window + spec.extra_retained_tokens)
    return Reach(size)


def _group(number: int, group: KVCacheGroupSpec, unit: int, weights: Weights, names: RequestNames) -> Group:
    spec = group.kv_cache_spec
    every, rest = divmod(spec.block_size, unit)
    assert rest == 0, f"blocks of {spec.block_size} tokens, hashes of {unit}"
    # A stage of a pipeline may have no layer of a group.
    first = spec.first_spec if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    pages = tuple(map(Page, group.layer_names, _specs(group)))
    window = first.sliding_window if isinstance(first, SlidingWindowSpec) else None
    return Group(number, get_kv_cache_spec_kind(spec).value, _reach(first), pages, every, window, weights, names)


def _is_rebuilt(group: KVCacheGroupSpec) -> bool:
    """True if vLLM restores the group's memory by itself after a hit of the others.

    It does so for what its own prefix cache leaves out too: rings of a group of tokens that is not
    complete, windows that it recomputes, and copies of other groups."""
    return not group.enable_kv_transfer or not group.kv_cache_spec.prefix_cacheable


def _why_not(group: KVCacheGroupSpec) -> str | None:
    """Reason to refuse a group, or None."""
    specs = _specs(group)
    for spec in specs:
        if reason := _why_not_layer(spec):
            return reason
    if len({_reach(spec) for spec in specs}) > 1:
        return "its layers need different tokens"
    if group.host_resident or group.role != KVCacheGroupRole.DEFAULT:
        return "vLLM keeps its blocks outside of the block pool"
    return None


def _why_not_layer(spec: KVCacheSpec) -> str | None:
    """Only the listed classes are supported, not their subclasses: a subclass may remove or rewrite
    blocks in other ways."""
    kind = type(spec)
    if isinstance(spec, MambaSpec):
        if spec.mamba_cache_mode != "align":
            return f"states are at block borders only with --mamba-cache-mode align, and this is {spec.mamba_cache_mode!r}"
        return None if kind is MambaSpec else "this kind of KV cache is not supported"
    if kind not in (*_WHOLE, *_WINDOWS, ChunkedLocalAttentionSpec):
        return _REASONS.get(kind, "this kind of KV cache is not supported")
    if getattr(spec, "non_causal", False):
        return "a token's KV depends on later tokens"
    return None


def _check_parallel(config: VllmConfig) -> None:
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if (size := getattr(parallel, name, 1)) > 1:
            raise ValueError(f"Cenote cannot share the KV of a context that is split over ranks: {name} is {size}, not 1")
