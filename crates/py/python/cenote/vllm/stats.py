"""Counters of a connector, for vLLM's log and for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "lookup_blocks": "Blocks looked up in the region.",
    "hit_blocks": "Blocks found in the region on every rank.",
    "loads": "Loads started.",
    "loaded_blocks": "Blocks loaded without errors.",
    "failed_blocks": "Blocks that failed to load and are computed instead.",
    "late_loads": "Loads that timed out.",
    "load_seconds": "Seconds from the start of loads to their end.",
    "saved_blocks": "Blocks published.",
    "duplicate_blocks": "Blocks to be saved that were already present.",
    "refused_blocks": "Blocks without room, over their quota, or with failed copies.",
    "unnamed_requests": "Requests that shared nothing, because an adapter or an image has no name by its content.",
    "unnamed_blocks": "Blocks not saved or loaded, because vLLM loaded another adapter under that number, or its files changed.",
    "errors": "Faults of the connector, each counted as a miss.",
}


@dataclass
class CenoteStats(KVConnectorStats):
    """Counts since the last call of `take`."""

    def reset(self) -> None:
        self.data = {}

    def add(self, name: str, count: float = 1) -> None:
        assert name in COUNTERS, name
        self.data[name] = self.data.get(name, 0) + count

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
