"""Supported KV cache groups, with vLLM's own classes: models with other kinds are too large."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
)

from cenote.vllm.groups import fails_by_block, groups_of
from cenote.vllm.names import RequestNames
from cenote.weights import Weights

SHAPE: dict[str, Any] = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}


def full(block: int = 32) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block, **SHAPE)


def sliding(window: int, block: int = 32, more: int = 0) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block, sliding_window=window, extra_retained_tokens=more, **SHAPE)


def mamba() -> MambaSpec:
    return MambaSpec(block_size=32, shapes=((4, 4),), dtypes=(torch.float32,))


def latent() -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.float32)


def groups(*specs: Any, **parallel: int) -> list[Any]:
    made = [KVCacheGroupSpec([f"layer {number}"], spec) for number, spec in enumerate(specs)]
    config = SimpleNamespace(
        lora_config=None,
        parallel_config=SimpleNamespace(
            **{"pipeline_parallel_size": 1, "decode_context_parallel_size": 1, "prefill_context_parallel_size": 1} | parallel
        ),
    )
    kv_cache = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=made)
    return groups_of(config, kv_cache, Weights(), RequestNames(config))  # type: ignore[arg-type]


def test_full_attention_and_windows_are_shared() -> None:
    [one, two] = groups(full(64), sliding(100, 32, more=3))
    assert (one.kind, one.reach.window, one.window, one.hashes_per_block) == ("full_attention", None, None, 2)
    assert (two.kind, two.reach.window, two.window, two.hashes_per_block) == ("sliding_window", 103, 100, 1)
    # Equals the blocks that vLLM's manager of such a group drops from its table.
    assert two.reach.first(320) == (320 - 100 + 1 - 3) // 32
    request: Any = SimpleNamespace(lora_request=None, block_hashes=[bytes([number]) for number in range(7)])
    assert (one.known(request), two.known(request)) == (3, 7)
    assert one.keys(request, 1, 3) == [bytes([3]), bytes([5])]
    assert two.keys(request, 1, 3) == [bytes([1]), bytes([2])]
    assert one.facts() != two.facts()


def test_loads_fail_by_block_only_for_one_group_of_full_attention() -> None:
    assert fails_by_block(groups(full()))
    assert fails_by_block(groups(latent()))
    assert not fails_by_block(groups(sliding(100)))
    assert not fails_by_block(groups(full(), full()))


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([full(), mamba()], r"refuses 1 of 2 KV cache groups. group 1 \(MambaSpec, 1 layers\): a recurrent state"),
        ([ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=64, **SHAPE), full()], r"group 0 \(Chunked.*not supported"),
        ([latent(), mamba()], r"refuses 2 of 2 KV cache groups. group 0 \(MLA.*only group; group 1 \(Mamba"),
        ([RSWASpec(block_size=32, rswa_window=64, **SHAPE)], r"group 0 \(RSWASpec, 1 layers\): this kind"),
        ([], "refuses 0"),
    ],
)
def test_a_refusal_names_each_unsupported_group(specs: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        groups(*specs)


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2"),
        ({"prefill_context_parallel_size": 2}, "prefill_context_parallel_size is 2"),
        ({"pipeline_parallel_size": 2}, "2 pipeline stages"),
    ],
)
def test_split_contexts_and_groups_over_stages_are_refused(parallel: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        groups(full(), sliding(100), **parallel)
