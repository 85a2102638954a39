"""A region as a tier below vLLM's own memory for offloaded KV (`SecondaryTierManager`).

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "CenoteOffloadingConnector",
      "kv_connector_module_path": "cenote.vllm.tier", "kv_role": "kv_both", "kv_connector_extra_config":
      {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 17179869184, "secondary_tiers": [
        {"type": "CenoteTier", "module_path": "cenote.vllm.tier", "region": "shm:kv", "create_size": "64GiB"}]}}'

vLLM copies chunks of blocks between the GPU and its memory, and this tier copies them between that memory and the
region. The scheduler's process does it for all ranks. `docs/guides/vllm.md` compares the tier with the connector.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

import cenote
from cenote import clock
from cenote.attachment import Attachment, Wanted
from cenote.clock import Deadline
from cenote.serving import FaultCounts, serving, serving_with
from cenote.vllm.digest import changed_while_loading, draft_digest, model_digest
from cenote.vllm.identity import check_hashes, fingerprint
from cenote.vllm.log import logger_of
from cenote.vllm.settings import Settings
from cenote.weights import Weights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

logger = logger_of(__name__)

# The connector's settings that a tier has too.
_SETTINGS = (
    "region", "create_size", "chunk_size", "mode", "eviction", "cold", "seal", "seal_key_file", "peers", "peer_key_file", "nixl",
    "host_slot", "timeout", "load_threads", "tenant_salt", "model_fingerprint", "weights_version_file",
)  # fmt: skip

# Most names on their way from the cold tier or peers that a tier remembers.
_PROMOTIONS = 4096

# A chunk that neither the cold tier nor peers brought is a miss for so many seconds. Otherwise a request that
# vLLM does not admit at once would ask for it again, and wait again, without end.
_SOUGHT_SECONDS = 10.0

# Chunks whose load failed are misses for so many seconds. Otherwise vLLM would find and load them again without end.
_LOST_SECONDS = 60.0
_LOST_MAX = 65536

# vLLM gives a tier none of the facts that name its blocks, so the connector passes them on.
_engine: ContextVar[tuple[VllmConfig, KVCacheConfig] | None] = ContextVar("cenote_engine", default=None)


class CenoteOffloadingConnector(OffloadingConnector):
    """vLLM's `OffloadingConnector`, whose tiers know the engine's configuration."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        token = _engine.set((vllm_config, kv_cache_config))
        try:
            super().__init__(vllm_config, role, kv_cache_config)
        finally:
            _engine.reset(token)


class CenoteTier(FaultCounts, SecondaryTierManager):
    """Chunks of vLLM's offloading in a region. vLLM's scheduler calls the tier and must not fail or wait."""

    medium: ClassVar[Medium] = Medium.CPU

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        locality: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality is not None else None
        if unknown := sorted(set(settings) - set(_SETTINGS)):
            raise ValueError(f"secondary_tiers: CenoteTier has no {', '.join(unknown)}; known are {', '.join(_SETTINGS)}")
        self.settings = Settings.of(settings)
        self.weights = Weights(self.settings.weights_version_file)
        self._memory = _address(primary_kv_view)
        self._chunks, self._tokens = int(primary_kv_view.shape[0]), 0  # type: ignore[index]
        identity, label = self._identity(offloading_spec)
        wanted = Wanted.of("secondary_tiers", vars(self.settings))
        self._attachment = Attachment(wanted, "vllm tier", self.block_size_bytes, logger)
        self.region = self._attachment.region
        self.blocks = self._attachment.namespace(
            identity, self.block_size_bytes, label=label, block_tokens=self._tokens, num_layers=1, starts=True
        )
        self.count_faults(logger)
        self._threads = ThreadPoolExecutor(self.settings.load_threads, thread_name_prefix="cenote-tier")
        # Jobs in flight, and ended jobs that vLLM has not taken yet.
        self._jobs: dict[int, Future[JobResult]] = {}
        # The chunks of loads in flight, and those whose load failed with the time of that.
        self._loading: dict[int, list[OffloadKey]] = {}
        self._lost: dict[OffloadKey, float] = {}
        self._ended: deque[JobResult] = deque()
        self._stops = threading.Event()
        # By name, with the time at which it began.
        self._promotions: dict[bytes, tuple[cenote.Promotion, float]] = {}

    # --- start ---

    def _identity(self, spec: OffloadingSpec) -> tuple[bytes, str]:
        """The name of this engine's chunks: all facts of the connector's, and how a chunk lies."""
        if (engine := _engine.get()) is None:
            raise ValueError(
                'secondary_tiers: CenoteTier cannot name its blocks under this connector; use "kv_connector": "CenoteOffloadingConnector" '
                'with "kv_connector_module_path": "cenote.vllm.tier"'
            )
        config, kv_cache = engine
        check_hashes(config)
        _refuse(config)
        digest: list[str | None] = [self.settings.model_fingerprint, None]
        if digest[0] is None:
            digest = [model_digest(config), draft_digest(config)]
            if (young := changed_while_loading(config)) is not None:
                self.weights.doubt()
                logger.warning("Cenote: this instance shares nothing, because %s changed after the process started: restart it", young)
        offloading = spec.config
        # An engine's rank and replica do not change the bytes of a chunk, which holds all ranks.
        own = {"rank", "data_parallel_index", "data_parallel_size", "data_parallel_rank_local"}
        facts = {
            "tier": "chunks of vLLM's offloading",
            "chunk": [self.block_size_bytes, spec.blocks_per_chunk, offloading.worker_kv_bytes_per_block],
            "hash tokens": spec.tokens_per_hash,
            "groups": [dataclasses.asdict(group) for group in offloading.groups],
            "specs": [repr(group.kv_cache_spec) for group in kv_cache.kv_cache_groups],
            "layout": [offloading.kv_cache_layout, offloading.canonical_layout, offloading.replicated_layout],
            "parallel": {name: value for name, value in dataclasses.asdict(offloading.parallel).items() if name not in own},
            "element": offloading.model.dtype,
        }
        # Groups may differ in tokens; the smallest is for reports.
        self._tokens = min(spec.tokens_per_block) * spec.blocks_per_chunk
        name = offloading.model.name.rstrip("/").rsplit("/", 1)[-1]
        return fingerprint(config, self.settings, digest, facts, {}), f"{name} offloading"

    # --- lookups ---

    def _name(self, key: OffloadKey) -> cenote.Hashes:
        return self.blocks.alias(self.weights.keys([bytes(key)]))

    @serving(lambda: LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if (since := self._lost.get(key)) is not None:
            if clock.now() - since < _LOST_SECONDS:
                return LookupResult.MISS
            del self._lost[key]
        name = self._name(key)
        if self.blocks.count(name) == 1:
            self._promotions.pop(bytes(key), None)
            return LookupResult.HIT
        if (begun := self._promotions.get(bytes(key))) is not None:
            promotion = begun[0]
        elif len(self._promotions) < _PROMOTIONS and (new := self.blocks.promote(name)) is not None:
            promotion = new
            self._promotions[bytes(key)] = (promotion, clock.now())
        else:
            return LookupResult.MISS
        # The cold tier and peers have deadlines, after which a promotion is over.
        if not promotion.over:
            return LookupResult.RETRY
        return LookupResult.HIT if self.blocks.count(name) == 1 else LookupResult.MISS

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    @serving(lambda: None)
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._attachment.look()
        old = clock.now() - _SOUGHT_SECONDS
        for key in [key for key, (promotion, since) in self._promotions.items() if since < old and promotion.over]:
            del self._promotions[key]

    # --- transfers ---

    def submit_store(self, job_metadata: TransferJob) -> None:
        if not self._submit(job_metadata, self._store):
            self._fail(job_metadata.job_id)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._loading[job_metadata.job_id] = list(job_metadata.keys)
        if not self._submit(job_metadata, self._load):
            self._fail(job_metadata.job_id)

    def _fail(self, job: int) -> None:
        self._report(JobResult(job, success=False))

    def _report(self, result: JobResult) -> None:
        for key in set(self._loading.pop(result.job_id, ())).difference(result.successful_keys or ()):
            self._lost.pop(key, None)
            if len(self._lost) >= _LOST_MAX:
                del self._lost[next(iter(self._lost))]
            self._lost[key] = clock.now()
        self._ended.append(result)

    @serving(lambda: False)
    def _submit(self, job: TransferJob, work: Any) -> bool:
        keys = list(job.keys)
        if len(keys) != len(job.chunk_ids) or any(not 0 <= int(chunk) < self._chunks for chunk in job.chunk_ids):
            raise ValueError(f"{len(keys)} keys for chunks {list(job.chunk_ids)} of {self._chunks}")
        size = self.block_size_bytes
        parts = [[(self._memory + int(chunk) * size, size)] for chunk in job.chunk_ids]
        # Named now: weights that change later must not name what was computed before.
        names = self.blocks.alias(self.weights.keys([bytes(key) for key in keys]))
        depths = [self._depth(job.req_context, key) for key in keys]
        deadline = Deadline(self.settings.timeout)
        self._jobs[job.job_id] = self._threads.submit(work, job.job_id, keys, names, parts, depths, deadline)
        return True

    def _depth(self, request: ReqContext, key: OffloadKey) -> int:
        """Index of a chunk in its sequence, for eviction."""
        end = request.get_offload_key_position(key) or 0
        return max(0, end // max(1, self._tokens) - 1)

    @serving_with(lambda job, *_: JobResult(job, success=False))
    def _store(self, job: int, keys: list[OffloadKey], names: cenote.Hashes, parts: Any, depths: list[int], deadline: Deadline) -> JobResult:
        start, stored = clock.now(), 0
        for at, key in enumerate(keys):
            if self._stops.is_set() or deadline.passed:
                break
            name = int.from_bytes(get_offload_block_hash(key)[-8:], "big") if self._offloading_spec.blocks_per_chunk == 1 else 0
            stored += self.blocks.publish(names[at], depths[at], parts[at], name=name) in ("published", "duplicate")
        return self._result(job, stored == len(keys), stored, start)

    @serving_with(lambda job, *_: JobResult(job, success=False))
    def _load(self, job: int, keys: list[OffloadKey], names: cenote.Hashes, parts: Any, _depths: list[int], deadline: Deadline) -> JobResult:
        start, loaded = clock.now(), []
        for at, key in enumerate(keys):
            if self._stops.is_set() or deadline.passed:
                break
            with self.blocks.lookup(names[at : at + 1]) as lease:
                if len(lease) == 1 and lease.read_into(0, parts[at]):
                    loaded.append(key)
        result = self._result(job, len(loaded) == len(keys), len(loaded), start)
        result.successful_keys = loaded
        return result

    def _result(self, job: int, success: bool, chunks: int, start: float) -> JobResult:
        return JobResult(
            job, success=success, transfer_time=clock.now() - start, transfer_bytes=chunks * self.block_size_bytes
        )

    def get_finished_jobs(self) -> Iterable[JobResult]:
        for job in [job for job, future in self._jobs.items() if future.done()]:
            self._end(job)
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def _end(self, job: int) -> None:
        future = self._jobs.pop(job)
        is_whole = not future.cancelled() and future.exception() is None
        self._report(future.result() if is_whole else JobResult(job, success=False))

    def has_pending_work(self) -> bool:
        return bool(self._jobs or self._ended)

    def drain_jobs(self) -> None:
        """Ends all jobs. vLLM calls this when it resets its caches, so the weights may have changed."""
        self._stop()
        self._stops.clear()
        self._promotions.clear()
        self._lost.clear()
        self._change()

    @serving(lambda: None)
    def _change(self) -> None:
        self.weights.change()

    def _stop(self) -> None:
        """Cancels jobs that have not begun and waits for the others, which end after the chunk that they copy.

        Without the wait a copy could write into memory that vLLM uses for something else."""
        self._stops.set()
        for future in self._jobs.values():
            future.cancel()
        wait_for(list(self._jobs.values()))
        for job in list(self._jobs):
            self._end(job)

    def shutdown(self) -> None:
        self._stop()
        self._threads.shutdown()
        self._close()

    @serving(lambda: None)
    def _close(self) -> None:
        self.region.close()



def _refuse(config: VllmConfig) -> None:
    """Refuses requests whose keys vLLM does not show to a tier, and memory that the scheduler does not have."""
    if config.lora_config is not None:
        raise ValueError("secondary_tiers: CenoteTier cannot share KV of LoRA adapters, because vLLM's keys cover their names only; use CenoteConnector")
    multi_modal = config.model_config.multimodal_config
    if multi_modal is not None and not getattr(multi_modal, "language_model_only", False):
        raise ValueError(
            "secondary_tiers: CenoteTier cannot share KV of images, because vLLM's keys may cover names from clients; use CenoteConnector "
            "or --language-model-only"
        )
    if getattr(config.model_config, "enable_prompt_embeds", False):
        raise ValueError(
            "secondary_tiers: CenoteTier cannot share KV of prompt embeddings, because vLLM's keys leave out which positions use the token "
            "instead; use CenoteConnector, or start without --enable-prompt-embeds"
        )
    if getattr(config.model_config, "runner_type", None) == "pooling":
        raise ValueError(
            "secondary_tiers: CenoteTier cannot share KV of pooling models, because vLLM's keys leave out extra arguments of requests; "
            "use CenoteConnector"
        )
    if getattr(config.parallel_config, "nnodes_within_dp", 1) != 1:
        raise ValueError("secondary_tiers: CenoteTier needs all ranks of an engine on one machine")


def _address(view: memoryview) -> int:
    """The address of vLLM's memory. Keeps no reference: vLLM releases the memory after `shutdown`."""
    rows = np.asarray(view)
    if rows.ndim != 2 or not rows.flags.c_contiguous or rows.itemsize != 1:
        raise ValueError(f"secondary_tiers: CenoteTier does not know memory of shape {rows.shape}")
    if rows.shape[1] % 64:
        raise ValueError(f"secondary_tiers: a chunk has {rows.shape[1]} bytes, which is not a multiple of 64")
    return int(rows.ctypes.data)
