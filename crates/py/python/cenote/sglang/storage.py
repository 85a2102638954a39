"""The storage backend. Its calls come from threads that must not die: what goes wrong is counted and is a miss."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

import cenote
from cenote.model_files import weights_name
from cenote.serving import serving

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, HiCacheStorageExtraInfo
    from sglang.srt.mem_cache.pool_host import HostKVCache

logger = logging.getLogger(__name__)

# What SGLang itself reads of the extra configuration.
_SGLANGS = {"backend_name", "module_path", "class_name", "interface_v1"}
_SETTINGS = {"region", "create_size", "chunk_size", "mode", "host_slot", "tenant_salt", "model_folder", "model_fingerprint"}


class CenoteStorage(HiCacheStorage):
    """Pages of one rank's host memory in a region. A page is a block: it is there as a whole or not at all."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = dict(storage_config.extra_config or {})
        if unknown := sorted(set(extra) - _SETTINGS - _SGLANGS):
            known = ", ".join(sorted(_SETTINGS))
            raise ValueError(f"hicache-storage-backend-extra-config: unknown {', '.join(unknown)}; known are {known}")
        if not extra.get("region"):
            raise ValueError('hicache-storage-backend-extra-config: no region was named; give "region": "shm:NAME"')
        if storage_config.should_split_heads:
            raise ValueError("Cenote stores a rank's heads together; it cannot split them for other tensor parallel sizes")
        _check_adapters()
        self.config, self.extra = storage_config, extra
        self.weights = weights_name(extra, "hicache-storage-backend-extra-config")
        self.region: cenote.Region | None = None
        self.pages: cenote.Namespace | None = None
        self.errors = 0
        self._told: set[str] = set()

    def register_mem_pool_host(self, mem_pool_host: HostKVCache) -> None:
        """SGLang's host memory is there: now the size of a page is known."""
        super().register_mem_pool_host(mem_pool_host)
        places = self._places(1, range(mem_pool_host.page_size))[0]
        page_bytes = sum(size for _, size in places)
        if any(size % 64 for _, size in places):
            raise ValueError(
                f"a page of this host memory comes in pieces of {places[0][1]} bytes, which are no multiple of 64: use "
                "--hicache-mem-layout page_first or page_first_direct"
            )
        name = self.extra["region"]
        if (size := self.extra.get("create_size")) is not None:
            # Four pages to a chunk.
            chunk = self.extra.get("chunk_size") or max(2 << 20, 1 << math.ceil(math.log2(4 * page_bytes)))
            mode = int(str(self.extra.get("mode", "0600")), 8)
            cenote.Region.create(name, size, chunk_size=chunk, mode=mode, exist_ok=True)
        self.region = cenote.Region.open(name, worker="sglang", host_slot=int(self.extra.get("host_slot", 0)))
        self.pages = self.region.namespace(
            self._identity(mem_pool_host, page_bytes),
            page_bytes,
            label=f"{self.config.model_name} {self.config.tp_rank}.{self.config.pp_rank}",
            block_tokens=mem_pool_host.page_size,
        )

    def register_mem_host_pool_v2(self, host_pool: HostKVCache, host_pool_name: Any) -> None:
        """Memory beside the KV: of hybrid models, of draft models."""
        if str(host_pool_name) != "kv":
            raise ValueError(f"Cenote stores the KV of full attention; this model has a pool `{host_pool_name}` beside it")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def _identity(self, pool: HostKVCache, page_bytes: int) -> bytes:
        config = self.config
        # Ranks of multi-head latent attention all have the same.
        tensor = [0, 1] if config.is_mla_model else [config.tp_rank, config.tp_size]
        facts = {
            "model": config.model_name,
            "weights": self.weights,
            "dtype": str(pool.dtype),
            "layout": pool.layout,
            "page": [pool.page_size, page_bytes],
            "tensor parallel": tensor,
            "pipeline parallel": [config.pp_rank, config.pp_size],
            "context parallel": [config.attn_cp_rank, config.attn_cp_size],
            "decode context parallel": [getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)],
            "tenant salt": self.extra.get("tenant_salt", ""),
        }
        return b"cenote sglang v2 " + json.dumps(facts, sort_keys=True).encode()

    def _places(self, count: int, host_indices: Any) -> list[list[tuple[int, int]]]:
        """Where these pages lie in host memory: pieces of address and length."""
        addresses, sizes = self.mem_pool_host.get_page_buffer_meta(_as_tensor(host_indices))
        pieces = len(addresses) // count
        if pieces * count != len(addresses) or pieces == 0:
            raise ValueError(f"{len(addresses)} pieces of memory for {count} pages")
        places = list(zip(addresses, sizes, strict=True))
        return [places[page * pieces : (page + 1) * pieces] for page in range(count)]

    # --- pages by their place in host memory: nothing is copied twice ---

    @serving(list)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._read(keys, lambda: self._places(len(keys), host_indices))

    @serving(list)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        before = len((extra_info and extra_info.prefix_keys) or ())
        return self._write(keys, self._places(len(keys), host_indices), before)

    # --- pages by tensors ---

    @serving(lambda: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location], None)[0]

    @serving(list)
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        if target_locations is None or any(target is None for target in target_locations):
            raise ValueError("a page is read into memory that is given, and none was")
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

    # --- what is there ---

    @serving(lambda: False)
    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @serving(lambda: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        blocks = self._blocks()
        return blocks.count(_names(blocks, keys))

    @serving(lambda: None)
    def clear(self) -> None:
        self._blocks().forget()

    @serving(lambda: None)
    def get_stats(self) -> Any:
        return None if self.region is None else self.region.counters() | {"cenote_errors_total": self.errors}

    def close(self) -> None:
        """Leaves the region."""
        if self.region is not None:
            self.region.close()

    def went_wrong(self, where: str, error: Exception) -> None:
        self.errors += 1
        kind = f"{where}: {type(error).__name__}: {error}"
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("Cenote: %s, which counts as a miss", kind, exc_info=error)

    def _blocks(self) -> cenote.Namespace:
        if self.pages is None:
            raise RuntimeError("no host memory was registered")
        return self.pages

    def _read(self, keys: list[str], places: Callable[[], Sequence[Any]]) -> list[bool]:
        blocks = self._blocks()
        with blocks.lookup(_names(blocks, keys)) as lease:
            found = len(lease)
            read = [lease.read_into(page, place) for page, place in zip(range(found), places(), strict=False)]
        # A page is of use only behind all those before it.
        whole = read.index(False) if False in read else found
        return [page < whole for page in range(len(keys))]

    def _write(self, keys: list[str], places: Sequence[Any], before: int) -> list[bool]:
        blocks = self._blocks()
        names = _names(blocks, keys)
        outcomes = (blocks.publish(names[page], before + page, place) for page, place in enumerate(places))
        return [outcome in ("published", "duplicate") for outcome in outcomes]


def _check_adapters() -> None:
    """Refuses a server with adapters: SGLang's keys of pages are hashes of tokens alone."""
    try:
        from sglang.srt.server_args import get_global_server_args

        arguments = get_global_server_args()
    except (ImportError, ValueError, AttributeError):
        return
    if getattr(arguments, "enable_lora", None) or getattr(arguments, "lora_paths", None):
        raise ValueError("Cenote cannot share pages of a server with LoRA adapters: SGLang's keys of pages do not tell them apart")


def _names(blocks: cenote.Namespace, keys: list[str]) -> cenote.Hashes:
    return blocks.alias(key.encode() for key in keys)


def _place(tensor: Any) -> tuple[int, int]:
    """A tensor's memory."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("a page comes in a contiguous tensor of the processor")
    return tensor.data_ptr(), tensor.nbytes


def _as_tensor(indices: Any) -> Any:
    if not isinstance(indices, range):
        return indices
    import torch

    return torch.tensor(list(indices))
