"""A region, and each rank's blocks in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.utils import get_pp_indices
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec

import cenote
from cenote.vllm.codecs import page_codec
from cenote.vllm.identity import check_hashes, fingerprint, model_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from cenote.vllm.settings import Settings

logger = init_logger(__name__)

_CHUNK_MIN, _CHUNK_MAX = 2 << 20, 512 << 20

# Lines of each host's event log in a region that is made here, if events are wanted.
_EVENTS = 1024


def tells_events(config: VllmConfig) -> bool:
    """Whether vLLM is to publish KV events."""
    told = config.kv_events_config
    return told is not None and told.enable_kv_cache_events


class Shards:
    """The region that the settings name, and the namespaces of this engine's ranks."""

    def __init__(self, config: VllmConfig, settings: Settings, kv_cache: KVCacheConfig, worker: str) -> None:
        check_hashes(config)
        self.settings, self.config = settings, config
        group = _only_group(kv_cache)
        self.spec = group.kv_cache_spec
        self.page_bytes: int = group.kv_cache_spec.page_size_bytes
        self.layer_names: list[str] = list(group.layer_names)
        self.block_tokens: int = group.kv_cache_spec.block_size
        self.digest = model_digest(config)
        if settings.create_size is not None:
            chunk = settings.chunk_size or _chunk_for(self.page_bytes * len(self.layer_names))
            cenote.Region.create(
                settings.region,
                settings.create_size,
                chunk_size=chunk,
                mode=int(settings.mode, 8),
                exist_ok=True,
                events=_EVENTS if tells_events(config) else 0,
            )
        self.region = cenote.Region.open(settings.region, worker=worker, host_slot=settings.host_slot)

    def rank(self, tp_rank: int, pp_rank: int) -> cenote.Namespace:
        """One rank's blocks."""
        pages = self.page_bytes * self._layers_of(pp_rank)
        identity = fingerprint(self.config, self.settings, self.digest, 0, tp_rank, pp_rank)
        return self.region.namespace(
            identity,
            pages,
            label=f"{self.config.model_config.model.rstrip('/').rsplit('/', 1)[-1]} {tp_rank}.{pp_rank}",
            block_tokens=self.block_tokens,
            num_layers=self._layers_of(pp_rank),
            codec=page_codec(self.config, self.settings, self.spec, self._layers_of(pp_rank)),
        )

    def all_ranks(self) -> list[cenote.Namespace]:
        """Every rank's blocks."""
        parallel = self.config.parallel_config
        return [
            self.rank(tp_rank, pp_rank)
            for pp_rank in range(parallel.pipeline_parallel_size)
            for tp_rank in range(parallel.tensor_parallel_size)
        ]

    def _layers_of(self, pp_rank: int) -> int:
        size = self.config.parallel_config.pipeline_parallel_size
        if size == 1:
            return len(self.layer_names)
        start, end = get_pp_indices(self.config.model_config.get_total_num_hidden_layers(), pp_rank, size)
        return end - start


def _only_group(kv_cache: KVCacheConfig):  # type: ignore[no-untyped-def]
    groups = kv_cache.kv_cache_groups
    kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        raise ValueError(
            f"Cenote shares the KV of models with one group of full attention layers; this one has {len(groups)}: {kinds}. "
            "--disable-hybrid-kv-cache-manager makes one group of full and sliding-window attention"
        )
    return groups[0]


def _chunk_for(block_bytes: int) -> int:
    chunk = _CHUNK_MIN
    while chunk < min(4 * block_bytes, _CHUNK_MAX):
        chunk *= 2
    if block_bytes > chunk:
        raise ValueError(f"a block of this model takes {block_bytes} bytes, more than a region can hold; use a smaller --block-size")
    return chunk
