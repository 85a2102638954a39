"""LMCache's adapter under fakes of LMCache's abstract class and helpers.

The fakes have the names and arguments of LMCache 0.5.6. `tests/vllm/test_lmcache.py` tests the
adapter under LMCache itself, which needs torch."""

from __future__ import annotations

import abc
import ctypes
import json
import os
import select
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sharing import Share, connected, create, key_file
from waiting import PATIENCE, ManualTime

import cenote
from cenote.facts import key_of

SHAPE = (2, 4, 128)
BYTES = 2 * 4 * 128 * 2


class Bitmap:
    def __init__(self, length: int) -> None:
        self.bits = [False] * length

    def set(self, place: int) -> None:
        self.bits[place] = True


class StoreResult(int):
    def __new__(cls, success: bool, bytes_transferred: int) -> StoreResult:
        return super().__new__(cls, bytes_transferred if success else -1)


class Event:
    def __init__(self) -> None:
        self.fd = os.eventfd(0)

    def fileno(self) -> int:
        return self.fd

    def notify(self) -> None:
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        os.close(self.fd)


@dataclass
class Usage:
    total_bytes_used: int
    total_capacity_bytes: int


class Interface(abc.ABC):
    """The calls of `L2AdapterInterface`."""

    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self.told: list[tuple[str, Any]] = []

    def _notify_keys_stored(self, keys: list[Any], sizes: list[int]) -> None:
        self.told.append(("stored", sizes))

    def _notify_keys_accessed(self, keys: list[Any]) -> None:
        self.told.append(("accessed", len(keys)))

    @abc.abstractmethod
    def get_store_event_fd(self) -> int: ...
    @abc.abstractmethod
    def get_lookup_and_lock_event_fd(self) -> int: ...
    @abc.abstractmethod
    def get_load_event_fd(self) -> int: ...
    @abc.abstractmethod
    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int: ...
    @abc.abstractmethod
    def pop_completed_store_tasks(self) -> dict[int, Any]: ...
    @abc.abstractmethod
    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int: ...
    @abc.abstractmethod
    def query_lookup_and_lock_result(self, task_id: int) -> Any: ...
    @abc.abstractmethod
    def submit_unlock(self, keys: list[Any]) -> None: ...
    @abc.abstractmethod
    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int: ...
    @abc.abstractmethod
    def query_load_result(self, task_id: int) -> Any: ...
    @abc.abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Key:
    """`ObjectKey`."""

    chunk_hash: bytes
    model_name: str = "org/demo"
    kv_rank: int = 0x01000100
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class Dtype:
    name: str
    itemsize: int

    def __str__(self) -> str:
        return self.name


HALF = Dtype("bf16", 2)


@dataclass
class Layout:
    """`MemoryLayoutDesc`."""

    shapes: list[tuple[int, ...]]
    dtypes: list[Dtype]


class Item:
    """`MemoryObj`."""

    def __init__(self, content: int, dtype: Dtype = HALF, size: int = BYTES) -> None:
        self.dtype, self.size = dtype, size
        self.memory = (ctypes.c_ubyte * size)(*[content] * size)

    def get_size(self) -> int:
        return self.size

    def get_shapes(self) -> list[tuple[int, ...]]:
        return [SHAPE]

    def get_dtypes(self) -> list[Dtype]:
        return [self.dtype]

    @property
    def byte_array(self) -> memoryview:
        return memoryview(self.memory)

    def content(self) -> set[int]:
        return set(self.memory)


NAMED = {"model_fingerprint": "first"}
LAYOUTS = {0: Layout([SHAPE], [HALF])}
_STAND_INS = {
    "lmcache.lmcache_native": {"Bitmap": Bitmap},
    "lmcache.v1.distributed.internal_api": {"L2StoreResult": StoreResult},
    "lmcache.v1.distributed.l2_adapters.base": {"AdapterUsage": Usage, "L2AdapterInterface": Interface},
    "lmcache.v1.platform": {"create_event_notifier": Event},
}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("lmcache", "lmcache.v1", "lmcache.v1.distributed", "lmcache.v1.distributed.l2_adapters"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name, content in _STAND_INS.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in [name for name in sys.modules if name.startswith("cenote.lmcache")]:
        monkeypatch.delitem(sys.modules, name)
    from cenote.lmcache import adapter

    yield adapter
    for name in [name for name in sys.modules if name.startswith("cenote.lmcache")]:
        del sys.modules[name]


def keys(*numbers: int, **of: Any) -> list[Key]:
    return [Key(bytes([number]) * 32, **of) for number in numbers]


def waited(fd: int) -> None:
    """Waits for an event, as LMCache's controllers do."""
    ready, _, _ = select.select([fd], [], [], PATIENCE)
    assert ready, "the task did not end"
    os.eventfd_read(fd)


def stored(adapter: Any, names: list[Key], items: list[Item]) -> int:
    task = adapter.submit_store_task(names, items)
    waited(adapter.get_store_event_fd())
    result = adapter.pop_completed_store_tasks()[task]
    assert adapter.pop_completed_store_tasks() == {}
    return int(result)


def found(adapter: Any, names: list[Key], layouts: Any = LAYOUTS) -> list[bool]:
    task = adapter.submit_lookup_and_lock_task(names, layouts)
    waited(adapter.get_lookup_and_lock_event_fd())
    bits: list[bool] = adapter.query_lookup_and_lock_result(task).bits
    assert adapter.query_lookup_and_lock_result(task) is None, "a query removes the result"
    return bits


def loaded(adapter: Any, names: list[Key], items: list[Item]) -> list[bool]:
    task = adapter.submit_load_task(names, items)
    waited(adapter.get_load_event_fd())
    bits: list[bool] = adapter.query_load_result(task).bits
    return bits


def test_a_server_loads_the_objects_of_another(backend: Any, region: Any) -> None:
    left, right = (backend.CenoteL2Adapter({**NAMED, "region": region.name}, l1_memory_desc=None) for _ in range(2))
    fds = {left.get_store_event_fd(), left.get_lookup_and_lock_event_fd(), left.get_load_event_fd()}
    assert len(fds) == 3
    assert stored(left, keys(1, 2, 4), [Item(1), Item(2), Item(4)]) == 3 * BYTES
    assert stored(left, keys(1), [Item(1)]) == 0, "a present object counts as stored without a write"
    assert left.told == [("stored", [BYTES] * 3), ("stored", [0])]
    assert found(right, keys(1, 2, 3, 4)) == [True, True, False, True], "objects after a gap are found"
    items = [Item(0) for _ in range(4)]
    assert loaded(right, keys(1, 2, 3, 4), items) == [True, True, False, True]
    assert [item.content() for item in items] == [{1}, {2}, {0}, {4}]
    assert right.told == [("accessed", 3)]
    right.submit_unlock(keys(1, 2, 4))
    assert right.get_usage() == Usage(3 * BYTES, 0)
    for adapter in (left, right):
        assert adapter.report_status() == {
            "is_healthy": True, "type": "CenoteL2Adapter", "region": region.name, "errors": 0, "locked_keys": 0,
            "cold": None,
            "peers": None,
        }  # fmt: skip
        adapter.close()
    assert region.check(payloads=True)["is_clean"]


def test_locked_objects_stay_until_they_are_unlocked(backend: Any, region: Any) -> None:
    adapter = backend.CenoteL2Adapter({**NAMED, "region": region.name})
    assert stored(adapter, keys(1, 2), [Item(1), Item(2)]) == 2 * BYTES
    # Two requests.
    assert found(adapter, keys(1, 2)) == [True, True]
    assert found(adapter, keys(1, 2)) == [True, True]
    adapter.submit_unlock(keys(1, 9))
    adapter.submit_unlock(keys(1))
    assert region.check()["pinned"] == 2, "the objects of a lookup are unpinned together"
    adapter.submit_unlock(keys(2))
    assert region.check()["pinned"] == 2, "the other request pins them"
    fill = region.namespace(b"others", BYTES)
    for number in range(1, 4096):
        fill.publish(number.to_bytes(16, "little"), 0, bytes(BYTES))
    assert region.counters()["pool_evicted_total"] > 0
    back = [Item(0), Item(0)]
    assert loaded(adapter, keys(1, 2), back) == [True, True]
    assert [item.content() for item in back] == [{1}, {2}]
    adapter.submit_unlock(keys(2))
    assert region.check()["pinned"] == 0
    assert adapter.report_status()["locked_keys"] == 0
    adapter.close()


def test_a_lease_without_an_unlock_times_out(backend: Any, region: Any, manual_time: ManualTime) -> None:
    adapter = backend.CenoteL2Adapter({**NAMED, "region": region.name, "lease_timeout": 8})
    assert stored(adapter, keys(1), [Item(1)]) == BYTES
    assert found(adapter, keys(1)) == [True]
    for passed, pinned in ((7, 1), (1, 0)):
        manual_time.advance(passed)
        assert found(adapter, keys(2)) == [False]
        assert region.check()["pinned"] == pinned
    assert loaded(adapter, keys(1), [Item(0)]) == [True], "a load looks it up again"
    adapter.submit_unlock(keys(1))
    assert adapter.errors == 0
    adapter.close()


def test_ranks_models_layouts_and_salts_share_nothing(backend: Any, region: Any) -> None:
    adapter = backend.CenoteL2Adapter({**NAMED, "region": region.name})
    salted = backend.CenoteL2Adapter({**NAMED, "region": region.name, "tenant_salt": "x"})
    assert stored(adapter, keys(1), [Item(1)]) == BYTES
    assert found(adapter, keys(1)) == [True]
    assert found(salted, keys(1)) == [False]
    for other in ({"kv_rank": 1}, {"model_name": "other"}, {"cache_salt": "tenant"}):
        assert found(adapter, keys(1, **other)) == [False]
    assert found(adapter, keys(1, object_group_id=1), {1: LAYOUTS[0]}) == [False]
    assert found(adapter, keys(1), {0: Layout([SHAPE], [Dtype("fp16", 2)])}) == [False]
    assert found(adapter, keys(1), {0: Layout([SHAPE, SHAPE], [HALF, HALF])}) == [False]
    adapter.close()
    salted.close()


def test_a_lookup_without_a_layout_uses_that_of_the_last_store(backend: Any, region: Any) -> None:
    adapter = backend.CenoteL2Adapter({**NAMED, "region": region.name})
    assert found(adapter, keys(1), {}) == [False]
    assert stored(adapter, keys(1), [Item(1)]) == BYTES
    assert found(adapter, keys(1), {}) == [True]
    adapter.close()


def test_faults_are_misses_and_tasks_end(backend: Any, region: Any) -> None:
    adapter = backend.CenoteL2Adapter({**NAMED, "region": region.name})
    assert stored(adapter, keys(1), [Item(1, size=BYTES // 2)]) == -1, "a serialized object is refused"
    assert stored(adapter, keys(1, 2), [Item(1)]) == -1
    assert adapter.errors == 2
    damaged = adapter._space_of(keys(7)[0], Item(7))
    assert stored(adapter, keys(7), [Item(7)]) == BYTES
    with damaged.lookup(damaged.alias([backend._key_bytes(keys(7)[0])])) as lease:
        place, length = lease.view(0, verify=False).extent
        ctypes.memset(place, 0, length)
    assert found(adapter, keys(7)) == [True]
    assert loaded(adapter, keys(7), [Item(0)]) == [False], "its checksum does not match"
    adapter.region.close()
    assert found(adapter, keys(7)) == [False]
    assert stored(adapter, keys(8), [Item(8)]) == -1
    assert loaded(adapter, keys(8), [Item(8)]) == [False]
    assert adapter.errors >= 5
    assert not adapter.report_status()["is_healthy"]
    assert adapter.get_usage().total_bytes_used == 0
    adapter.close()


def test_objects_outlive_their_region_with_a_cold_tier(backend: Any, name: str, tmp_path: Path) -> None:
    params = {**NAMED, "region": name, "create_size": "64MiB", "chunk_size": "256KiB", "cold": f"{tmp_path}/cold,size=64MiB,deadline={PATIENCE:.0f}"}
    first = backend.CenoteL2Adapter(params)
    assert first.region.settle_cold(PATIENCE)
    assert stored(first, keys(1, 2, 4), [Item(1), Item(2), Item(4)]) == 3 * BYTES
    assert first.region.settle_cold(PATIENCE)
    assert first.report_status()["cold"]["cold_written_total"] == 3
    first.close()
    Path("/dev/shm", name.removeprefix("shm:")).unlink()
    second = backend.CenoteL2Adapter(params)
    assert second.region.settle_cold(PATIENCE)
    assert found(second, keys(1, 2, 3, 4)) == [True, True, False, True], "the lookup waits for the cold tier"
    items = [Item(0) for _ in range(3)]
    assert loaded(second, keys(1, 2, 4), items) == [True] * 3
    assert [item.content() for item in items] == [{1}, {2}, {4}]
    assert second.report_status()["cold"]["cold_hits_total"] == 3
    second.close()


def test_objects_come_from_another_host(backend: Any, name: str, tmp_path: Path) -> None:
    far, key = f"{name}-far", key_file(tmp_path)
    for each in (name, far):
        create(each)
    first = backend.CenoteL2Adapter({**NAMED, "region": far})
    assert stored(first, keys(1, 2, 4), [Item(1), Item(2), Item(4)]) == 3 * BYTES
    with Share(far, key) as share:
        second = backend.CenoteL2Adapter({**NAMED, "region": name, **share.settings(key)})
        connected(second.region)
        assert found(second, keys(1, 2, 3, 4)) == [True, True, False, True], "the lookup waits for the peer"
        items = [Item(0) for _ in range(3)]
        assert loaded(second, keys(1, 2, 4), items) == [True] * 3
        assert [item.content() for item in items] == [{1}, {2}, {4}]
        assert second.report_status()["peers"]["remote_hits_total"] == 3
        share.kill()
        assert found(second, keys(5, 6)) == [False, False], "a dead peer costs a miss"
        second.close()
    first.close()
    Path("/dev/shm", far.removeprefix("shm:")).unlink()


def test_a_new_region_gets_the_seal_of_the_settings(backend: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    params = {**NAMED, "region": name, "create_size": "64MiB", "chunk_size": "256KiB"}
    monkeypatch.setenv("CENOTE_SEAL_KEY_FILE", str(key))
    with pytest.raises(ValueError, match="a key is given"):
        backend.CenoteL2Adapter(params)
    monkeypatch.delenv("CENOTE_SEAL_KEY_FILE")
    sealed = {**params, "seal": "encrypt", "seal_key_file": str(key)}
    first = backend.CenoteL2Adapter(sealed)
    assert first.region.info()["seal"] == "encrypt"
    assert stored(first, keys(1), [Item(1)]) == BYTES
    second = backend.CenoteL2Adapter(sealed)
    assert found(second, keys(1)) == [True]
    item = Item(0)
    assert loaded(second, keys(1), [item]) == [True]
    assert item.content() == {1}
    second.submit_unlock(keys(1))
    with pytest.raises(cenote.CenoteError, match="seal is mac"):
        backend.CenoteL2Adapter({**sealed, "seal": "mac"})
    for adapter in (first, second):
        adapter.close()


def test_invalid_settings_are_refused(backend: Any, region: Any) -> None:
    for params, said in (
        ({}, "no region"), ({"regoin": "x"}, "unknown regoin"), ({**NAMED, "region": region.name, "lease_timeout": "1"}, "lease_timeout"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            backend.CenoteL2Adapter(params)
    with pytest.raises(cenote.RegionMissing):
        backend.CenoteL2Adapter({**NAMED, "region": "shm:cenote-none-such"})


def test_servers_with_different_weights_share_nothing(backend: Any, region: Any, tmp_path: Path) -> None:
    for name, content in (("one", b"1"), ("same", b"1"), ("other", b"2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    [name] = keys(1)

    def found(**weights: str) -> list[bool]:
        adapter = backend.CenoteL2Adapter({"region": region.name, **weights})
        task = adapter.submit_lookup_and_lock_task([name], LAYOUTS)
        waited(adapter.get_lookup_and_lock_event_fd())
        bits = adapter.query_lookup_and_lock_result(task).bits
        adapter.close()
        return bits

    adapter = backend.CenoteL2Adapter({"region": region.name, "model_folder": str(tmp_path / "one")})
    stored(adapter, [name], [Item(1)])
    adapter.close()
    assert found(model_folder=str(tmp_path / "same")) == [True]
    assert found(model_folder=str(tmp_path / "other")) == [False]
    assert found(model_fingerprint="one") == [False]
    facts = [json.loads(region.get_object(key_of(row["fingerprint"])) or b"{}") for row in region.info()["namespaces"]]
    assert len({row["weights"] for row in facts}) == 3, "`cenote pool diff` can tell why"


def test_a_server_whose_files_change_shares_nothing_from_then_on(backend: Any, region: Any, tmp_path: Path, manual_time: ManualTime) -> None:
    """An engine that loaded overwritten weights later found the old weights' KV."""
    (tmp_path / "model.safetensors").write_bytes(b"1")
    [name] = keys(1)
    adapter = backend.CenoteL2Adapter({"region": region.name, "model_folder": str(tmp_path)})
    stored(adapter, [name], [Item(1)])
    assert found(adapter, [name]) == [True]
    (tmp_path / "model.safetensors").write_bytes(b"2")
    manual_time.advance(1)
    assert found(adapter, [name]) == [False]
    stored(adapter, [name], [Item(2)])
    assert found(adapter, [name]) == [True], "its own objects"
    adapter.close()


def test_a_model_whose_clients_name_images_is_refused(backend: Any, region: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"1")
    (tmp_path / "config.json").write_text('{"vision_config": {"depth": 2}}')
    with pytest.raises(ValueError, match="uuid.*trust_media_names"):
        backend.CenoteL2Adapter({"region": region.name, "model_folder": str(tmp_path)})
    backend.CenoteL2Adapter({"region": region.name, "model_folder": str(tmp_path), "trust_media_names": True}).close()


@pytest.mark.parametrize("weights", [{}, {"model_folder": "/tmp", "model_fingerprint": "x"}, {"model_folder": "/none-such"}])
def test_weights_must_be_named(backend: Any, region: Any, weights: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"adapter_params: .*model_folder"):
        backend.CenoteL2Adapter({"region": region.name, **weights})
