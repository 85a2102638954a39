"""Supported KV cache groups, with vLLM's own classes: models with other kinds are too large."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.single_type_kv_cache_manager import ChunkedLocalAttentionManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from cenote.hits import Reach
from cenote.vllm.groups import fails_by_block, groups_of, hit_alignment
from cenote.vllm.names import RequestNames
from cenote.weights import Weights

SHAPE: dict[str, Any] = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}


def full(block: int = 32) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, **SHAPE)


def sliding(window: int, block: int = 32, more: int = 0) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block, sliding_window=window, extra_retained_tokens=more, **SHAPE)


def chunked(chunk: int, block: int = 32) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=chunk, **SHAPE)


def mamba(mode: str = "align", block: int = 32, **more: Any) -> MambaSpec:
    """States of 100 bytes in pages of 4,096."""
    shapes, dtypes = ((3, 7), (4,)), (torch.float32, torch.float32)
    return MambaSpec(block_size=block, shapes=shapes, dtypes=dtypes, page_size_padded=4096, mamba_cache_mode=mode, **more)


def ring() -> CircularBufferSpec:
    return CircularBufferSpec(block_size=8, **SHAPE)


def latent() -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.float32)


def of(*specs: Any, layers: int = 1, **parallel: int) -> tuple[Any, KVCacheConfig]:
    """A configuration with one group for each specification."""
    made = [KVCacheGroupSpec([f"layer {number}.{layer}" for layer in range(layers)], spec) for number, spec in enumerate(specs)]
    config = SimpleNamespace(
        lora_config=None,
        parallel_config=SimpleNamespace(**{"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1} | parallel),
    )
    kv_cache = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=made)
    # Fields that versions before 0.32 do not have.
    kv_cache.hash_block_size = kv_cache.cache_hit_alignment_tokens = None
    return config, kv_cache


def groups(*specs: Any, layers: int = 1, **parallel: int) -> list[Any]:
    config, kv_cache = of(*specs, layers=layers, **parallel)
    return groups_of(config, kv_cache, Weights(), RequestNames(config))


def test_full_attention_and_windows_are_shared() -> None:
    [one, two] = groups(full(64), sliding(100, 32, more=3))
    assert (one.kind, one.reach, one.window, one.hashes_per_block) == ("full_attention", Reach(64), None, 2)
    assert (two.kind, two.reach, two.window, two.hashes_per_block) == ("sliding_window", Reach(32, 103), 100, 1)
    # Equals the blocks that vLLM's manager of such a group drops from its table.
    assert two.reach.first(320) == (320 - 100 + 1 - 3) // 32
    request: Any = SimpleNamespace(lora_request=None, block_hashes=[bytes([number]) for number in range(7)])
    assert (one.known(request), two.known(request)) == (3, 7)
    assert one.keys(request, 1, 3) == [bytes([3]), bytes([5])]
    assert two.keys(request, 1, 3) == [bytes([1]), bytes([2])]
    assert one.facts() != two.facts()


def test_states_and_chunks_are_shared_without_padding() -> None:
    [one, two, three] = groups(full(), mamba(), chunked(64), layers=3)
    assert (two.kind, two.reach, two.is_state) == ("mamba", Reach(32, is_state=True), True)
    assert (three.kind, three.reach) == ("chunked_local_attention", Reach(32, chunk=64))
    # A state has 100 of the 4,096 bytes of its page; copies are of whole lines.
    assert two.block_bytes == 3 * 128
    assert one.block_bytes == three.block_bytes == 3 * 2 * 32 * 2 * 64 * 4


@pytest.mark.parametrize("chunk", [16, 64, 96])
@pytest.mark.parametrize("end", [32, 64, 96, 160, 192, 320])
def test_chunks_need_the_blocks_that_vllm_keeps(chunk: int, end: int) -> None:
    manager = object.__new__(ChunkedLocalAttentionManager)
    manager.attention_chunk_size = chunk
    [group] = groups(chunked(chunk))
    assert group.reach.first(end) == manager.get_num_skipped_tokens(end) // 32


def test_layers_of_different_sizes_are_one_group() -> None:
    wide = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=128, dtype=torch.float32)
    names = ["a", "b", "c"]
    spec = UniformTypeKVCacheSpecs.from_specs(dict(zip(names, [full(), wide, full()], strict=True)))
    config, kv_cache = of(full())
    kv_cache.kv_cache_groups[0] = KVCacheGroupSpec(names, spec)
    [group] = groups_of(config, kv_cache, Weights(), RequestNames(config))
    assert [page.bytes for page in group.pages] == [32768, 65536, 32768]
    assert group.kind == "full_attention" and group.reach.is_whole
    other = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"a": full(), "b": sliding(64), "c": full()})
    kv_cache.kv_cache_groups[0] = KVCacheGroupSpec(names, other)
    with pytest.raises(ValueError, match="its layers need different tokens"):
        groups_of(config, kv_cache, Weights(), RequestNames(config))


def test_groups_that_vllm_rebuilds_are_left_out() -> None:
    shared = groups(latent(), ring(), latent())
    assert [group.number for group in shared] == [0, 2]
    config, kv_cache = of(full(), full())
    kv_cache.kv_cache_groups[1].enable_kv_transfer = False
    assert [group.number for group in groups_of(config, kv_cache, Weights(), RequestNames(config))] == [0]
    # Hits end where the ring is empty, which vLLM states as an alignment.
    kv_cache.cache_hit_alignment_tokens = 96
    assert hit_alignment(config, shared, kv_cache) == 96


def test_loads_fail_by_block_only_for_one_group_of_full_attention() -> None:
    def by_block(*specs: Any) -> bool:
        return fails_by_block(groups(*specs), of(*specs)[1])

    assert by_block(full())
    assert by_block(latent())
    assert not by_block(sliding(100))
    assert not by_block(chunked(64))
    assert not by_block(mamba())
    assert not by_block(full(), full())
    assert not by_block(full(), ring())


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([full(), mamba("none")], r"refuses 1 of 2 KV cache groups. group 1 \(MambaSpec, 1 layers\): .*--mamba-cache-mode align"),
        ([FullAttentionSpec(block_size=32, non_causal=True, **SHAPE)], "group 0 .*depends on later tokens"),
        ([CrossAttentionSpec(block_size=32, **SHAPE), full()], "refuses 1 of 2 .*tokens do not name"),
        ([RSWASpec(block_size=32, rswa_window=64, **SHAPE)], r"group 0 \(RSWASpec, 1 layers\): .*was generated"),
        ([HiddenStateCacheSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.float32)], "this kind"),
        ([], "refuses 0"),
    ],
)
def test_a_refusal_names_each_unsupported_group(specs: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        groups(*specs)


@pytest.mark.parametrize("name", ["decode_context_parallel_size", "prefill_context_parallel_size"])
def test_split_contexts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 2"):
        groups(full(), sliding(100), **{name: 2})
