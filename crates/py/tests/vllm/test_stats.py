"""Prometheus counters of the connector."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cenote.vllm.stats import COUNTERS, CenotePromMetrics


def test_every_counter_is_exported_as_zero_from_the_start() -> None:
    registry = CollectorRegistry()

    def counter(**given: Any) -> Counter:
        return Counter(**given, registry=registry)

    types = {Gauge: Gauge, Counter: counter, Histogram: Histogram}
    engines = {0: ["m", "0"], 1: ["m", "1"]}
    metrics = CenotePromMetrics(SimpleNamespace(kv_transfer_config=None), types, ["model_name", "engine"], engines)

    def value(name: str, engine: str) -> float | None:
        return registry.get_sample_value(f"vllm:cenote_{name}_total", {"model_name": "m", "engine": engine})

    assert {(name, engine): value(name, engine) for name in COUNTERS for engine in ("0", "1")} == {
        (name, engine): 0 for name in COUNTERS for engine in ("0", "1")
    }
    metrics.observe({"hit_blocks": 3, "of a newer version": 1}, 1)
    assert (value("hit_blocks", "0"), value("hit_blocks", "1")) == (0, 3)
