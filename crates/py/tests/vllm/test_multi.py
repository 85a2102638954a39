"""Cenote under vLLM's MultiConnector."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import models
import pytest
from engines import Answer, Engine, in_child
from test_sharing import FULL, PROMPT, Job, ask_all, clean


def by_name(_: Connection) -> bool:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # Undo the imports of other tests.
    KVConnectorFactory._registry.pop("CenoteConnector", None)
    for name in [name for name in sys.modules if name.startswith("cenote.vllm")]:
        del sys.modules[name]
    with pytest.raises(ValueError, match="not registered"):
        KVConnectorFactory.get_connector_class_by_name("CenoteConnector")
    import cenote.vllm

    # A second registration has no effect.
    cenote.vllm._register()
    return KVConnectorFactory.get_connector_class_by_name("CenoteConnector") is cenote.vllm.CenoteConnector


def test_an_import_registers_the_connectors_name() -> None:
    assert in_child(by_name)


def among_others(_: Connection, model: str, region: str, prompt: list[int]) -> tuple[Answer, dict[str, Any]]:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    ours = {
        "kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both",
        "kv_connector_extra_config": {"region": region},
    }  # fmt: skip
    transfer = KVTransferConfig(
        kv_connector="MultiConnector", kv_role="kv_both", kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [ours]},
    )  # fmt: skip
    engine = Engine(model, None, transfer=transfer, disable_log_stats=False)
    # As between processes: counts arrive as plain numbers, and the class registered under the name
    # parses them.
    straight, read = MultiConnector.build_kv_connector_stats, []

    def build(data: dict[str, Any] | None = None) -> Any:
        plain = {name: getattr(stats, "data", stats) for name, stats in (data or {}).items()}
        read.append(straight(plain))
        return read[-1]

    engine.ask(models.prompt(40, 999), 2)
    group = get_kv_transfer_group()
    taken = group.get_kv_connector_stats

    def take() -> Any:
        stats = taken()
        return build(stats.data) if stats is not None else None

    group.get_kv_connector_stats = take
    answer = engine.ask(prompt)
    total: dict[str, float] = {}
    for stats in read:
        for name, count in stats.data["CenoteConnector"].data.items():
            total[name] = total.get(name, 0) + count
    # vLLM's metrics contain the counters as well.
    seen = {metric.name: metric.value for metric in engine.llm.get_metrics() if metric.name.startswith("vllm:cenote_")}
    return answer, {"read": total, "metrics": seen}


def test_the_connector_loads_and_counts_under_multi_connector(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 91)
    [cold] = in_child(ask_all, Job(tiny, region, [prompt]))
    warm, counted = in_child(among_others, tiny, region, prompt)
    assert (warm.tokens, warm.cached) == (cold.tokens, FULL)
    blocks = FULL // 32
    assert counted["read"]["loaded_blocks"] == blocks
    assert counted["metrics"]["vllm:cenote_loaded_blocks"] >= blocks
    clean(region)


def test_the_connector_permits_full_cuda_graphs() -> None:
    from cenote.vllm import CenoteConnector
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    ours = {"kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both"}
    settings = {"region": "shm:none"}
    assert not CenoteConnector.requires_piecewise_for_cudagraph(settings)
    among = {"connectors": [{**ours, "kv_connector_extra_config": settings}]}
    assert not MultiConnector.requires_piecewise_for_cudagraph(among)


def test_hits_count_as_host_memory() -> None:
    from cenote.vllm import CenoteConnector
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    connector = CenoteConnector.__new__(CenoteConnector)
    assert connector.get_external_cache_hit_sources(None, 64) == {CacheHitSource.HOST: 64}  # type: ignore[arg-type]
