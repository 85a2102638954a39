"""SGLang's storage backend. SGLang's threads call it and must not die.

The backend counts each error as a miss."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

import cenote
from cenote import clock
from cenote.attachment import SETTINGS, Attachment, Wanted, check_names
from cenote.serving import FaultCounts, serving, serving_with
from cenote.sglang import naming
from cenote.sglang.stats import Transfers

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo, PoolTransfer
    from sglang.srt.mem_cache.pool_host import HostKVCache
    from sglang.srt.observability.metrics_collector import StorageMetrics

logger = logging.getLogger(__name__)

# Keys of the extra configuration that SGLang itself reads or adds.
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "file_storage_path"}
_SETTINGS = SETTINGS | {"model_folder", "model_fingerprint", "trust_media_names"}
_WHERE = "hicache-storage-backend-extra-config"
_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")

# SGLang's threads time out after ten seconds. A batch skips its remaining pages after this time.
BATCH_SECONDS = 5.0

# Pages that share fences and locks. Between two groups the batch looks at the clock.
_PUBLISHED_TOGETHER = 16


@dataclass(frozen=True)
class _Pages:
    """Pages of one pool of host memory, and their blocks."""

    host: Any
    blocks: cenote.Namespace
    # Pieces of a page in host memory.
    pieces: int

    def names(self, keys: Sequence[str]) -> cenote.Hashes:
        return self.blocks.alias(key.encode() for key in keys)

    def places(self, count: int, host_indices: Any) -> list[list[tuple[int, int]]]:
        """Pieces of each page in host memory: address and length."""
        if host_indices is None or len(host_indices) != count * self.host.page_size:
            given = "no" if host_indices is None else len(host_indices)
            raise ValueError(f"{given} indices of host memory for {count} pages of {self.host.page_size}")
        addresses, sizes = self.host.get_page_buffer_meta(host_indices)
        if len(addresses) != self.pieces * count:
            raise ValueError(f"{len(addresses)} pieces of memory for {count} pages of {self.pieces} pieces each")
        places = list(zip(addresses, sizes, strict=True))
        return [places[page * self.pieces : (page + 1) * self.pieces] for page in range(count)]


def _no_pages(keys: Any, *_args: Any, **_kwargs: Any) -> list[bool]:
    """One False per key, and at least one: SGLang treats an empty list as a success."""
    return [False] * (len(keys) if isinstance(keys, Sized) else 1)


def _no_tensors(keys: Any, *_args: Any, **_kwargs: Any) -> list[Any]:
    return [None] * (len(keys) if isinstance(keys, Sized) else 1)


def _no_transfers(transfers: Any, *_args: Any, **_kwargs: Any) -> dict[str, list[bool]]:
    return {transfer.name: _no_pages(transfer.keys or ()) for transfer in transfers or ()}


class CenoteStorage(FaultCounts, HiCacheStorage):
    """Pages of one rank's host memory in a region. A page is one block, whole or absent.

    Hybrid models have further pools of host memory beside the KV, each with pages of its own."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        check_names(_WHERE, {name: value for name, value in extra.items() if name not in _SGLANGS}, _SETTINGS)
        if storage_config.should_split_heads:
            raise ValueError("Cenote stores all heads of a rank together; it cannot split them for other tensor parallel sizes")
        naming.refuse_adapters()
        self.config, self.extra, self.wanted = storage_config, extra, Wanted.of(_WHERE, extra)
        self.model = naming.model(extra, _WHERE)
        self.region: cenote.Region | None = None
        self._attachment: Attachment | None = None
        # The pools of host memory by name, `kv` among them.
        self.pools: dict[str, _Pages] = {}
        self.transfers: Transfers | None = None
        self.count_faults(logger)
        self._weights = ""

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """Joins the region. The size of a page is known only from SGLang's host memory."""
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        page_bytes, pieces = _page_of(mem_pool_host)
        self._weights = naming.weight_version()
        identity = naming.fingerprint(self.config, self.extra, self.model.hold(logger), mem_pool_host, page_bytes)
        attachment = Attachment(self.wanted, "sglang", page_bytes, logger)
        blocks = attachment.namespace(
            identity,
            page_bytes,
            label=f"{self.config.model_name} {self.config.tp_rank}.{self.config.pp_rank}",
            block_tokens=mem_pool_host.page_size,
            starts=True,
        )
        self.region, self._attachment = attachment.region, attachment
        self.pools["kv"] = _Pages(mem_pool_host, blocks, pieces)
        self.transfers = Transfers(page_bytes) if self.config.enable_storage_metrics else None

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: Any) -> None:
        """Adds a pool of a hybrid model. Refuses pools whose pages do not depend on the keys and names alone."""
        name = str(host_pool_name)
        if name != "kv":
            try:
                self.pools[name] = self._add_pool(name, host_pool)
            except BaseException:
                self.close()
                raise
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def _add_pool(self, name: str, pool: HostKVCache) -> _Pages:
        if name not in naming.SIDE_POOLS:
            raise ValueError(
                f"Cenote stores pages of full attention, sliding windows, recurrent states and sparse attention's index, but this model "
                f"also has a pool `{name}`; start without --hicache-storage-backend"
            )
        if self._attachment is None or "kv" not in self.pools:
            raise ValueError(f"SGLang registered the pool `{name}` before the KV")
        page_bytes, pieces = _page_of(pool)
        identity = naming.fingerprint(self.config, self.extra, self.model.hold(logger), pool, page_bytes, name)
        blocks = self._attachment.namespace(
            identity,
            page_bytes,
            label=f"{self.config.model_name} {self.config.tp_rank}.{self.config.pp_rank} {name}",
            block_tokens=self.pools["kv"].host.page_size,
        )
        return _Pages(pool, blocks, pieces)

    # --- pages by address in host memory: one copy ---

    @serving_with(_no_pages)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        pages = self._pool("kv")
        return self._read(pages, keys, lambda: pages.places(len(keys), host_indices))

    @serving_with(_no_pages)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        pages = self._pool("kv")
        return self._write(pages, keys, pages.places(len(keys), host_indices), _before(extra_info))

    # --- pages by tensors ---

    @serving(lambda: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location], None)[0]

    @serving_with(_no_tensors)
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        if target_locations is None or len(target_locations) != len(keys) or any(to is None for to in target_locations):
            raise ValueError("a page needs a target tensor, but none was given")
        read = self._read(self._pool("kv"), keys, lambda: [_place(target) for target in target_locations])
        return [target if there else None for target, there in zip(target_locations, read, strict=True)]

    @serving(lambda: False)
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value if value is not None else target_location])

    @serving(lambda: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        values = values if values is not None else target_locations
        return all(self._write(self._pool("kv"), keys, [_place(value) for value in values], 0))

    # --- pages of several pools ---

    @serving(PoolTransferResult.empty)
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        found = self.batch_exists(keys, extra_info)
        pools = {"kv": found} if found else {}
        # A prefix counts if all pools can continue from its end.
        lengths = list(range(1, found + 1))
        for transfer in pool_transfers or ():
            if not lengths:
                break
            fits = self._lengths(transfer, keys[:found])
            if fits:
                # SGLang takes a pool without an entry for one that gave no answer.
                pools[transfer.name] = max(fits)
            lengths = [length for length in lengths if length in fits]
        return PoolTransferResult(lengths[-1] if lengths else 0, pools, lengths)

    def _lengths(self, transfer: PoolTransfer, keys: list[str]) -> frozenset[int]:
        """The lengths of the prefix, in pages, that one pool can continue from."""
        pages = self._pool(str(transfer.name))
        names = pages.names(keys)
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            _promote(pages.blocks, names)
            return frozenset(range(1, pages.blocks.count(names) + 1))
        if transfer.hit_policy != PoolHitPolicy.TRAILING_PAGES:
            raise ValueError(f"Cenote does not know the hit policy {transfer.hit_policy} of the pool {transfer.name}")
        window = max(1, len(transfer.keys or ()))
        _promote(pages.blocks, names[max(0, len(keys) - window) :])
        there = pages.blocks.present(names)
        return frozenset(end for end in range(1, len(keys) + 1) if all(there[max(0, end - window) : end]))

    @serving_with(_no_transfers)
    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        start = clock.now()
        return {transfer.name: self._get(transfer, start) for transfer in transfers}

    @serving_with(_no_transfers)
    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        start, before = clock.now(), _before(extra_info)
        return {transfer.name: self._set(transfer, before, start) for transfer in transfers}

    # A fault of one pool leaves the others as they are.

    @serving_with(lambda transfer, *_: _no_pages(transfer.keys or ()))
    def _get(self, transfer: PoolTransfer, start: float) -> list[bool]:
        pages, keys = self._pool(str(transfer.name)), transfer.keys or []
        return self._read(pages, keys, lambda: pages.places(len(keys), transfer.host_indices), start)

    @serving_with(lambda transfer, *_: _no_pages(transfer.keys or ()))
    def _set(self, transfer: PoolTransfer, before: int, start: float) -> list[bool]:
        pages, keys = self._pool(str(transfer.name)), transfer.keys or []
        return self._write(pages, keys, pages.places(len(keys), transfer.host_indices), before, start)

    # --- lookups, clearing, metrics ---

    @serving(lambda: False)
    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @serving(lambda: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        pages = self._pool("kv")
        if self._attachment is not None:
            self._attachment.look()
        names = pages.names(keys)
        # SGLang's prefetching thread calls this, so it may wait for the deadlines of the cold tier and peers.
        _promote(pages.blocks, names)
        return pages.blocks.count(names)

    @serving(lambda: None)
    def clear(self) -> None:
        # Also when the engine's weights have changed since registration.
        if not self.pools:
            raise RuntimeError("no host memory was registered")
        for pages in self.pools.values():
            pages.blocks.forget()

    @serving(lambda: None)
    def get_stats(self) -> StorageMetrics | None:
        return self.transfers.take() if self.transfers is not None else None

    @serving(lambda: None)
    def close(self) -> None:
        """Leaves the region."""
        self.pools = {}
        if self.region is not None:
            self.region.close()


    def _pool(self, name: str) -> _Pages:
        if (pages := self.pools.get(name)) is None:
            raise RuntimeError(f"no host memory `{name}` was registered, or the backend is closed")
        if naming.weight_version() != self._weights:
            raise RuntimeError(
                "the engine's weights have changed; detach the storage backend and attach it again to store their pages"
            )
        return pages

    def _read(
        self, pages: _Pages, keys: list[str], places: Callable[[], Sequence[Any]], start: float | None = None
    ) -> list[bool]:
        start, whole = clock.now() if start is None else start, 0
        with pages.blocks.lookup(pages.names(keys)) as lease:
            for page, place in zip(range(len(lease)), places() if len(lease) else (), strict=False):
                # A page is useless without its predecessors.
                if clock.now() - start >= BATCH_SECONDS or not lease.read_into(page, place):
                    break
                whole += 1
        if self.transfers is not None and pages is self.pools.get("kv"):
            self.transfers.loaded(whole, clock.now() - start)
        return [page < whole for page in range(len(keys))]

    def _write(
        self, pages: _Pages, keys: list[str], places: Sequence[Any], before: int, start: float | None = None
    ) -> list[bool]:
        start, stored = clock.now() if start is None else start, 0
        names = pages.names(keys)
        if len(places) != len(keys):
            raise ValueError(f"{len(places)} pages for {len(keys)} keys")
        # SGLang counts pages up to the first missing one.
        while stored < len(places) and clock.now() - start < BATCH_SECONDS:
            now = range(stored, min(stored + _PUBLISHED_TOGETHER, len(places)))
            depths = [before + page for page in now]
            outcomes = pages.blocks.publish_all(names[now.start : now.stop], depths, [places[page] for page in now])
            here = [outcome in ("published", "duplicate") for outcome in outcomes]
            stored += (*here, False).index(False)
            if not all(here):
                break
        if self.transfers is not None and pages is self.pools.get("kv"):
            self.transfers.stored(stored, clock.now() - start)
        return [page < stored for page in range(len(keys))]


def _before(extra_info: HiCacheStorageExtraInfo | None) -> int:
    """Number of the sequence's pages before a batch."""
    return len((extra_info and extra_info.prefix_keys) or ())


def _promote(blocks: cenote.Namespace, names: cenote.Hashes) -> None:
    """Copies pages that the region lacks from the cold tier and peers, and waits for them up to their deadlines."""
    if (promotion := blocks.promote(names)) is not None:
        promotion.wait()


def _page_of(pool: HostKVCache) -> tuple[int, int]:
    """Bytes and pieces of a page. The pool must name the addresses of all its pieces."""
    if pool.layout not in _LAYOUTS:
        raise ValueError(f"--hicache-mem-layout {pool.layout} is not supported: use page_first_direct")
    import torch

    try:
        addresses, sizes = pool.get_page_buffer_meta(torch.arange(pool.page_size)) or ((), ())
    except NotImplementedError as error:
        raise ValueError(f"{type(pool).__name__} does not name the memory of a page: {error}") from error
    page_bytes, whole = int(sum(sizes)), pool.get_size_per_token() * pool.page_size
    if page_bytes == 0 or page_bytes != whole:
        raise ValueError(f"{type(pool).__name__} names {page_bytes} bytes of a page of {whole} bytes")
    if odd := [size for size in sizes if size % 64]:
        raise ValueError(
            f"a page of {type(pool).__name__} has pieces of {odd[0]} bytes, which is not a multiple of 64: use "
            "--hicache-mem-layout page_first or page_first_direct"
        )
    return page_bytes, len(addresses)


def _place(tensor: Any) -> tuple[int, int]:
    """Address and length of a tensor's memory."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("a page needs a contiguous tensor on the CPU")
    return tensor.data_ptr(), tensor.nbytes
