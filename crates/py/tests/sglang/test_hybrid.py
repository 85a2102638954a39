"""Pools of hybrid models beside the KV: the calls of SGLang's controller, replayed on SGLang's own host pools.

`HybridCacheController` stores each pool's pages with `batch_set_v2`, asks with `batch_exists_v2` which prefixes all pools
can continue from, and loads with `batch_get_v2`. Its device pools need a GPU; the host pools do not."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from servers import PAGE, Server, published
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

from cenote.sglang import storage as storage_module

PAGES, WINDOW = 6, 2
KEYS = [f"key {page}" for page in range(PAGES)]
STATES = 16


def states(*, conv: torch.dtype = torch.bfloat16, heads: int = 4, side: bool = False) -> MambaPoolHost:
    """Host memory of recurrent states."""
    info = MambaStateBufferInfo(
        temporal=torch.zeros(2, STATES, heads, 32),
        conv=(torch.zeros(2, STATES, 64, 2, dtype=conv),),
        extra_checkpoint_buffers=(torch.zeros(STATES, 16),) if side else (),
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=STATES, pin_memory=False, layout="page_first_direct")


class Hybrid:
    """A server whose model has sliding windows and recurrent states."""

    def __init__(self, region: str, state: MambaPoolHost | None = None, **server: Any) -> None:
        self.server, self.beside = Server(region, **server), Server(None)
        self.storage = self.server.storage
        self.hosts: dict[PoolName, Any] = {
            PoolName.KV: self.server.controller.mem_pool_host.anchor_entry.host_pool,
            PoolName.SWA: self.beside.controller.mem_pool_host.anchor_entry.host_pool,
            PoolName.MAMBA: state or states(),
        }
        known = {name: value for name, value in server.items() if name not in ("settings", "is_latent")}
        with published(**{"served_model_name": "demo", "page_size": PAGE} | known):
            for name, host in self.hosts.items():
                self.storage.register_mem_host_pool_v2(host, name)

    def transfer(self, name: PoolName, keys: Sequence[str], first: int = 0) -> PoolTransfer:
        """A transfer of pages from the `first` page of host memory on."""
        size = self.hosts[name].page_size
        indices = torch.arange(first * size, (first + len(keys)) * size)
        policy = PoolHitPolicy.ALL_PAGES if name == PoolName.KV else PoolHitPolicy.TRAILING_PAGES
        return PoolTransfer(name, host_indices=indices, keys=list(keys), hit_policy=policy)

    def pieces(self, name: PoolName, page: int) -> list[torch.Tensor]:
        """Bytes of a page of host memory, piece by piece."""
        host = self.hosts[name]
        if name == PoolName.MAMBA:
            parts = [host.temporal_buffer[page], *(buffer[page] for buffer in host.conv_buffer)]
        else:
            parts = [memory[page] for memory in (host.k_buffer, host.v_buffer)]
        return [part.reshape(-1).view(torch.uint8) for part in parts]

    def fill(self, name: PoolName, keys: Sequence[str], first: int = 0) -> None:
        """Writes into pages of host memory what their keys name."""
        for page, key in enumerate(keys, first):
            for piece, content in zip(self.pieces(name, page), content_of(self, name, key, page), strict=True):
                piece.copy_(content)

    def holds(self, name: PoolName, keys: Sequence[str], first: int = 0) -> bool:
        return all(
            torch.equal(piece, content)
            for page, key in enumerate(keys, first)
            for piece, content in zip(self.pieces(name, page), content_of(self, name, key, page), strict=True)
        )

    def store(self, name: PoolName, keys: Sequence[str], before: Sequence[str] = ()) -> list[bool]:
        self.fill(name, keys)
        extra = HiCacheStorageExtraInfo(prefix_keys=list(before))
        return self.storage.batch_set_v2([self.transfer(name, keys)], extra)[name]  # type: ignore[no-any-return]

    def ask(self, keys: Sequence[str] = KEYS, window: int = WINDOW) -> Any:
        transfers = [self.transfer(PoolName.SWA, keys[-window:]), self.transfer(PoolName.MAMBA, keys[-1:])]
        return self.storage.batch_exists_v2(list(keys), transfers)

    def close(self) -> None:
        self.server.close()


def content_of(server: Hybrid, name: PoolName, key: str, page: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(f"{name} {key}".encode()).digest()[:7], "little"))
    return [torch.randint(0, 256, piece.shape, generator=generator, dtype=torch.uint8) for piece in server.pieces(name, page)]


def written(region: str, **server: Any) -> Hybrid:
    """A server that stored a prompt of six pages, with states at the ends of pages 4 and 6 and the windows before both."""
    first = Hybrid(region, **server)
    assert first.store(PoolName.KV, KEYS) == [True] * PAGES
    for end in (4, PAGES):
        assert first.store(PoolName.SWA, KEYS[end - WINDOW : end], KEYS[: end - WINDOW]) == [True] * WINDOW
        assert first.store(PoolName.MAMBA, KEYS[end - 1 : end], KEYS[: end - 1]) == [True]
    return first


def test_a_server_continues_from_the_states_of_another(region: str) -> None:
    first, second = written(region), Hybrid(region)
    found = second.ask()
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (PAGES, [4, PAGES])
    assert found.extra_pool_hit_pages == {"kv": PAGES, "swa": PAGES, "mamba": PAGES}
    transfers = [
        second.transfer(PoolName.KV, KEYS),
        second.transfer(PoolName.SWA, KEYS[-WINDOW:], first=3),
        second.transfer(PoolName.MAMBA, KEYS[-1:], first=7),
    ]
    assert second.storage.batch_get_v2(transfers) == {"kv": [True] * PAGES, "swa": [True] * WINDOW, "mamba": [True]}
    assert second.holds(PoolName.KV, KEYS)
    assert second.holds(PoolName.SWA, KEYS[-WINDOW:], first=3)
    assert second.holds(PoolName.MAMBA, KEYS[-1:], first=7)
    assert second.storage.errors == 0
    # The KV of both interfaces is the same.
    assert second.storage.batch_get_v1(KEYS, torch.arange(PAGES * PAGE)) == [True] * PAGES
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("pool", "missing", "lengths"),
    [
        # A window without one of its pages, or a state that is missing, ends one prefix; the KV ends all after it.
        (PoolName.MAMBA, 5, [4]),
        (PoolName.MAMBA, 3, [6]),
        (PoolName.SWA, 4, [4]),
        (PoolName.SWA, 2, [6]),
        (PoolName.KV, 4, [4]),
        (PoolName.KV, 1, []),
    ],
)
def test_a_prefix_counts_if_all_pools_can_continue(region: str, pool: PoolName, missing: int, lengths: list[int]) -> None:
    first = Hybrid(region)
    there = {PoolName.KV: range(PAGES), PoolName.SWA: (2, 3, 4, 5), PoolName.MAMBA: (3, 5)}
    for name, pages in there.items():
        for page in pages:
            if (name, page) != (pool, missing):
                assert first.store(name, [KEYS[page]], KEYS[:page]) == [True]
    found = first.ask()
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (max(lengths, default=0), lengths)
    first.close()


def test_without_other_pools_only_the_kv_counts(region: str) -> None:
    first = written(region)
    found = first.storage.batch_exists_v2(KEYS)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (PAGES, list(range(1, PAGES + 1)))
    assert first.storage.batch_exists_v2(["other"]).kv_hit_pages == 0
    first.close()


@pytest.mark.parametrize(
    ("state", "server"),
    [
        ({"conv": torch.float16}, {}),
        ({"heads": 8}, {}),
        ({}, {"tp_rank": 1, "tp_size": 2}),
        ({}, {"quantization": "fp8"}),
        ({}, {"settings": {"tenant_salt": "other"}}),
        ({}, {"settings": {"model_fingerprint": "other"}}),
    ],
)
def test_states_that_differ_are_not_shared(region: str, state: dict[str, Any], server: dict[str, Any]) -> None:
    first, second = written(region), Hybrid(region, states(**state), **server)
    assert second.ask().kv_hit_pages == 0
    result = second.storage.batch_get_v2([second.transfer(PoolName.MAMBA, KEYS[-1:])])
    assert result == {"mamba": [False]}
    assert second.storage.errors == 0
    same = Hybrid(region)
    assert same.ask().kv_hit_pages == PAGES
    for each in (first, second, same):
        each.close()


def test_pools_of_equal_shape_have_pages_of_their_own(region: str) -> None:
    """The KV and the sliding windows here have the same shape and the same keys."""
    first = Hybrid(region)
    assert first.store(PoolName.KV, KEYS) == [True] * PAGES
    assert first.storage.batch_get_v2([first.transfer(PoolName.SWA, KEYS[-1:])]) == {"swa": [False]}
    first.close()


def test_ranks_of_latent_attention_keep_their_own_states(region: str) -> None:
    """All ranks have the same KV, but each a part of the recurrent state."""
    ranks = [Hybrid(region, is_latent=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    namespaces = [{name: pages.blocks.id for name, pages in rank.storage.pools.items()} for rank in ranks]
    assert namespaces[0]["kv"] == namespaces[1]["kv"]
    assert namespaces[0]["mamba"] != namespaces[1]["mamba"]
    for rank in ranks:
        rank.close()


class Faulty:
    """A namespace that fails every call."""

    def __getattr__(self, _name: str) -> Any:
        raise RuntimeError("broken")


def test_a_fault_of_one_pool_leaves_the_others(region: str) -> None:
    first = written(region)
    storage, name = first.storage, PoolName.SWA
    whole = storage.pools["swa"]
    storage.pools["swa"] = dataclasses.replace(whole, blocks=Faulty())
    transfers = [first.transfer(PoolName.SWA, KEYS[-WINDOW:]), first.transfer(PoolName.MAMBA, KEYS[-1:])]
    assert storage.batch_get_v2(transfers) == {"swa": [False] * WINDOW, "mamba": [True]}
    assert storage.batch_set_v2(transfers) == {"swa": [False] * WINDOW, "mamba": [True]}
    assert first.ask().kv_hit_pages == 0
    assert storage.errors == 3
    storage.pools["swa"] = whole
    # What SGLang should never send: no indices, too few of them, a pool that was never registered, an unknown policy.
    odd = [
        PoolTransfer(name, host_indices=None, keys=KEYS[:1]),
        PoolTransfer(name, host_indices=torch.arange(PAGE - 1), keys=KEYS[:1]),
        PoolTransfer(PoolName.INDEXER, host_indices=torch.arange(PAGE), keys=KEYS[:1]),
    ]
    for transfer in odd:
        assert storage.batch_set_v2([transfer]) == {transfer.name: [False]}
    assert storage.batch_exists_v2(KEYS, [PoolTransfer(name, keys=KEYS[:1], hit_policy=PoolHitPolicy.BLOCK_GROUPS)]).kv_hit_pages == 0
    assert storage.errors == 3 + len(odd) + 1
    assert storage.batch_get_v2([PoolTransfer(name, host_indices=torch.arange(0), keys=None)]) == {"swa": []}
    first.close()


def test_a_state_that_left_the_region_is_a_miss(region: str) -> None:
    first, second = written(region), Hybrid(region)
    assert second.ask().kv_hit_pages == PAGES
    first.storage.pools["mamba"].blocks.forget()
    assert second.storage.batch_get_v2([second.transfer(PoolName.MAMBA, KEYS[-1:])]) == {"mamba": [False]}
    assert second.ask().kv_hit_pages == 0
    first.close()
    second.close()


def test_transfers_of_one_call_share_a_deadline(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(region)
    transfers = [first.transfer(PoolName.SWA, KEYS[-WINDOW:]), first.transfer(PoolName.MAMBA, KEYS[-1:])]
    monkeypatch.setattr(storage_module, "BATCH_SECONDS", -1.0)
    assert first.storage.batch_get_v2(transfers) == {"swa": [False] * WINDOW, "mamba": [False]}
    assert first.storage.batch_set_v2(transfers) == {"swa": [False] * WINDOW, "mamba": [False]}
    monkeypatch.undo()
    assert first.storage.batch_get_v2(transfers) == {"swa": [True] * WINDOW, "mamba": [True]}
    first.close()


def test_new_weights_end_the_sharing_of_all_pools(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(region)
    monkeypatch.setattr(storage_module.naming, "weight_version", lambda: "next")
    assert first.ask().kv_hit_pages == 0
    assert first.storage.batch_get_v2([first.transfer(PoolName.MAMBA, KEYS[-1:])]) == {"mamba": [False]}
    assert first.storage.batch_set_v2([first.transfer(PoolName.MAMBA, KEYS[-1:])]) == {"mamba": [False]}
    # Clearing needs no names.
    first.storage.clear()
    monkeypatch.undo()
    assert first.ask().kv_hit_pages == 0
    first.close()


def test_pools_that_cannot_be_shared_are_refused(region: str) -> None:
    for name, host, said in (
        (PoolName.DRAFT, states(), "also has a pool `draft`"),
        (PoolName.MAMBA, states(side=True), "does not name the memory of a page"),
    ):
        server = Server(region)
        with pytest.raises(ValueError, match=said):
            server.storage.register_mem_host_pool_v2(host, name)
        assert server.storage.batch_exists(KEYS) == 0, "the backend is closed"
    server = Server(region)
    server.storage.close()
    with pytest.raises(ValueError, match="before the KV"):
        server.storage.register_mem_host_pool_v2(states(), PoolName.MAMBA)
