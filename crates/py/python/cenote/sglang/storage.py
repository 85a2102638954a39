"""SGLang's storage backend. SGLang's threads call it and must not die.

The backend counts each error as a miss."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

import cenote
from cenote.facts import record
from cenote.health import HealthLog
from cenote.serving import serving, serving_with
from cenote.sglang import naming
from cenote.sglang.stats import Transfers
from cenote.start import given_of_new, log_ignored, log_start

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolTransfer
    from sglang.srt.mem_cache.pool_host import HostKVCache
    from sglang.srt.observability.metrics_collector import StorageMetrics

logger = logging.getLogger(__name__)

# Keys of the extra configuration that SGLang itself reads or adds.
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "file_storage_path"}
_SETTINGS = {"region", "create_size", "chunk_size", "mode", "cold", "host_slot", "tenant_salt", "model_folder", "model_fingerprint"}
_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")

# SGLang's threads time out after ten seconds. A batch skips its remaining pages after this time.
BATCH_SECONDS = 5.0

# Pages that share fences and locks. Between two groups the batch looks at the clock.
_PUBLISHED_TOGETHER = 16


def _no_pages(keys: Any, *_args: Any, **_kwargs: Any) -> list[bool]:
    """One False per key, and at least one: SGLang treats an empty list as a success."""
    return [False] * (len(keys) if isinstance(keys, Sized) else 1)


def _no_tensors(keys: Any, *_args: Any, **_kwargs: Any) -> list[Any]:
    return [None] * (len(keys) if isinstance(keys, Sized) else 1)


def _no_transfers(transfers: Any, *_args: Any, **_kwargs: Any) -> dict[str, list[bool]]:
    return {transfer.name: _no_pages(transfer.keys or ()) for transfer in transfers or ()}


class CenoteStorage(HiCacheStorage):
    """Pages of one rank's host memory in a region. A page is one block, whole or absent."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        if unknown := sorted(set(extra) - _SETTINGS - _SGLANGS):
            known = ", ".join(sorted(_SETTINGS))
            raise ValueError(f"hicache-storage-backend-extra-config: unknown {', '.join(unknown)}; known are {known}")
        if not extra.get("region"):
            raise ValueError('hicache-storage-backend-extra-config: no region is given; give "region": "shm:NAME"')
        if storage_config.should_split_heads:
            raise ValueError("Cenote stores all heads of a rank together; it cannot split them for other tensor parallel sizes")
        naming.refuse_adapters()
        self.config, self.extra = storage_config, extra
        self.model = naming.model(extra, "hicache-storage-backend-extra-config")
        self.region: cenote.Region | None = None
        self._health: HealthLog | None = None
        self.pages: cenote.Namespace | None = None
        self.transfers: Transfers | None = None
        self.errors = 0
        self._told: set[tuple[str, str]] = set()
        self._counting = threading.Lock()
        self._weights = ""
        self._pieces = 0

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Joins the region. The size of a page is known only from SGLang's host memory."""
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        page_bytes = self._page_bytes(mem_pool_host)
        name = self.extra["region"]
        if (size := self.extra.get("create_size")) is not None:
            # Four pages to a chunk.
            chunk = self.extra.get("chunk_size") or max(2 << 20, 1 << math.ceil(math.log2(4 * page_bytes)))
            mode = int(str(self.extra.get("mode", "0600")), 8)
            differences = cenote.Region.create(name, size, chunk_size=chunk, mode=mode, exist_ok=True, cold=self.extra.get("cold"))
            log_ignored(name, differences, given_of_new(self.extra), logger)
        slot = int(self.extra.get("host_slot", 0))
        region = cenote.Region.open(name, worker="sglang", host_slot=slot, cold=self.extra.get("cold"))
        try:
            self._weights = naming.weight_version()
            identity = naming.fingerprint(self.config, self.extra, self.model, mem_pool_host, page_bytes)
            self.pages = region.namespace(
                identity,
                page_bytes,
                label=f"{self.config.model_name} {self.config.tp_rank}.{self.config.pp_rank}",
                block_tokens=mem_pool_host.page_size,
            )
            info = region.info()
            record(region, info, {self.pages.id: identity}, logger)
            log_start(name, info, [self.pages.id], logger)
        except BaseException:
            region.close()
            raise
        self.region, self._health = region, HealthLog(region, logger)
        self.transfers = Transfers(page_bytes) if self.config.enable_storage_metrics else None

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: Any) -> None:
        """Refuses pools other than the KV, such as those of hybrid models and draft models."""
        if str(host_pool_name) != "kv":
            self.close()
            raise ValueError(
                f"Cenote stores only the KV of full attention, but this model also has a pool `{host_pool_name}`; "
                "start without --hicache-storage-backend"
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def _page_bytes(self, pool: HostKVCache) -> int:
        """Bytes of a page. The pool must name the addresses of all its pieces."""
        if pool.layout not in _LAYOUTS:
            raise ValueError(f"--hicache-mem-layout {pool.layout} is not supported: use page_first_direct")
        import torch

        addresses, sizes = pool.get_page_buffer_meta(torch.arange(pool.page_size)) or ((), ())
        self._pieces, page_bytes = len(addresses), int(sum(sizes))
        whole = pool.get_size_per_token() * pool.page_size
        if page_bytes == 0 or page_bytes != whole:
            raise ValueError(f"{type(pool).__name__} names {page_bytes} bytes of a page of {whole} bytes")
        if any(size % 64 for size in sizes):
            raise ValueError(
                f"a page of this host memory has pieces of {sizes[0]} bytes, which is not a multiple of 64: use "
                "--hicache-mem-layout page_first or page_first_direct"
            )
        return page_bytes

    def _places(self, count: int, host_indices: Any) -> list[list[tuple[int, int]]]:
        """Pieces of each page in host memory: address and length."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if len(addresses) != self._pieces * count:
            raise ValueError(f"{len(addresses)} pieces of memory for {count} pages of {self._pieces} pieces each")
        places = list(zip(addresses, sizes, strict=True))
        return [places[page * self._pieces : (page + 1) * self._pieces] for page in range(count)]

    # --- pages by address in host memory: one copy ---

    @serving_with(_no_pages)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._read(keys, lambda: self._places(len(keys), host_indices))

    @serving_with(_no_pages)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        before = len((extra_info and extra_info.prefix_keys) or ())
        return self._write(keys, self._places(len(keys), host_indices), before)

    # --- pages by tensors ---

    @serving(lambda: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location], None)[0]

    @serving_with(_no_tensors)
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        if target_locations is None or len(target_locations) != len(keys) or any(to is None for to in target_locations):
            raise ValueError("a page needs a target tensor, but none was given")
        read = self._read(keys, lambda: [_place(target) for target in target_locations])
        return [target if there else None for target, there in zip(target_locations, read, strict=True)]

    @serving(lambda: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value if value is not None else target_location])

    @serving(lambda: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        values = values if values is not None else target_locations
        return all(self._write(keys, [_place(value) for value in values], 0))

    # --- calls with other pools, which registration refused: the KV alone would be incomplete ---

    @serving(PoolTransferResult.empty)
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        if pool_transfers:
            raise ValueError(f"Cenote supports no pools beside the KV: {', '.join(str(pool.name) for pool in pool_transfers)}")
        return PoolTransferResult(self.batch_exists(keys, extra_info), {})

    @serving_with(_no_transfers)
    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        raise ValueError("there are pools beside the KV")

    @serving_with(_no_transfers)
    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        raise ValueError("there are pools beside the KV")

    # --- lookups, clearing, metrics ---

    @serving(lambda: False)
    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @serving(lambda: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        blocks = self._blocks()
        if self._health is not None:
            self._health.look()
        names = _names(blocks, keys)
        # SGLang's prefetching thread calls this, so it may wait for the cold tier's deadline.
        if (promotion := blocks.promote(names)) is not None:
            promotion.wait()
        return blocks.count(names)

    @serving(lambda: None)
    def clear(self) -> None:
        # Also when the engine's weights have changed since registration.
        if self.pages is None:
            raise RuntimeError("no host memory was registered")
        self.pages.forget()

    @serving(lambda: None)
    def get_stats(self) -> StorageMetrics | None:
        return self.transfers.take() if self.transfers is not None else None

    @serving(lambda: None)
    def close(self) -> None:
        """Leaves the region."""
        self.pages = None
        if self.region is not None:
            self.region.close()

    def went_wrong(self, where: str, error: BaseException) -> None:
        kind = (where, type(error).__name__)
        with self._counting:
            self.errors += 1
            is_new = kind not in self._told
            self._told.add(kind)
        if is_new:
            logger.warning("Cenote: %s failed, which counts as a miss; later errors of this kind are not logged", where, exc_info=error)

    def _blocks(self) -> cenote.Namespace:
        if self.pages is None:
            raise RuntimeError("no host memory was registered, or the backend is closed")
        if naming.weight_version() != self._weights:
            raise RuntimeError(
                "the engine's weights have changed; detach the storage backend and attach it again to store their pages"
            )
        return self.pages

    def _read(self, keys: list[str], places: Callable[[], Sequence[Any]]) -> list[bool]:
        start, whole = time.monotonic(), 0
        blocks = self._blocks()
        with blocks.lookup(_names(blocks, keys)) as lease:
            for page, place in zip(range(len(lease)), places() if len(lease) else (), strict=False):
                # A page is useless without its predecessors.
                if time.monotonic() - start > BATCH_SECONDS or not lease.read_into(page, place):
                    break
                whole += 1
        if self.transfers is not None:
            self.transfers.loaded(whole, time.monotonic() - start)
        return [page < whole for page in range(len(keys))]

    def _write(self, keys: list[str], places: Sequence[Any], before: int) -> list[bool]:
        start, stored = time.monotonic(), 0
        blocks = self._blocks()
        names = _names(blocks, keys)
        if len(places) != len(keys):
            raise ValueError(f"{len(places)} pages for {len(keys)} keys")
        # SGLang counts pages up to the first missing one.
        while stored < len(places) and time.monotonic() - start <= BATCH_SECONDS:
            now = range(stored, min(stored + _PUBLISHED_TOGETHER, len(places)))
            depths = [before + page for page in now]
            outcomes = blocks.publish_all(names[now.start : now.stop], depths, [places[page] for page in now])
            here = [outcome in ("published", "duplicate") for outcome in outcomes]
            stored += (*here, False).index(False)
            if not all(here):
                break
        if self.transfers is not None:
            self.transfers.stored(stored, time.monotonic() - start)
        return [page < stored for page in range(len(keys))]


def _names(blocks: cenote.Namespace, keys: list[str]) -> cenote.Hashes:
    return blocks.alias(key.encode() for key in keys)


def _place(tensor: Any) -> tuple[int, int]:
    """Address and length of a tensor's memory."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("a page needs a contiguous tensor on the CPU")
    return tensor.data_ptr(), tensor.nbytes
