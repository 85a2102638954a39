"""Counters of a connector, for vLLM's log and for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "lookup_blocks": "Blocks looked up in the region, of admitted requests.",
    "hit_blocks": "Blocks found in the region on every rank and ordered to be loaded. Each is then loaded or failed.",
    "stateless_blocks": "Blocks found after the end of a hit, which lack only a recurrent state.",
    "loads": "Loads started.",
    "loaded_blocks": "Blocks loaded without errors.",
    "failed_blocks": "Blocks that failed to load and are computed instead.",
    "late_loads": "Loads that timed out.",
    "load_seconds": "Seconds from the start of loads to their end.",
    "saved_blocks": "Blocks published.",
    "duplicate_blocks": "Blocks to be saved that were already present.",
    "refused_blocks": "Blocks without room, over their quota, without a buffer in time, or with failed copies.",
    "busy_blocks": "Blocks not saved, because earlier saves were behind and would have delayed a step.",
    "unnamed_requests": "Requests that shared nothing, because an adapter, an image or another input has no name by its content.",
    "unnamed_blocks": "Blocks not saved or loaded, because vLLM loaded another adapter under that number, or its files changed.",
    "cold_requests": "Requests that waited for blocks from the cold tier or peers.",
    "cold_hits": "Blocks that the cold tier brought into the region in time.",
    "cold_misses": "Blocks that the cold tier listed and could not read.",
    "cold_late": "Blocks that the cold tier brought after their deadline.",
    "cold_read_bytes": "Bytes read from the cold tier.",
    "cold_written": "Blocks written to the cold tier.",
    "cold_written_bytes": "Bytes written to the cold tier.",
    "cold_dropped": "Blocks not written to the cold tier, because it was busy or failed, or the region had evicted them.",
    "cold_skipped": "Blocks not written to the cold tier or not read from it, because computing them takes less time.",
    "cold_errors": "Errors of the cold tier, each counted as a miss.",
    "remote_sought": "Blocks that the region lacked and that were sought at peers.",
    "remote_found": "Blocks found at peers.",
    "remote_hits": "Blocks of peers that were published in the region in time.",
    "remote_read_bytes": "Bytes of blocks read from peers.",
    "remote_absent": "Blocks sought at peers that none of those asked had.",
    "remote_stale": "Blocks that a peer evicted or reused while they were read.",
    "remote_wrong": "Blocks of peers with a wrong checksum, seal, namespace or length.",
    "remote_unreadable": "Blocks of peers in a codec or with a profile that this engine does not read.",
    "remote_late": "Blocks of peers that were not there at the deadline.",
    "remote_failed": "Blocks not read, because the peer failed.",
    "remote_refused": "Blocks not sought, because too many requests were waiting at peers.",
    "remote_declined": "Blocks not sought, because computing them takes less time.",
    "remote_no_room": "Blocks read from peers for which the region had no room.",
    "remote_suspected": "Times a peer became suspect: it failed or missed a deadline, and is not asked until it answers again.",
    "remote_connections": "Connections made to peers.",
    "misses_evicted": "Requests whose first missing block was evicted. This one and the next ones: with `log_misses`.",
    "misses_quota": "Requests whose first missing block left because its model was over its quota.",
    "misses_damaged": "Requests whose first missing block was damaged.",
    "misses_forgotten": "Requests whose first missing block left with all of its model.",
    "misses_collected": "Requests whose first missing block was garbage.",
    "misses_other": "Requests whose hit ended for another reason: blocks of windows, states, scarce pins, or blocks that came later.",
    "misses_unknown": "Requests whose first missing block was never stored under its name, or removed before the oldest record.",
    "misses_unexplained": "Requests whose first missing block could not be looked for.",
    "wishes": "Requests whose client asked that their KV stay, or no longer stay.",
    "hints_unknown": "Actions of `kv_hints` that were unknown or malformed, and did nothing.",
    "unrecorded_requests": "Requests that could not be noted in the region's record of requests.",
    "errors": "Faults of the connector, each counted as a miss.",
}


_Parts = Mapping[str, tuple[str, ...]]

# Counters of `Region.cold` behind each counter of the cold tier.
_COLD: _Parts = {
    "cold_hits": ("cold_hits_total",),
    "cold_misses": ("cold_misses_total", "cold_reads_refused_total"),
    "cold_late": ("cold_late_total",),
    "cold_read_bytes": ("cold_read_bytes_total",),
    "cold_written": ("cold_written_total",),
    "cold_written_bytes": ("cold_written_bytes_total",),
    "cold_dropped": ("cold_dropped_busy_total", "cold_dropped_gone_total", "cold_dropped_failed_total"),
    "cold_skipped": ("cold_skipped_total", "cold_reads_skipped_total"),
    "cold_errors": ("cold_errors_total",),
}
# Counters of `Region.peers` behind each counter of peers.
_PEERS: _Parts = {name: (f"{name}_total",) for name in COUNTERS if name.startswith("remote_")}


@dataclass
class CenoteStats(KVConnectorStats):
    """Counts since the last call of `take`."""

    def reset(self) -> None:
        self.data = {}

    def add(self, name: str, count: float = 1) -> None:
        assert name in COUNTERS, name
        self.data[name] = self.data.get(name, 0) + count

    def add_cold(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        """Adds what the cold tier of this process did between two states of `Region.cold`."""
        self._add_parts(_COLD, now, before)

    def add_peers(self, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        """Adds what this process did with its peers between two states of `Region.peers`."""
        self._add_parts(_PEERS, now, before)

    def _add_parts(self, table: _Parts, now: Mapping[str, int], before: Mapping[str, int]) -> None:
        for name, parts in table.items():
            if (count := sum(now[part] - before.get(part, 0) for part in parts)) > 0:
                self.add(name, count)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"cenote {name}": round(self.data[name], 3) for name in COUNTERS if name in self.data}

    def is_empty(self) -> bool:
        return not self.data

    def take(self) -> CenoteStats | None:
        """Returns the counts and resets them; None if there are none."""
        if self.is_empty():
            return None
        taken = CenoteStats(data=self.data)
        self.data = {}
        return taken


class CenotePromMetrics(KVConnectorPromMetrics):
    """Prometheus counters `vllm:cenote_…_total`, one for each entry of `COUNTERS`.

    All counters of all engines are exported as 0 from the start. A counter that is missing until
    its first event looks like a missing connector, and `rate()` misses that event."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self.counters: dict[str, dict[int, Any]] = {}
        for name, text in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:cenote_{name}", documentation=text, labelnames=labelnames)
            self.counters[name] = {engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name in self.counters:
                self.counters[name][engine_idx].inc(count)
