"""Servers share pages, with SGLang's own cache, controller and factory of storage backends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from servers import PAGE, Server
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.runtime_context import get_context

import cenote
from cenote import clock, model_files
from cenote.facts import key_of
from cenote.sglang import CenoteStorage

PROMPT = list(range(100, 100 + 5 * PAGE))


def recorded_facts(name: str) -> list[dict[str, str]]:
    """The facts behind each fingerprint of the region."""
    with cenote.Region.open(name) as region:
        return [json.loads(region.get_object(key_of(row["fingerprint"])) or b"{}") for row in region.info()["namespaces"]]


@pytest.mark.parametrize(
    ("layout", "by_address"),
    [
        ("page_first_direct", True),
        ("page_first", True),
        ("layer_first", True),
        ("page_first_direct", False),
        ("page_first", False),
        ("layer_first", False),
    ],
)
@pytest.mark.parametrize("is_latent", [False, True])
def test_a_server_loads_the_pages_of_another(region: str, layout: str, by_address: bool, is_latent: bool) -> None:
    how: dict[str, Any] = {"layout": layout, "by_address": by_address, "is_latent": is_latent}
    how |= {"hicache_io_backend": "kernel" if layout == "page_first" else "direct"}
    left, right = Server(region, **how), Server(region, **how)
    assert isinstance(left.storage, CenoteStorage)
    assert isinstance(left.controller, HiCacheController)
    left.compute(PROMPT)
    assert right.load(PROMPT[: 3 * PAGE] + list(range(2 * PAGE))) == 3 * PAGE, "the prefix that both prompts have"
    right.forget()
    assert right.load(PROMPT) == len(PROMPT)
    assert (left.storage.errors, right.storage.errors) == (0, 0)
    left.close()
    right.close()


def test_a_server_loads_its_own_pages_after_a_flush(region: str) -> None:
    server = Server(region)
    server.compute(PROMPT)
    server.forget()
    assert server.load(PROMPT) == len(PROMPT)
    server.cache.clear_storage_backend()
    server.forget()
    assert server.load(PROMPT) == 0
    server.close()


def samples(name: str) -> float:
    return sum(
        sample.value for metric in REGISTRY.collect() for sample in metric.samples if sample.name == f"sglang:{name}"
    )


def test_metrics_report_pages_and_speed(region: str) -> None:
    # Prometheus collectors are per process, so only one server of a process may have metrics.
    server = Server(region, metrics=True)
    server.compute(PROMPT)
    server.forget()
    assert server.load(PROMPT) == len(PROMPT)
    server.step()
    for what in ("backup", "prefetch"):
        assert samples(f"{what}_pgs_sum") == len(PROMPT) // PAGE
        assert samples(f"{what}_bandwidth_sum") > 0
    assert server.storage.get_stats().prefetch_pgs == [], "`take` clears the batches"
    server.close()


# Differences between servers that change KV.
OTHERS: dict[str, dict[str, Any]] = {
    "served name": {"served_model_name": "other"},
    "quantization": {"quantization": "fp8"},
    "kind of fp8": {"kv_cache_dtype": "fp8_e5m2"},
    "model's configuration": {"json_model_override_args": '{"rope_theta": 1}'},
    "context": {"context_length": 77},
    "draft model": {"speculative_draft_model_path": "draft"},
    "weights": {"weight_version": "2"},
    "images": {"image_processor_backend": "pil"},
    "rank": {"tp_rank": 1, "tp_size": 2},
    "ranks": {"tp_size": 2},
    "stage": {"pp_rank": 1, "pp_size": 2},
    "layout": {"layout": "layer_first"},
    "order of a page's pieces": {"by_address": False},
    "tenant": {"settings": {"tenant_salt": "a"}},
    "fingerprint": {"settings": {"model_fingerprint": "a"}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_servers_that_differ_share_nothing(region: str, other: str) -> None:
    first, same, different = Server(region), Server(region), Server(region, **OTHERS[other])
    first.compute(PROMPT)
    assert different.load(PROMPT) == 0
    assert same.load(PROMPT) == len(PROMPT)
    one, another = recorded_facts(region)
    assert one != another, "`cenote pool diff` can tell why"
    for server in (first, same, different):
        server.close()


def test_layer_first_pages_by_address_and_by_tensor_share_nothing(region: str) -> None:
    # By address, this layout has K and V of a layer in turn. A tensor has all K before all V.
    by_address, by_tensor = Server(region, layout="layer_first"), Server(region, layout="layer_first", by_address=False)
    by_address.compute(PROMPT)
    assert by_tensor.load(PROMPT) == 0
    by_address.close()
    by_tensor.close()


def folder_of(path: Path, weights: bytes) -> str:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return str(path)


def test_the_content_of_a_models_folder_names_it(region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if each server had started after its folder was written.
    monkeypatch.setattr(model_files, "process_began", lambda: clock.unix() + 1)
    named: dict[str, Any] = {"settings": {"model_fingerprint": None}}
    first = Server(region, **named, model_path=folder_of(tmp_path / "first", bytes(1 << 20)))
    copy = Server(region, **named, model_path=folder_of(tmp_path / "copy", bytes(1 << 20)))
    # Differs in one byte, which sampling would miss.
    other = Server(region, **named, model_path=folder_of(tmp_path / "other", bytes(99_999) + b"x" + bytes((1 << 20) - 100_000)))
    first.compute(PROMPT)
    assert other.load(PROMPT) == 0
    assert copy.load(PROMPT) == len(PROMPT)
    for server in (first, copy, other):
        server.close()


def test_a_server_whose_weights_changed_after_its_start_shares_nothing(region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: dict[str, Any] = {"settings": {"model_fingerprint": None}, "model_path": folder_of(tmp_path / "model", bytes(1 << 10))}
    monkeypatch.setattr(model_files, "process_began", lambda: clock.unix() + 1)
    first = Server(region, **named)
    first.compute(PROMPT)
    monkeypatch.setattr(model_files, "process_began", lambda: 0.0)
    young = Server(region, **named)
    assert young.load(PROMPT) == 0
    for server in (first, young):
        server.close()


def test_a_model_whose_clients_name_images_is_refused(region: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", bytes(1 << 10))
    (tmp_path / "model" / "preprocessor_config.json").write_text("{}")
    with pytest.raises(ValueError, match="mm_hashes.*trust_media_names"):
        Server(region, settings={"model_fingerprint": None}, model_path=folder)


def test_a_fingerprint_names_the_model_independently_of_its_path(region: str) -> None:
    named = {"settings": {"model_fingerprint": "a"}}
    left, right = Server(region, **named, model_path="/here"), Server(region, **named, model_path="/there")
    left.compute(PROMPT)
    assert right.load(PROMPT) == len(PROMPT)
    left.close()
    right.close()


@pytest.mark.parametrize("key", [{"cache_salt": "a"}, {"extra_key": "a"}])
def test_salts_and_extra_keys_are_in_sglangs_keys(region: str, key: dict[str, str]) -> None:
    left, right = Server(region), Server(region)
    left.compute(PROMPT, **key)
    for other in ({}, {"cache_salt": "b"}, {"extra_key": "b"}):
        assert right.load(PROMPT, **other) == 0
    assert right.load(PROMPT, **key) == len(PROMPT)
    left.close()
    right.close()


def test_ranks_of_latent_attention_share_and_only_the_first_writes(region: str) -> None:
    first, second = Server(region, is_latent=True, tp_size=2), Server(region, is_latent=True, tp_rank=1, tp_size=2)
    other = list(range(4 * PAGE))
    second.compute(other)
    assert second.controller.backup_skip
    assert first.load(other) == 0
    first.compute(PROMPT)
    assert second.load(PROMPT) == len(PROMPT)
    first.close()
    second.close()


def test_a_weight_update_ends_the_sharing(region: str) -> None:
    server = Server(region)
    server.compute(PROMPT)
    server.forget()
    try:
        get_context().override("test", weight_version="2")
        assert server.load(PROMPT) == 0, "the pages are of the earlier weights"
        server.compute(PROMPT)
    finally:
        get_context().override("test", weight_version="default")
    assert server.storage.errors > 0
    server.forget()
    assert server.load(PROMPT) == len(PROMPT), "only pages of the first weights have their name"
    server.close()
