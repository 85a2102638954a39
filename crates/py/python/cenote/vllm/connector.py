"""The connector class. It dispatches vLLM's calls to the scheduler side or the worker side.

No fault of the connector propagates into the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from cenote.facts import record
from cenote.health import HealthLog
from cenote.serving import serving
from cenote.start import log_ignored, log_start
from cenote.vllm.differences import host_memory
from cenote.vllm.log import logger_of
from cenote.vllm.metadata import CenoteMetadata
from cenote.vllm.parts import Handshake
from cenote.vllm.scheduler import SchedulerSide
from cenote.vllm.settings import Settings
from cenote.vllm.shards import Shards, tells_events
from cenote.vllm.stats import CenotePromMetrics, CenoteStats
from cenote.vllm.worker import WorkerSide

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logger_of(__name__)


class CenoteConnector(KVConnectorBase_V1, SupportsHMA):
    """Shares KV blocks through a Cenote region. See docs/guides/vllm.md."""

    # Source of hits in vLLM's counters: the region is host memory.
    _cache_hit_source = host_memory()

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        settings = Settings.of(transfer.kv_connector_extra_config)
        if transfer.kv_load_failure_policy != "recompute":
            # vLLM's default fails the request. A block lost from a cache must not do that.
            logger.info("Cenote: kv_load_failure_policy is set to recompute, so vLLM recomputes blocks that cannot be loaded")
            transfer.kv_load_failure_policy = "recompute"
        self.stats = CenoteStats()
        # The counters of the cold tier and of peers at the last report.
        self._cold: dict[str, int] = {}
        self._peers: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        asks_peers = role == KVConnectorRole.SCHEDULER and transfer.is_kv_consumer
        self._shards = Shards(vllm_config, settings, kv_cache_config, f"vllm-{role.name.lower()}", asks_peers)
        self._health = HealthLog(self._shards.region, logger)
        if role == KVConnectorRole.SCHEDULER:
            loads, saves = transfer.is_kv_consumer, transfer.is_kv_producer
            self._scheduler = SchedulerSide(self._shards, self.stats, loads, saves, tells_events(vllm_config))
        else:
            parallel = vllm_config.parallel_config
            # If rank numbers continue across data-parallel engines, reduce them to one engine.
            tp_rank = parallel.rank % parallel.world_size % parallel.tensor_parallel_size
            self._worker = WorkerSide(self._shards, self.stats, tp_rank)

    @serving(lambda: None)
    def _log_start(self, scheduler: SchedulerSide) -> None:
        settings = self._shards.settings
        log_ignored(settings.region, self._shards.ignored, settings.of_new_regions(), logger)
        if settings.create_size is None and (unused := settings.of_new_regions()):
            logger.warning("Cenote: without create_size these settings have no effect: %s", ", ".join(unused.values()))
        region = self._shards.region
        info = region.info()
        record(region, info, self._shards.identities, logger)
        log_start(region.name, info, [rank.id for ranks in scheduler.lookup.ranks for rank in ranks], logger)

    @property
    def requires_kv_delivery(self) -> bool:
        """False: an unsaved block is only a later miss."""
        return False

    def went_wrong(self, where: str, error: BaseException) -> None:
        self.stats.add("errors")
        kind = (where, f"{type(error).__name__}: {error}")
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("Cenote: %s failed, which counts as a miss: %s", where, kind[1], exc_info=error)

    # --- scheduler side ---

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        """Opens the namespaces that the workers have named. vLLM calls this before the first request."""
        assert self._scheduler is not None
        # Another connector beside this one may have answered for the workers.
        named = [said for said in metadata.values() if isinstance(said, Handshake)]
        if not named:
            logger.warning("Cenote: another connector's handshake hides this one's, so this instance finds nothing: list it first")
            return
        self._scheduler.workers_have(part for said in named for part in said.parts)
        self._log_start(self._scheduler)

    @serving(lambda: None)
    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.manager = kv_cache_manager

    @serving(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        try:
            self._scheduler.allocated(request, blocks, num_external_tokens)
        except Exception as error:
            self.went_wrong("update_state_after_alloc", error)
            if num_external_tokens > 0:
                # The request depends on these tokens, so report their load as failed.
                self._scheduler.cannot_load(request, blocks)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self._scheduler is not None
        metadata = CenoteMetadata(self._scheduler.take_loads(), idle=not scheduler_output.total_num_scheduled_tokens)
        try:
            self._health.look()
            metadata.saves = self._scheduler.end_step(scheduler_output)
        except Exception as error:
            self.went_wrong("build_connector_meta", error)
        return metadata

    @serving(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler is not None:
            self._scheduler.workers_said(connector_output)

    @serving(lambda: (False, None))
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None:
            self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, [])

    @serving(list)
    def take_events(self) -> Iterable[KVCacheEvent]:
        if self._scheduler is None or self._scheduler.events is None:
            return []
        return self._scheduler.events.take()

    @serving(lambda: False)
    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler is not None else None

    # --- worker side ---

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Handshake(self._worker.facts) if self._worker is not None else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        self._begin_step()

    @serving(lambda: None)
    def _begin_step(self) -> None:
        # Not in `start_load_kv`: vLLM may call that after the layers.
        if self._worker is not None:
            self._worker.begin_step()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches)

    @serving(lambda: None)
    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.start_loads(self._step().loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: a request runs after all of its blocks are loaded."""

    @serving(lambda: None)
    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        assert self._worker is not None
        self._worker.save_layer(layer_name, self._step().saves)

    def wait_for_save(self) -> None:
        assert self._worker is not None
        try:
            self._worker.end_step(self._step().saves)
        except Exception as error:
            self.went_wrong("wait_for_save", error)
            self._worker.abort_step()

    @serving(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        assert self._worker is not None
        if self._step().idle:
            self._worker.await_load()
        ended, lost = self._worker.take_ended()
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=lost)

    def clear_connector_metadata(self) -> None:
        # The last call of a step in both of vLLM's runners. With speculative decoding that of version 1 calls
        # `get_transfer_results` before `wait_for_save`.
        if self._worker is not None:
            try:
                self._worker.leave_step()
            except Exception as error:
                self.went_wrong("clear_connector_metadata", error)
        super().clear_connector_metadata()

    @serving(set)
    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self._worker is not None
        return self._worker.take_failed()

    def _step(self) -> CenoteMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, CenoteMetadata)
        return metadata

    # --- both sides ---

    def shutdown(self) -> None:
        self._close_worker()
        self._close_region()

    @serving(lambda: None)
    def _close_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @serving(lambda: None)
    def _close_region(self) -> None:
        if self._scheduler is not None and self._scheduler.misses is not None:
            self._scheduler.misses.close()
        self._shards.names.close()
        self._shards.region.close()

    @serving(lambda: None)
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        self._health.look()
        if (cold := self._shards.region.cold) is not None:
            self.stats.add_cold(cold, self._cold)
            self._cold = cold
        if (peers := self._shards.region.peers) is not None:
            self.stats.add_peers(peers, self._peers)
            self._peers = peers
        if self._scheduler is not None and self._scheduler.misses is not None:
            for reason, count in self._scheduler.misses.take().items():
                self.stats.add(f"misses_{reason}", count)
        return self.stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return CenoteStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> CenotePromMetrics:
        return CenotePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
