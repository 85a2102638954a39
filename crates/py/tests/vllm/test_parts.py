"""Blocks of engines with other numbers of ranks, and of models that cannot run here, byte for byte.

Each rank's KV memory is made as vLLM makes it, filled, saved, emptied and loaded by the worker's own
code. No model runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
    create_kv_cache_views,
    iter_layer_specs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from waiting import PATIENCE

import cenote
from cenote.vllm.memory import host_memory, part_of
from cenote.vllm.parts import share_of
from cenote.vllm.settings import Settings
from cenote.vllm.shards import Part, Shards

BLOCKS, HEADS = 6, 8
# Since 0.31 vLLM says which ranks have the same heads.
TOLD = "max_tp_shards" in {field.name for field in fields(FullAttentionSpec)}
SIZES = [1, 2, 4, 8, *([16] if TOLD else [])]


@pytest.fixture
def region() -> Iterator[cenote.Region]:
    name = f"cenote-parts-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    cenote.Region.create(f"shm:{name}", "64MiB", chunk_size="4MiB", max_hosts=2)
    with cenote.Region.open(f"shm:{name}") as region:
        yield region
    Path("/dev/shm", name).unlink()


class Rank:
    """One rank: its KV memory, and its parts of the region."""

    def __init__(
        self, region: cenote.Region, groups: list[tuple[list[str], Any]], tp_rank: int = 0, tp_size: int = 1,
        layout: KVCacheLayout = KVCacheLayout.LBHNC, **settings: Any,
    ) -> None:  # fmt: skip
        from cenote.vllm import shards as module
        from cenote.vllm.groups import groups_of
        from cenote.vllm.names import RequestNames
        from cenote.weights import Weights

        parallel = SimpleNamespace(tensor_parallel_size=tp_size, decode_context_parallel_size=1, prefill_context_parallel_size=1)
        config: Any = SimpleNamespace(lora_config=None, parallel_config=parallel, model_config=SimpleNamespace(model="replayed"))
        kv_cache = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(names, spec) for names, spec in groups])
        # Fields that versions before 0.32 do not have.
        kv_cache.hash_block_size = kv_cache.cache_hit_alignment_tokens = None
        self.caches: dict[str, torch.Tensor] = {}
        for names, spec in groups:
            for name, own in zip(names, [*iter_layer_specs(spec)] * len(names), strict=False):
                raw = torch.zeros(BLOCKS * own.page_size_bytes, dtype=torch.int8)
                place = KVCacheTensor(raw.numel(), [name], own.page_size_bytes, own.page_size_bytes)
                [self.caches[name]] = create_kv_cache_views(raw, own, BLOCKS, layout, place)
        shards: Any = Shards.__new__(Shards)
        shards.config, shards.region, shards.identities, shards.digest, shards.draft = config, region, {}, "replayed", None
        shards.settings = Settings.of({"region": "shm:none", **settings})
        shards.groups = groups_of(config, kv_cache, Weights(), RequestNames(config))
        # Only what depends on ranks: the rest of an identity is of a model, which a replay has not.
        straight = module.fingerprint
        module.fingerprint = lambda _c, _s, digest, group, shard: repr((digest, group, shard)).encode()
        try:
            self.parts, self.facts = shards.parts_of(tp_rank)
        finally:
            module.fingerprint = straight
        self.memories = [self._memory(part) for part in self.parts]

    def _memory(self, part: Part) -> cenote.KvMemory:
        own = {page.layer: part_of(self.caches[page.layer], page, part) for page in part.group.pages}
        return host_memory(own, BLOCKS, part, 1)

    def fill(self, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        for cache in self.caches.values():
            cache.copy_(torch.randint(0, 100, cache.shape, generator=numbers).to(cache.dtype))

    def save(self, keys: list[bytes], blocks: list[int]) -> int:
        """Saves what this rank writes. Returns the number of published blocks."""
        published = 0
        for part, memory in zip(self.parts, self.memories, strict=True):
            for key, block in zip(keys, blocks, strict=True):
                if part.share.writes(key):
                    published += memory.save(part.blocks, part.blocks.alias([key]), [0], [block]).finish().get("published", 0)
        return published

    def load(self, keys: list[bytes], blocks: list[int]) -> None:
        for part, memory in zip(self.parts, self.memories, strict=True):
            lease = part.blocks.lookup(part.blocks.alias(keys))
            assert len(lease) == len(keys), part.group.number
            load = memory.load(lease, blocks)
            assert load.wait(PATIENCE)
            assert not load.failed()


def attention(heads: int, **more: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=32, dtype=torch.bfloat16, **more)


KEYS = [bytes([0, number]) for number in range(3)]


def ranks_of(region: cenote.Region, size: int, layout: KVCacheLayout = KVCacheLayout.LBHNC, **settings: Any) -> list[Rank]:
    """Ranks of a model with `HEADS` KV heads and two layers."""
    told = {"max_tp_shards": min(size, HEADS)} if TOLD else {}
    spec = attention(max(HEADS // size, 1), **told)
    return [Rank(region, [(["a", "b"], spec)], rank, size, layout, **settings) for rank in range(size)]


def whole(ranks: list[Rank], layer: str, blocks: list[int]) -> torch.Tensor:
    """The blocks with the heads of all ranks; of ranks with equal heads, the first."""
    apart = max(len(ranks) // HEADS, 1)
    return torch.cat([rank.caches[layer][blocks] for rank in ranks[::apart]], dim=1)


def spread(ranks: list[Rank], seed: int) -> None:
    """Gives the ranks their heads of random blocks."""
    apart, numbers = max(len(ranks) // HEADS, 1), torch.Generator().manual_seed(seed)
    for layer in ("a", "b"):
        every = torch.randn((BLOCKS, HEADS, *ranks[0].caches[layer].shape[2:]), generator=numbers).to(torch.bfloat16)
        heads = HEADS // min(len(ranks), HEADS)
        for rank, own in enumerate(ranks):
            at = rank // apart * heads
            own.caches[layer].copy_(every[:, at : at + heads])


@pytest.mark.parametrize("saving", SIZES)
@pytest.mark.parametrize("loading", SIZES)
def test_ranks_of_any_number_share_blocks(region: cenote.Region, saving: int, loading: int) -> None:
    savers = ranks_of(region, saving, head_shards=8)
    spread(savers, saving)
    # Of ranks with the same heads one saves each block.
    assert sum(rank.save(KEYS, [4, 0, 2]) for rank in savers) == 8 * len(KEYS)
    loaders = ranks_of(region, loading, head_shards=8)
    for rank in loaders:
        rank.load(KEYS, [1, 5, 3])
    for layer in ("a", "b"):
        assert torch.equal(whole(loaders, layer, [1, 5, 3]), whole(savers, layer, [4, 0, 2]))
        for rank in loaders:
            assert not rank.caches[layer][[0, 2, 4]].any(), "other blocks are untouched"


def test_without_shards_only_equal_numbers_share(region: cenote.Region) -> None:
    for size in (1, 2, 4):
        ranks = ranks_of(region, size)
        spread(ranks, 1)
        assert sum(rank.save(KEYS, [0, 1, 2]) for rank in ranks) == size * len(KEYS)
    again = ranks_of(region, 2)
    again[1].load(KEYS, [3, 4, 5])
    # Shards of another number are other parts.
    identities = {fact.identity for size in (1, 2, 4) for rank in ranks_of(region, size) for fact in rank.facts}
    assert len(identities) == 1 + 2 + 4


def test_shards_that_are_not_runs_or_not_heads_are_refused(region: cenote.Region) -> None:
    with pytest.raises(ValueError, match="head_shards is 16; give a number of shards that are whole KV heads: 1 ranks"):
        ranks_of(region, 1, head_shards=16)
    with pytest.raises(ValueError, match="head_shards is 3; .*2 ranks have different heads, 4 each"):
        ranks_of(region, 2, head_shards=3)
    # Tokens before heads: a rank's heads are in pieces.
    with pytest.raises(ValueError, match="is not 6 blocks of .* bytes in a run"):
        ranks_of(region, 2, KVCacheLayout.LBNHC, head_shards=8)
    # A rank that has one shard needs no piece of it.
    [rank, _] = ranks_of(region, 2, KVCacheLayout.LBNHC, head_shards=2)
    rank.fill(3)
    assert rank.save(KEYS, [0, 1, 2]) == 3


def test_what_all_ranks_have_is_stored_once(region: cenote.Region) -> None:
    latent = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    state = MambaSpec(16, ((3, 64),), (torch.bfloat16,), mamba_cache_mode="align", tp_replicated=True)
    for size in (1, 4):
        ranks = [Rank(region, [(["a", "b"], latent), (["c"], state)], rank, size) for rank in range(size)]
        for rank in ranks:
            rank.fill(5)
        published = [rank.save(KEYS, [0, 1, 2]) for rank in ranks]
        assert sum(published) == (2 * len(KEYS) if size == 1 else 0), "four ranks find what one has saved"
        ranks[-1].load(KEYS, [3, 4, 5])
        for cache in ranks[-1].caches.values():
            assert torch.equal(cache[[3, 4, 5]], cache[[0, 1, 2]])
    keys = [bytes([1, number]) for number in range(40)]
    ranks = [Rank(region, [(["a", "b"], latent)], rank, 4) for rank in range(4)]
    written = [rank.save([key], [0]) for key in keys for rank in ranks]
    assert sum(written) == len(keys)
    assert all(sum(written[rank::4]) == 10 for rank in range(4)), "the ranks share the writing"


def test_sharded_states_are_of_one_number_of_ranks() -> None:
    state = MambaSpec(16, ((3, 64),), (torch.bfloat16,), mamba_cache_mode="align")
    assert share_of(state, 1, 2, None).facts(0) != share_of(state, 1, 4, None).facts(0)
    assert share_of(state, 1, 2, 8) == share_of(state, 1, 2, None)


def deepseek_v4() -> list[tuple[list[str], Any]]:
    """Compressed runs, their index, and windows of latents (`deepseek_v4` in vLLM's models)."""
    mla: dict[str, Any] = {"num_kv_heads": 1, "dtype": torch.uint8, "model_version": "deepseek_v4", "alignment": 576}
    sparse = MLAAttentionSpec(block_size=256, head_size=512, cache_dtype_str="fp8_ds_mla", tokens_per_state=4, state_content_bytes=584, **mla)
    long = MLAAttentionSpec(block_size=256, head_size=512, cache_dtype_str="fp8_ds_mla", tokens_per_state=128, state_content_bytes=584, **mla)
    window = SlidingWindowMLASpec(
        block_size=64, num_kv_heads=1, head_size=512, dtype=torch.uint8, sliding_window=128, cache_dtype_str="fp8_ds_mla",
        model_version="deepseek_v4", alignment=576, state_content_bytes=584,
    )  # fmt: skip
    index = MLAAttentionSpec(block_size=256, head_size=128, cache_dtype_str="fp8", tokens_per_state=4, state_content_bytes=132, **mla)
    return [(["c4.0", "c4.1"], sparse), (["c128"], long), (["window.0", "window.1"], window), (["index"], index)]


def glm_5_next() -> list[tuple[list[str], Any]]:
    """Latents beside the keys of their index, in one group of layers of different sizes."""
    latent = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    index = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=132, dtype=torch.uint8)
    layers = {"0.attn": latent, "0.index": index, "1.attn": latent, "1.index": index}
    return [(list(layers), UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=layers))]


def kimi_k3() -> list[tuple[list[str], Any]]:
    """States of linear attention (KDA) with their convolutions, beside latents."""
    page = 64 * 576 * 2
    state = MambaSpec(
        64, ((3, 4 * 128), (3, 4 * 128), (3, 4 * 128), (4, 32, 64)), (torch.bfloat16,) * 3 + (torch.float32,),
        page_size_padded=page, mamba_cache_mode="align",
    )  # fmt: skip
    return [(["0", "1"], state), (["2", "3"], state), (["4"], MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, dtype=torch.bfloat16))]


def qwen4_exp() -> list[tuple[list[str], Any]]:
    """Gated delta nets, attention, and the convolution of n-gram embeddings, which each rank has whole."""
    full = FullAttentionSpec(block_size=528, num_kv_heads=2, head_size=128, dtype=torch.bfloat16)
    gdn = MambaSpec(528, ((3, 768), (4, 128, 128)), (torch.bfloat16, torch.float32), page_size_padded=full.page_size_bytes, mamba_cache_mode="align")
    ple = replace(gdn, shapes=((3, 640),), dtypes=(torch.bfloat16,), tp_replicated=True)
    return [(["0", "1"], gdn), (["2"], full), (["ple"], ple)]


@pytest.mark.parametrize("groups", [deepseek_v4, glm_5_next, kimi_k3, qwen4_exp], ids=lambda groups: groups.__name__)
def test_models_that_cannot_run_here_are_shared_byte_for_byte(region: cenote.Region, groups: Any) -> None:
    keys = [bytes([0, number]) for number in range(2)]
    one, two = Rank(region, groups()), Rank(region, groups())
    one.fill(1)
    assert one.save(keys, [4, 0]) == 2 * len(one.parts)
    two.load(keys, [1, 3])
    for layer, cache in two.caches.items():
        assert torch.equal(cache[[1, 3]], one.caches[layer][[4, 0]]), layer
        assert not cache[[0, 2, 4, 5]].any(), layer
    pages = [page for part in one.parts for page in part.group.pages]
    assert sum(part.blocks.block_bytes for part in one.parts) == sum(page.bytes for page in pages)
    assert all(page.bytes < page.real_bytes + 64 and page.bytes <= page.spec.page_size_bytes for page in pages)
