"""The tier below vLLM's own memory for offloaded KV, under vLLM's own manager and memory.

vLLM's `TieringOffloadingManager` calls the tier. Its copies between a GPU and that memory are replaced: they need a GPU."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cenote.vllm import tier as tier_module
from cenote.vllm.tier import CenoteTier
from vllm import EngineArgs
from vllm.config import KVTransferConfig, MultiModalConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.base import TransferJob
from waiting import PATIENCE, ManualTime, until

import cenote

BLOCK = 16
# Less than a look at manual time takes.
SHORT = 0.001


def spec_of(kind: type = FullAttentionSpec, **changes: Any) -> Any:
    return kind(**({"block_size": BLOCK, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32} | changes))


@pytest.fixture(scope="module")
def config(tiny: str) -> VllmConfig:
    """An engine's configuration. Tests change copies of single settings and undo it."""
    made = EngineArgs(tiny, dtype="float32", max_model_len=1024, block_size=BLOCK, enable_prefix_caching=True).create_engine_config()
    made.kv_transfer_config = KVTransferConfig(kv_connector="CenoteOffloadingConnector", kv_role="kv_both")
    return made


class Engine:
    """vLLM's manager with its memory, and a tier below."""

    def __init__(
        self, config: VllmConfig, settings: dict[str, Any], *, groups: Sequence[Any] = (), chunks: int = 8, blocks_per_chunk: int = 1
    ) -> None:
        groups = list(groups) or [spec_of()]
        made = [KVCacheGroupSpec([f"layer {number}.{at}" for at in range(2)], spec) for number, spec in enumerate(groups)]
        kv_cache = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=made)
        row = sum(spec.page_size_bytes for spec in groups) * 2 * blocks_per_chunk
        assert config.kv_transfer_config is not None
        config.kv_transfer_config.engine_id = uuid.uuid4().hex
        config.kv_transfer_config.kv_connector_extra_config = {
            "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": row * chunks, "blocks_per_chunk": blocks_per_chunk,
            "secondary_tiers": [{"type": "CenoteTier", "module_path": "cenote.vllm.tier", "model_fingerprint": "m", "timeout": PATIENCE, **settings}],
        }  # fmt: skip
        spec = OffloadingSpecFactory.create_spec(build_offloading_config(config, kv_cache))
        token = tier_module._engine.set((config, kv_cache))
        try:
            self.manager: Any = spec.get_manager()
        finally:
            tier_module._engine.reset(token)
        [self.tier] = self.manager.secondary_tiers
        assert isinstance(self.tier, CenoteTier)
        self.requests = 0

    def rows(self) -> Any:
        return np.asarray(self.manager.primary_tier.get_kv_memoryview())

    def request(self) -> ReqContext:
        self.requests += 1
        request = ReqContext(f"request {self.requests}")
        self.manager.on_new_request(request)
        return request

    def step(self) -> None:
        self.manager.on_schedule_end(ScheduleEndContext([], []))

    def settle(self) -> None:
        def is_idle() -> bool:
            if not self.manager.has_pending_work():
                return True
            self.step()
            self.manager.lookup(make_offload_key(b"\1" * 32, 0), self.request())
            return False

        until("the end of all jobs", is_idle)

    def store(self, keys: Sequence[OffloadKey]) -> None:
        """Computes chunks, copies them into vLLM's memory as a worker does, and waits for the tier."""
        request = self.request()
        output = self.manager.prepare_store(keys, request)
        assert output is not None
        for key, chunk in zip(output.keys_to_store, output.store_spec.chunk_ids, strict=True):
            self.rows()[chunk] = content_of(key, self.rows().shape[1])
        self.manager.complete_store(output.keys_to_store, request)
        self.settle()
        self.manager.on_request_finished(request)
        self.settle()

    def find(self, keys: Sequence[OffloadKey]) -> int:
        """Looks chunks up as the scheduler does, step after step, loads them and checks them. Returns how many there are."""
        request, found = self.request(), 0
        for key in keys:
            result = LookupResult.RETRY

            def is_known(key: OffloadKey = key) -> bool:
                nonlocal result
                result = self.manager.lookup(key, request)
                if result in (LookupResult.RETRY, LookupResult.HIT_PENDING):
                    self.step()
                    return False
                return True

            until(lambda: f"{key!r} stays {result}", is_known)
            if result is LookupResult.MISS:
                break
            spec = self.manager.prepare_load([key], request)
            assert np.array_equal(self.rows()[spec.chunk_ids[0]], content_of(key, self.rows().shape[1])), "wrong KV"
            self.manager.complete_load([key], request)
            found += 1
        self.manager.on_request_finished(request)
        self.settle()
        return found

    def close(self) -> None:
        self.manager.shutdown()


@pytest.fixture
def engine(config: VllmConfig, region: str) -> Iterator[Any]:
    made: list[Engine] = []

    def make(**settings: Any) -> Engine:
        groups = {name: settings.pop(name) for name in ("groups", "chunks", "blocks_per_chunk") if name in settings}
        made.append(Engine(config, {"region": region} | settings, **groups))
        return made[-1]

    yield make
    for each in made:
        each.close()


def keys_of(prompt: int, count: int, group: int = 0) -> list[OffloadKey]:
    return [make_offload_key(hashlib.sha256(f"{prompt} {block}".encode()).digest(), group) for block in range(count)]


def content_of(key: OffloadKey, size: int) -> Any:
    seed = int.from_bytes(hashlib.sha256(bytes(key)).digest()[:7], "little")
    return np.random.default_rng(seed).integers(-128, 128, size, dtype=np.int8)


def test_an_engine_loads_the_chunks_of_another(engine: Any) -> None:
    first, second = engine(), engine()
    keys = keys_of(0, 6)
    first.store(keys[:4])
    assert second.find(keys) == 4
    assert (first.tier.errors, second.tier.errors) == (0, 0)
    # More than fit into vLLM's memory: the region still has those that left it.
    for prompt in range(1, 4):
        first.store(keys_of(prompt, 6))
    assert first.find(keys) == 4
    assert second.find(keys_of(3, 6)) == 6


def test_groups_have_chunks_of_their_own(engine: Any) -> None:
    groups = [spec_of(), spec_of(SlidingWindowSpec, sliding_window=64)]
    first, second = engine(groups=groups), engine(groups=groups)
    full, window = keys_of(0, 3, group=0), keys_of(0, 3, group=1)
    first.store(full)
    assert (second.find(full), second.find(window)) == (3, 0)
    first.store(window)
    assert second.find(window) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"model_fingerprint": "another"},
        {"tenant_salt": "another"},
        {"groups": [spec_of(dtype=torch.int32)]},
        {"groups": [spec_of(head_size=128)]},
        {"groups": [spec_of(SlidingWindowSpec, sliding_window=64)]},
        {"blocks_per_chunk": 2},
    ],
)
def test_engines_that_differ_share_nothing(engine: Any, other: dict[str, Any]) -> None:
    first, second = engine(), engine(**other)
    first.store(keys_of(0, 4))
    second.store(keys_of(1, 1))
    assert first.tier.blocks.id != second.tier.blocks.id
    assert second.find(keys_of(0, 4)) == 0
    assert engine().find(keys_of(0, 4)) == 4


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model_config", "model_impl", "transformers"),
        ("cache_config", "cache_dtype", "fp8_e5m2"),
        ("cache_config", "prefix_caching_hash_algo", "sha256_cbor"),
        ("parallel_config", "tensor_parallel_size", 2),
        ("attention_config", "flash_attn_version", 2),
    ],
)
def test_settings_of_the_engine_are_in_the_name(
    engine: Any, config: VllmConfig, monkeypatch: pytest.MonkeyPatch, part: str, name: str, value: Any
) -> None:
    first = engine()
    first.store(keys_of(0, 2))
    monkeypatch.setattr(getattr(config, part), name, value)
    assert engine().find(keys_of(0, 2)) == 0
    monkeypatch.undo()
    assert engine().find(keys_of(0, 2)) == 2


def test_chunks_that_left_the_region_fail_their_load_alone(engine: Any) -> None:
    first, second = engine(), engine()
    keys = keys_of(0, 4)
    first.store(keys)
    request = second.request()
    job = TransferJob(1000, keys, np.arange(4), True, request)
    absent = second.tier._name(keys[1])
    assert second.tier.blocks.count(absent) == 1
    # Another namespace's names stand for a chunk that was evicted after the lookup.
    job.keys = [keys[0], keys_of(9, 1)[0], *keys[2:]]
    second.tier.submit_load(job)
    [result] = ended(second.tier)
    assert (result.job_id, result.success, list(result.successful_keys)) == (1000, False, [keys[0], *keys[2:]])
    assert result.transfer_bytes == 3 * second.tier.block_size_bytes
    for chunk, key in ((0, keys[0]), (2, keys[2]), (3, keys[3])):
        assert np.array_equal(second.rows()[chunk], content_of(key, second.rows().shape[1]))


def ended(tier: CenoteTier) -> list[Any]:
    results: list[Any] = []

    def have_ended() -> bool:
        results.extend(tier.get_finished_jobs())
        return bool(results) and not tier.has_pending_work()

    until("the end of the jobs", have_ended)
    return results


class Panic(BaseException):
    """Like a panic of the compiled part, not an `Exception`."""


class Faulty:
    """A namespace that fails every call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, _name: str) -> Any:
        raise self.error


class Broken:
    """A namespace with names, whose copies fail."""

    def __init__(self, blocks: cenote.Namespace) -> None:
        self.alias = blocks.alias

    def __getattr__(self, _name: str) -> Any:
        raise Panic("panicked")


def test_faults_are_misses_and_failed_jobs(engine: Any) -> None:
    first = engine()
    keys = keys_of(0, 2)
    first.store(keys)
    tier, blocks, request = first.tier, first.tier.blocks, first.request()
    count = 0
    for broken in (Faulty(Panic("panicked")), Faulty(MemoryError()), Broken(blocks)):
        tier.blocks = broken
        tier._lost.clear()
        assert tier.lookup(keys[0], request) is LookupResult.MISS
        for submit in (tier.submit_store, tier.submit_load):
            submit(TransferJob(count, keys, np.arange(2), False, request))
            [result] = ended(tier)
            assert (result.job_id, result.success, result.successful_keys) == (count, False, None)
            count += 1
    assert tier.errors == 9
    tier.blocks = blocks
    # What vLLM should never send.
    for chunks in ([0], [0, 8], [-1, 0]):
        tier.submit_load(TransferJob(count, keys, np.array(chunks), True, request))
        assert [result.success for result in ended(tier)] == [False]
    assert tier.errors == 12
    other = engine()
    assert other.find(keys) == 2


def test_jobs_have_a_deadline(engine: Any, manual_time: ManualTime) -> None:
    first, late = engine(), engine(timeout=SHORT)
    first.store(keys_of(0, 2))
    manual_time.each_look = 2 * SHORT
    late.store(keys_of(1, 2))
    assert late.find(keys_of(0, 2)) == 0
    assert late.tier.blocks.count(late.tier._name(keys_of(1, 1)[0])) == 0
    assert late.tier.errors == 0


def test_a_chunk_that_cannot_be_loaded_is_a_miss_for_a_while(
    engine: Any, monkeypatch: pytest.MonkeyPatch, manual_time: ManualTime
) -> None:
    """vLLM looks a chunk up again after its load failed. A tier that found it again kept the request waiting without end."""
    first, second = engine(), engine()
    keys = keys_of(0, 3)
    first.store(keys)
    whole = second.tier.blocks
    with monkeypatch.context() as patch:
        patch.setattr(CenoteTier, "_load", lambda tier, job, *_: tier._result(job, False, 0, 0.0))
        assert second.find(keys) == 0
    assert second.tier.blocks is whole
    assert second.find(keys) == 0
    manual_time.advance(tier_module._LOST_SECONDS)
    assert second.find(keys) == 3


def test_a_reset_ends_all_jobs_and_changes_the_names(engine: Any) -> None:
    """vLLM resets its caches when it gets new weights."""
    first, second = engine(load_threads=1), engine()
    keys = keys_of(0, 4)
    first.store(keys)
    request = first.request()
    blocked = first.tier._threads.submit(first.tier._stops.wait, PATIENCE)
    for job in range(3):
        first.tier.submit_load(TransferJob(job, keys, np.arange(4), True, request))
    first.tier.drain_jobs()
    assert blocked.result() is True, "the running work saw the reset"
    assert [(result.job_id, result.success) for result in ended(first.tier)] == [(job, False) for job in range(3)]
    assert not first.tier.has_pending_work()
    first.manager.reset_cache()
    assert first.find(keys) == 0
    first.store(keys)
    assert first.find(keys) == 4
    assert second.find(keys) == 4, "an engine with the old weights keeps its chunks"
    # The tier still takes jobs.
    assert first.tier.blocks.count(first.tier._name(keys[0])) == 1


def test_a_file_names_new_weights_for_several_engines(engine: Any, tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("1")
    first, second = (engine(weights_version_file=str(file)) for _ in range(2))
    keys = keys_of(0, 2)
    first.store(keys)
    assert second.find(keys) == 2
    file.write_text("2")
    for each in (first, second):
        each.manager.reset_cache()
    assert second.find(keys) == 0
    first.store(keys)
    assert second.find(keys) == 2
    file.unlink()
    first.manager.reset_cache()
    assert first.tier.errors == 1
    assert (first.find(keys), second.find(keys)) == (0, 2), "without the file the engine shares with none"


def test_chunks_outlive_the_region_in_the_cold_tier(config: VllmConfig, tmp_path: Path) -> None:
    name = f"cenote-vllm-tier-{uuid.uuid4().hex[:8]}"
    settings = {"region": f"shm:{name}", "create_size": "64MiB", "cold": f"{tmp_path / 'cold'},size=64MiB,deadline={PATIENCE:.0f}"}
    keys = keys_of(0, 3)
    try:
        first = Engine(config, settings)
        first.store(keys)
        assert first.tier.region.settle_cold(PATIENCE)
        first.close()
        Path("/dev/shm", name).unlink()
        second = Engine(config, settings)
        # Until it has read its list, the cold tier has nothing.
        assert second.tier.region.settle_cold(PATIENCE)
        assert second.tier.lookup(keys[0], second.request()) is LookupResult.RETRY
        assert second.find(keys) == 3
        assert second.find(keys_of(1, 1)) == 0
        assert second.tier.errors == 0
        second.close()
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)


def test_a_chunk_that_no_tier_brings_is_a_miss_for_a_while(engine: Any, monkeypatch: pytest.MonkeyPatch, manual_time: ManualTime) -> None:
    """Peers may be asked for any chunk. One that ended between two steps was asked for again and again, and vLLM waited."""
    made = engine()
    tier, [key] = made.tier, keys_of(0, 1)
    begun: list[SimpleNamespace] = []

    def promote(_: Any) -> Any:
        begun.append(SimpleNamespace(over=False))
        return begun[-1]

    monkeypatch.setattr(tier, "blocks", SimpleNamespace(promote=promote, count=lambda _: 0, alias=lambda keys: keys))
    assert tier.lookup(key, made.request()) is LookupResult.RETRY
    begun[0].over = True
    for _ in range(3):
        tier.on_schedule_end(ScheduleEndContext([], []))
        assert tier.lookup(key, made.request()) is LookupResult.MISS
    manual_time.advance(tier_module._SOUGHT_SECONDS + 1)
    tier.on_schedule_end(ScheduleEndContext([], []))
    assert tier.lookup(key, made.request()) is LookupResult.RETRY
    assert len(begun) == 2
    assert tier.errors == 0


def test_what_the_tier_cannot_name_is_refused(
    engine: Any, config: VllmConfig, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="has no regoin"):
        engine(regoin="shm:a")
    with pytest.raises(ValueError, match="no region is given"):
        engine(region="")
    with pytest.raises(cenote.RegionMissing):
        engine(region="shm:cenote-vllm-missing")
    for part, name, value, said in (
        (config, "lora_config", object(), "LoRA"),
        (config.model_config, "multimodal_config", MultiModalConfig(), "images"),
        (config.model_config, "enable_prompt_embeds", True, "prompt embeddings"),
        (config.model_config, "runner_type", "pooling", "pooling models"),
        (config.cache_config, "enable_prefix_caching", False, "prefix caching"),
        (config.cache_config, "prefix_caching_hash_algo", "xxhash", "PYTHONHASHSEED"),
    ):
        with monkeypatch.context() as patch:
            patch.delenv("PYTHONHASHSEED", raising=False)
            patch.setattr(part, name, value)
            with pytest.raises(ValueError, match=said):
                engine()
    monkeypatch.setattr(tier_module, "_engine", type("None", (), {"get": lambda self: None, "set": lambda self, _: None, "reset": lambda self, _: None})())
    with pytest.raises(ValueError, match="CenoteOffloadingConnector"):
        engine()


def test_the_connector_tells_its_tiers_the_configuration(config: VllmConfig, region: str) -> None:
    assert config.kv_transfer_config is not None
    config.kv_transfer_config.engine_id = uuid.uuid4().hex
    config.kv_transfer_config.kv_connector_extra_config = {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8 << 20,
        "secondary_tiers": [{"type": "CenoteTier", "module_path": "cenote.vllm.tier", "region": region}],
    }  # fmt: skip
    kv_cache = KVCacheConfig(num_blocks=10, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec_of())])
    connector = tier_module.CenoteOffloadingConnector(config, KVConnectorRole.SCHEDULER, kv_cache)
    [tier] = connector.scheduler.manager.secondary_tiers  # type: ignore[attr-defined]
    assert isinstance(tier, CenoteTier)
    connector.shutdown()
    assert tier_module._engine.get() is None
