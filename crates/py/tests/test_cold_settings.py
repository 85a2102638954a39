"""The settings `cold` and `peers` of the engines' plug-ins, without the engines.

Modules of vLLM and SGLang are stand-ins without content. The tests in `tests/vllm` and `tests/sglang`
run with the engines."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sharing import Share, connected, create, key_file
from waiting import PATIENCE

import cenote

PAGE = 16 << 10
# Packages that the tests do without.
_ABSENT = ("vllm", "sglang", "huggingface_hub", "torch", "numpy")


class _Anything:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def register_mem_pool_host(self, pool: Any) -> None:
        pass

    @classmethod
    def empty(cls) -> Any:
        return cls()


class _Module(types.ModuleType):
    """Any name that is imported from it is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Anything,), {})


class _StandIns(MetaPathFinder, Loader):
    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes modules of `cenote.ENGINE` importable without the engine."""

    def forgotten() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] in _ABSENT or name.startswith(("cenote.vllm", "cenote.sglang"))]:
            del sys.modules[name]

    def make(engine: str) -> None:
        forgotten()
        monkeypatch.setattr(sys, "meta_path", [_StandIns(*_ABSENT), *sys.meta_path])
        # The package's own module checks the engine's version.
        package = types.ModuleType(f"cenote.{engine}")
        assert cenote.__file__ is not None
        package.__path__ = [str(Path(cenote.__file__).parent / engine)]
        sys.modules[package.__name__] = package

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in _ABSENT}
    yield make
    forgotten()
    sys.modules.update(before)


def test_vllm_reads_the_setting(plug_in: Callable[[str], None]) -> None:
    plug_in("vllm")
    from cenote.vllm.settings import Settings

    assert Settings.of({"region": "shm:kv"}).cold is None
    assert Settings.of({"region": "shm:kv", "cold": "/kv,size=1GiB"}).cold == "/kv,size=1GiB"
    with pytest.raises(ValueError, match="cold is 7"):
        Settings.of({"region": "shm:kv", "cold": 7})


def test_vllm_reads_the_settings_of_peers(plug_in: Callable[[str], None]) -> None:
    plug_in("vllm")
    from cenote.start import peers_of
    from cenote.vllm.settings import Settings

    given = {"peers": "10.0.0.2:7411", "peer_key_file": "/k", "nixl": "/n"}
    assert peers_of(vars(Settings.of({"region": "shm:kv", **given}))) == given
    assert peers_of(vars(Settings.of({"region": "shm:kv"}))) == dict.fromkeys(given)
    with pytest.raises(ValueError, match="peers is 7"):
        Settings.of({"region": "shm:kv", "peers": 7})


def test_vllm_asks_again_until_the_blocks_are_there(plug_in: Callable[[str], None]) -> None:
    plug_in("vllm")
    from cenote.vllm.scheduler import SchedulerSide

    promotion = SimpleNamespace(over=False)
    begun: list[tuple[int, int]] = []

    def promote(request: Any, start: int, end: int) -> list[Any]:
        begun.append((start, end))
        return [promotion]

    counted: list[str] = []
    scheduler: Any = SimpleNamespace(
        promotes=True, promotions={}, promoted_from={}, lookup=SimpleNamespace(promote=promote), stats=SimpleNamespace(add=counted.append)
    )
    request: Any = SimpleNamespace(request_id="a")

    def asks_again(hit: int) -> bool:
        side = SchedulerSide
        return side._is_waiting(scheduler, "a") or side._promote(scheduler, request, 0, hit, 64)

    assert asks_again(16)
    assert asks_again(16)
    promotion.over = True
    assert not asks_again(16)
    # Blocks that could not be read are computed.
    promotion.over = False
    assert not asks_again(32)
    # Where the hit ended before: what lies behind it came from the tier.
    assert scheduler.promoted_from == {"a": 16}
    assert (begun, counted) == ([(0, 64)], ["cold_requests"])
    scheduler.promotes = False
    assert not SchedulerSide._promote(scheduler, SimpleNamespace(request_id="b"), 0, 0, 64)  # type: ignore[arg-type]


def test_vllm_asks_again_for_blocks_that_arrive_during_a_lookup(plug_in: Callable[[str], None]) -> None:
    """A promotion that was over when the lookup looked at it, and not when the lookup began, was a miss."""
    plug_in("vllm")
    from cenote.vllm.scheduler import SchedulerSide

    promotion = SimpleNamespace(over=False)
    arrived = {"at": "never"}

    def find(*_: Any) -> Any:
        end = 64 if promotion.over else 0
        promotion.over = promotion.over or arrived["at"] == "lookup"
        return SimpleNamespace(start=0, end=end, without_state=0, release=lambda: None)

    def promote(*_: Any) -> list[Any]:
        promotion.over = arrived["at"] == "promotion"
        return [promotion]

    for when in ("promotion", "lookup"):
        promotion.over = False
        scheduler: Any = SimpleNamespace(
            promotes=True, promotions={}, promoted_from={}, stats=SimpleNamespace(add=lambda _: None), loads=True, given_up=set(), found={},
            looked_up={}, settings=SimpleNamespace(min_blocks=1), _let_go=lambda _: None, _is_named=lambda _: True,
            lookup=SimpleNamespace(find=find, promote=promote, limit=lambda _: 64, alignment=16),
        )  # fmt: skip
        for name in ("_is_waiting", "_promote"):
            setattr(scheduler, name, getattr(SchedulerSide, name).__get__(scheduler))
        request: Any = SimpleNamespace(request_id="a", skip_reading_prefix_cache=False)
        arrived["at"] = when if when == "promotion" else "never"
        assert SchedulerSide.matched_tokens(scheduler, request, 0) == (None, False)
        arrived["at"] = when
        if when == "lookup":
            assert SchedulerSide.matched_tokens(scheduler, request, 0) == (None, False)
        assert SchedulerSide.matched_tokens(scheduler, request, 0) == (64, True), when


def test_vllm_counts_what_the_tier_did(plug_in: Callable[[str], None], name: str, tmp_path: Path) -> None:
    plug_in("vllm")
    from cenote.vllm.stats import COUNTERS, CenoteStats

    cold = f"{tmp_path}/cold,size=64MiB,deadline={PATIENCE:.0f}"
    stats: Any = CenoteStats()
    stats.reset()
    with _region(name, cold) as region:
        before = dict(region.cold or {})
        pages = region.namespace(b"model", PAGE)
        names = pages.hash_tokens(range(16 * 4), 16)
        for number in range(4):
            pages.publish(names[number], number, bytes(PAGE))
        assert region.settle_cold(PATIENCE)
        stats.add_cold(region.cold, before)
    assert stats.data == {"cold_written": 4, "cold_written_bytes": 4 * PAGE}
    assert set(stats.data) <= set(COUNTERS)
    stats.reset()
    stats.add_cold({**(before), "cold_skipped_total": 2, "cold_reads_skipped_total": 3, "cold_errors_total": 1}, before)
    assert stats.data == {"cold_skipped": 5, "cold_errors": 1}


def test_vllm_counts_what_peers_did(plug_in: Callable[[str], None], name: str, tmp_path: Path) -> None:
    plug_in("vllm")
    from cenote.vllm.stats import COUNTERS, CenoteStats

    stats: Any = CenoteStats()
    stats.reset()
    with _two_hosts(name, tmp_path) as (owner, settings), cenote.Region.open(name, **settings) as region:
        pages = owner.namespace(b"model", PAGE)
        names = pages.hash_tokens(range(16 * 5), 16)
        for number in range(4):
            pages.publish(names[number], number, bytes(PAGE))
        before = dict(connected(region).peers or {})
        promotion = region.namespace(b"model", PAGE).promote(names)
        assert promotion is not None and promotion.wait()
        stats.add_peers(region.peers, {})
        assert {f"{name}_total" for name in COUNTERS if name.startswith("remote_")} == {name for name in before if name.endswith("_total")}
    assert stats.data == {
        "remote_sought": 5, "remote_found": 4, "remote_hits": 4, "remote_absent": 1, "remote_read_bytes": 4 * PAGE, "remote_connections": 1,
    }  # fmt: skip
    stats.reset()
    stats.add_peers(before, before)
    assert stats.data == {}


@contextmanager
def _two_hosts(name: str, folder: Path) -> Iterator[tuple[cenote.Region, dict[str, str]]]:
    """Makes this host's region, and one of another host that is shared. Yields the latter, and a reader's settings."""
    far = f"{name}-far"
    try:
        for each in (name, far):
            create(each)
        key = key_file(folder)
        with cenote.Region.open(far, worker="owner") as owner, Share(far, key) as share:
            yield owner, share.settings(key)
    finally:
        Path("/dev/shm", far.removeprefix("shm:")).unlink(missing_ok=True)


def _sglang_storage(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend's module, for one model of pages of `PAGE` bytes."""
    storage: Any = importlib.import_module("cenote.sglang.storage")
    monkeypatch.setattr(storage.naming, "refuse_adapters", lambda: None)
    weights = SimpleNamespace(hold=lambda _: "model")
    monkeypatch.setattr(storage.naming, "model", lambda *_: weights)
    monkeypatch.setattr(storage.naming, "weight_version", lambda: "1")
    monkeypatch.setattr(storage.naming, "fingerprint", lambda *_: b'{"model": "demo"}')
    monkeypatch.setattr(storage, "_page_of", lambda pool: (PAGE, 1))
    return storage


def _sglang_config(extra: dict[str, str]) -> Any:
    return SimpleNamespace(
        extra_config=extra, should_split_heads=False, model_name="demo", tp_rank=0, pp_rank=0, enable_storage_metrics=False
    )


def test_sglang_finds_pages_of_another_host(
    plug_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    plug_in("sglang")
    backend = _sglang_storage(monkeypatch).CenoteStorage
    keys = [f"page {number}" for number in range(5)]
    with _two_hosts(name, tmp_path) as (owner, settings):
        pages = owner.namespace(b'{"model": "demo"}', PAGE)
        for number, alias in enumerate(pages.alias(key.encode() for key in keys[:4])):
            assert pages.publish(alias, number, bytes([number]) * PAGE) == "published"
        made = backend(_sglang_config({"region": name, **settings}))
        made.register_mem_pool_host(SimpleNamespace(page_size=16))
        assert connected(made.region).promotes
        assert made.batch_exists(keys) == 4
        assert made.region.peers["remote_hits_total"] == 4
        made.close()
        with cenote.Region.open(name) as region:
            assert region.namespace(b'{"model": "demo"}', PAGE).count(pages.alias(key.encode() for key in keys)) == 4


def test_sglang_finds_pages_of_an_earlier_region(
    plug_in: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, name: str, tmp_path: Path
) -> None:
    plug_in("sglang")
    backend = _sglang_storage(monkeypatch).CenoteStorage
    extra = {"region": name, "create_size": "64MiB", "cold": f"{tmp_path}/cold,size=64MiB,deadline={PATIENCE:.0f}"}
    config = _sglang_config(extra)
    keys = [f"page {number}" for number in range(5)]

    def joined() -> Any:
        made = backend(config)
        made.register_mem_pool_host(SimpleNamespace(page_size=16))
        assert made.region is not None and made.region.settle_cold(PATIENCE)
        return made

    first = joined()
    blocks = first.pools["kv"].blocks
    for number, alias in enumerate(first.pools["kv"].names(keys[:4])):
        assert blocks.publish(alias, number, bytes([number]) * PAGE) == "published"
    assert first.region.settle_cold(PATIENCE)
    first.close()
    Path("/dev/shm", name.removeprefix("shm:")).unlink()
    second = joined()
    assert second.pools["kv"].blocks.count(second.pools["kv"].names(keys)) == 0
    assert second.batch_exists(keys) == 4
    assert second.region.cold["cold_hits_total"] == 4
    second.close()
    with pytest.raises(ValueError, match="unknown cald"):
        backend(SimpleNamespace(**{**vars(config), "extra_config": {"region": name, "cald": "/kv"}}))


def _region(name: str, cold: str) -> cenote.Region:
    cenote.Region.create(name, "16MiB", chunk_size="256KiB", max_hosts=1, pins_per_worker=112, cold=cold)
    return cenote.Region.open(name, worker="test", cold=cold)
