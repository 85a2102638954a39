"""SGLang's own prefix cache on the CPU.

It has SGLang's radix tree, controller threads, host memory and storage configuration. Two parts
need a GPU and are replaced: pinning of host memory, and the kernels that copy between device and
host memory. The device's memory is CPU memory. No model runs: a page's KV is random, seeded by the
tokens up to its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from cenote.sglang import storage
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_parallel

# A script that imports this module has only its folder on its path.
sys.path.append(str(Path(__file__).parents[1]))
from waiting import PATIENCE, until

PAGE, LAYERS, HEADS, HEAD_DIM, LATENT, ROPE = 16, 2, 2, 32, 96, 32
# Bytes of a page of the model with several heads.
PAGE_BYTES = 2 * LAYERS * PAGE * HEADS * HEAD_DIM * 2

# Pages that a slow machine skipped would be misses.
storage.BATCH_SECONDS = PATIENCE

BACKEND = {"backend_name": "cenote", "module_path": "cenote.sglang", "class_name": "CenoteStorage"}


def _slots(host: Any, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Indices of tokens in one layer of host memory."""
    return (slots // host.page_size, slots % host.page_size) if host.layout == "page_first_direct" else (slots,)


def _layers(host: Any, device: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    if isinstance(host, MLATokenToKVPoolHost):
        is_layer_first = host.layout == "layer_first"
        pairs = [(device.kv_buffer, host.kv_buffer if is_layer_first else host.kv_buffer.transpose(0, 1))]
    else:
        pairs = [(host.device_k_buffers, host.k_data_refs), (host.device_v_buffers, host.v_data_refs)]
    for memory, views in pairs:
        yield from ((layer, memory[layer], views[layer]) for layer in range(LAYERS))


def _backup(host: Any, device: Any, host_slots: torch.Tensor, slots: torch.Tensor, _io: str) -> None:
    for _, memory, view in _layers(host, device):
        view[_slots(host, host_slots)] = memory[slots]


def _load(host: Any, device: Any, host_slots: torch.Tensor, slots: torch.Tensor, layer: int, _io: str, **_: Any) -> None:
    for at, memory, view in _layers(host, device):
        if at == layer:
            memory[slots] = view[_slots(host, host_slots)]


common._cuda_host_register = lambda *_args, **_kwargs: None
common._cuda_host_unregister = lambda *_args, **_kwargs: None
for _host in (MHATokenToKVPoolHost, MLATokenToKVPoolHost):
    _host.backup_from_device_all_layer = _backup
    _host.load_to_device_per_layer = _load


@contextlib.contextmanager
def published(**settings: Any) -> Iterator[Any]:
    """Publishes SGLang's settings for this process, as its scheduler does."""
    ranks = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1}
    ranks |= {"attn_tp_rank": 0, "attn_tp_size": 1, "attn_dp_rank": 0, "attn_dp_size": 1}
    ranks |= {"attn_dcp_rank": 0, "attn_dcp_size": 1}
    for name in [name for name in settings if name in ranks]:
        ranks[name] = settings.pop(name)
    ranks["attn_tp_rank"], ranks["attn_tp_size"] = ranks["tp_rank"], ranks["tp_size"]
    ranks |= {"moe_tp_size": ranks["tp_size"], "moe_tp_rank": ranks["tp_rank"]}
    with get_parallel().override(**ranks), get_context().override_server_args(**settings) as server_args:
        yield server_args


class Server:
    """One server's cache. `settings` go to the storage backend, the rest to SGLang."""

    def __init__(
        self,
        region: str | None,
        settings: dict[str, Any] | None = None,
        *,
        layout: str = "page_first_direct",
        by_address: bool = True,
        is_latent: bool = False,
        size: int = 1024,
        metrics: bool = False,
        **server: Any,
    ) -> None:
        extra = extra_config(region, settings, by_address=by_address) if region else None
        server = {
            "enable_hierarchical_cache": True,
            "hicache_ratio": 2.0,
            "hicache_size": 0,
            "page_size": PAGE,
            "hicache_mem_layout": layout,
            "hicache_io_backend": "direct",
            "hicache_write_policy": "write_through",
            "hicache_storage_backend": "dynamic" if region else None,
            "hicache_storage_backend_extra_config": extra,
            "hicache_storage_prefetch_policy": "wait_complete",
            "served_model_name": "demo",
        } | server
        with published(**server) as server_args:
            memory: dict[str, Any] = {"size": size, "page_size": PAGE, "dtype": torch.bfloat16, "layer_num": LAYERS}
            memory |= {"device": "cpu", "enable_memory_saver": False}
            if is_latent:
                self.device = MLATokenToKVPool(kv_lora_rank=LATENT, qk_rope_head_dim=ROPE, **memory)
            else:
                self.device = MHATokenToKVPool(head_num=HEADS, head_dim=HEAD_DIM, **memory)
            self.allocator = PagedTokenToKVPoolAllocator(size, PAGE, torch.bfloat16, "cpu", self.device, False)
            params = CacheInitParams(
                disable=False,
                req_to_token_pool=ReqToTokenPool(8, size, "cpu", False),
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                tree_components=(ComponentType.FULL,),
                enable_metrics=metrics,
            )
            self.cache = UnifiedRadixCache(params)
            self.cache.init_hicache(server_args, params)
        # Reads of pages by tensor would pin their target, which needs a GPU.
        self.controller.mem_pool_host.anchor_entry.host_pool.pin_memory = False
        self.requests = 0

    @property
    def controller(self) -> Any:
        return self.cache.cache_controller

    @property
    def storage(self) -> Any:
        return self.controller.storage_backend

    def memories(self) -> list[torch.Tensor]:
        pool = self.device
        return list(pool.kv_buffer) if isinstance(pool, MLATokenToKVPool) else [*pool.k_buffer, *pool.v_buffer]

    def step(self) -> None:
        """Runs a step of the scheduler."""
        self.cache.check_hicache_events()

    def compute(self, tokens: Sequence[int], **key: Any) -> None:
        """Computes a prompt's KV, caches it, and waits for its backup to the storage backend."""
        slots = self.allocator.alloc(len(tokens))
        assert slots is not None, "the device's memory is full: forget first"
        for memory, content in zip(self.memories(), kv(self, tokens), strict=True):
            memory[slots] = content
        self.cache.insert(InsertParams(key=radix_key(tokens, **key), value=slots))

        def written() -> bool:
            self.step()
            return not (self.cache.ongoing_backup or self.cache.ongoing_write_through or self.controller.ack_write_queue)

        until("the backup", written)

    def load(self, tokens: Sequence[int], **key: Any) -> int:
        """Prefetches a prompt, loads the hit to the device and checks its KV.

        Returns the number of hit tokens."""
        self.requests += 1
        request = CacheRequestHandle(f"request-{self.requests}", 0)
        found = self.match(tokens, **key)
        self.cache.prefetch_from_storage(request, found.last_host_node, array("q", tokens), **key)

        def fetched() -> bool:
            self.step()
            return bool(self.cache.check_prefetch_progress(request))

        until("the prefetch", fetched)
        self.cache.pop_prefetch_loaded_tokens(request)
        found = self.match(tokens, **key)
        if found.host_hit_length:
            # The cache reads these fields of a request: its match on the device, no other state.
            asking = SimpleNamespace(rid=request.rid, last_node=found.last_device_node)
            asking.kv, asking.swa_host_hit_length, asking.mamba_host_hit_length = SimpleNamespace(mamba_pool_idx=None), 0, 0
            host = InitLoadBackParams(best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=asking)
            self.cache.init_load_back(host)
            self.cache.ready_to_load_host_cache()

            def loaded() -> bool:
                self.step()
                return not self.controller.ack_load_queue

            until("the load to the device", loaded)
            found = self.match(tokens, **key)
        length = int(found.device_prefix_len)
        if length:
            root = self.cache.root_node_handle(key.get("extra_key"))
            slots = self.cache.tree_core.collect_full_device_indices(found.last_device_node, root)
            assert len(slots) == length
            for memory, content in zip(self.memories(), kv(self, tokens), strict=True):
                assert torch.equal(memory[slots], content[:length]), "wrong KV"
        return length

    def match(self, tokens: Sequence[int], **key: Any) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=radix_key(tokens, **key)))

    def forget(self) -> None:
        """Empties the device and host memory: `/flush_cache`."""
        self.cache.reset()
        self.allocator.clear()
        for memory in self.memories():
            memory.zero_()
        self.controller.mem_pool_host.anchor_entry.host_pool.kv_buffer.zero_()

    def threads(self) -> list[bool]:
        """For each of SGLang's storage threads, whether it is alive."""
        controller = self.controller
        return [
            thread.is_alive()
            for thread in (
                controller.prefetch_thread,
                controller.prefetch_io_aux_thread,
                controller.prefetch_sync_thread,
                controller.backup_thread,
            )
        ]

    def close(self) -> None:
        self.cache.detach_storage_backend()


def extra_config(region: str, settings: dict[str, Any] | None = None, *, by_address: bool = True) -> str:
    """`--hicache-storage-backend-extra-config`, without settings of None."""
    extra = {"interface_v1": int(by_address), "prefetch_threshold": PAGE, "region": region, "model_fingerprint": "weights"}
    all_settings = BACKEND | extra | (settings or {})
    return json.dumps({name: value for name, value in all_settings.items() if value is not None})


def radix_key(tokens: Sequence[int], **key: Any) -> RadixKey:
    return RadixKey(array("q", tokens), **key)


def kv(server: Server, tokens: Sequence[int]) -> list[torch.Tensor]:
    """The KV of a prompt, per memory of the device. All tokens up to a page's end determine it."""
    pages: list[list[torch.Tensor]] = []
    for end in range(PAGE, len(tokens) + 1, PAGE):
        seed = hashlib.sha256(array("q", tokens[:end]).tobytes()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(seed[:7], "little"))
        shapes = [(PAGE, *memory.shape[1:]) for memory in server.memories()]
        pages.append([torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes])
    return [torch.cat(parts) for parts in zip(*pages, strict=True)]
