"""SGLang's storage backend, under an abstract class with the calls of SGLang's own and a host memory as it has it.

SGLang itself cannot be imported without a GPU's libraries, so its class is stood in for; the names and arguments are those of 0.5.23."""

from __future__ import annotations

import abc
import ctypes
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

LAYERS, PAGE_TOKENS, TOKEN_BYTES, PAGES = 2, 16, 64, 32
HALF = LAYERS * PAGE_TOKENS * TOKEN_BYTES


class Storage(abc.ABC):
    """The calls of `HiCacheStorage`."""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        pass

    @abc.abstractmethod
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...
    @abc.abstractmethod
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any: ...
    @abc.abstractmethod
    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool: ...
    @abc.abstractmethod
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool: ...
    @abc.abstractmethod
    def exists(self, key: str) -> bool: ...


@dataclass
class Config:
    """`HiCacheStorageConfig`."""

    extra_config: dict[str, Any]
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    model_name: str = "demo"
    should_split_heads: bool = False


@dataclass
class HostPool:
    """Host memory of pages that have their keys in one place and their values in another."""

    dtype: str = "bf16"
    layout: str = "page_first_direct"
    page_size: int = PAGE_TOKENS
    memory: Any = field(default_factory=lambda: (ctypes.c_uint8 * (2 * PAGES * HALF))())

    def place(self, page: int) -> list[int]:
        start = ctypes.addressof(self.memory)
        return [start + page * HALF, start + (PAGES + page) * HALF]

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        tokens = list(indices)
        places = [at for token in tokens[:: self.page_size] for at in self.place(token // self.page_size)]
        return places, [HALF] * len(places)

    def fill(self, page: int, content: int) -> None:
        for at in self.place(page):
            ctypes.memset(at, content, HALF)

    def content(self, page: int) -> set[int]:
        return {byte for at in self.place(page) for byte in ctypes.string_at(at, HALF)}


def tokens(*pages: int) -> list[int]:
    return [page * PAGE_TOKENS + token for page in pages for token in range(PAGE_TOKENS)]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    module.HiCacheStorage = Storage  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in [name for name in sys.modules if name.startswith("cenote.sglang")]:
        monkeypatch.delitem(sys.modules, name)
    from cenote.sglang import storage

    monkeypatch.setattr(storage, "_as_tensor", list)
    yield storage
    for name in [name for name in sys.modules if name.startswith("cenote.sglang")]:
        del sys.modules[name]


def server(backend: Any, region: str, weights: str = "first", **config: Any) -> tuple[Any, HostPool]:
    extra = {"backend_name": "cenote", "module_path": "cenote.sglang", "class_name": "CenoteStorage", "interface_v1": 1}
    extra["model_fingerprint"] = weights
    storage, pool = backend.CenoteStorage(Config(extra | {"region": region}, **config), {}), HostPool()
    storage.register_mem_pool_host(pool)
    return storage, pool


def test_one_servers_pages_are_the_others(backend: Any, region: Any) -> None:
    left, theirs = server(backend, region.name)
    right, ours = server(backend, region.name)
    keys = ["a", "b", "c", "d"]
    for page in range(3):
        theirs.fill(page, page + 1)
    assert left.batch_set_v1(keys[:3], tokens(0, 1, 2)) == [True] * 3
    assert right.batch_exists(keys) == 3
    assert right.batch_get_v1(keys, tokens(9, 5, 7, 3)) == [True, True, True, False]
    assert [ours.content(page) for page in (9, 5, 7, 3)] == [{1}, {2}, {3}, {0}]
    assert left.batch_set_v1(keys[:3], tokens(0, 1, 2)) == [True] * 3, "what is there is stored"
    right.clear()
    assert (left.exists("a"), left.batch_exists(keys)) == (False, 0)
    left.close()
    right.close()


def test_ranks_and_models_share_nothing(backend: Any, region: Any) -> None:
    first, pool = server(backend, region.name, tp_rank=0, tp_size=2)
    pool.fill(0, 7)
    assert first.batch_set_v1(["a"], tokens(0)) == [True]
    for other in ({"tp_rank": 1, "tp_size": 2}, {"model_name": "other"}, {"pp_size": 2}, {"weights": "other"}):
        assert server(backend, region.name, **other)[0].batch_exists(["a"]) == 0
    latent = {"is_mla_model": True, "tp_size": 2}
    assert server(backend, region.name, tp_rank=0, **latent)[0].batch_set_v1(["a"], tokens(0)) == [True]
    assert server(backend, region.name, tp_rank=1, **latent)[0].batch_exists(["a"]) == 1


def test_faults_are_misses(backend: Any, region: Any) -> None:
    storage, _ = server(backend, region.name)
    assert storage.batch_get_v1(["a", "b"], tokens(0)) == [False, False], "nothing is there, so nothing is asked for"
    assert storage.batch_set_v1(["a", "b", "c"], tokens(0)) == []
    assert storage.get("a") is None
    storage.close()
    assert storage.batch_exists(["a"]) == 0
    assert storage.exists("a") is False
    assert storage.errors >= 4


def test_what_cannot_work_is_refused(backend: Any, region: Any) -> None:
    with pytest.raises(ValueError, match="no region"):
        backend.CenoteStorage(Config({}), {})
    with pytest.raises(ValueError, match="unknown regoin"):
        backend.CenoteStorage(Config({"regoin": "x"}), {})
    with pytest.raises(ValueError, match="mamba"):
        server(backend, region.name)[0].register_mem_host_pool_v2(HostPool(), "mamba")
    with pytest.raises(ValueError, match="split"):
        server(backend, region.name, should_split_heads=True)
    with pytest.raises(ValueError, match=r"extra-config: name the weights, by one of .model_folder."):
        backend.CenoteStorage(Config({"region": region.name}), {})


@pytest.mark.parametrize("given", [{"enable_lora": True}, {"lora_paths": ["a=b"]}])
def test_a_server_with_adapters_is_refused(
    backend: Any, region: Any, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    module = types.ModuleType("sglang.srt.server_args")
    module.get_global_server_args = lambda: types.SimpleNamespace(**given)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ValueError, match="LoRA adapters"):
        server(backend, region.name)
