"""Faults are misses to SGLang: no exception reaches scheduler or threads, and no KV is wrong."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from servers import PAGE, PAGE_BYTES, Server, extra_config, kv
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from waiting import PATIENCE

import cenote
from cenote.sglang import storage as storage_module

PAGES = 4


def prompt(number: int) -> list[int]:
    return [1000 * (number + 1) + token for token in range(PAGES * PAGE)]


class Panic(BaseException):
    """Like a panic of the compiled part, not an `Exception`."""


class Faulty:
    """A namespace that fails every call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, _name: str) -> Any:
        raise self.error


def test_every_failed_call_returns_a_miss_of_the_right_shape(region: str) -> None:
    server = Server(region)
    server.compute(prompt(0))
    storage, pages = server.storage, server.storage.pools["kv"]
    keys, indices = ["a", "b"], torch.arange(2 * PAGE)
    tensors = [torch.zeros(PAGE_BYTES // 2, dtype=torch.bfloat16) for _ in keys]
    transfers = [PoolTransfer(PoolName.MAMBA, host_indices=indices, keys=keys)]
    for error in (Panic("panicked"), RuntimeError("broken"), MemoryError()):
        storage.pools["kv"] = dataclasses.replace(pages, blocks=Faulty(error))
        before = storage.errors
        assert storage.batch_exists(keys) == 0
        assert storage.exists("a") is False
        assert storage.batch_get_v1(keys, indices) == [False, False]
        # SGLang treats `all([])` as a success.
        assert storage.batch_set_v1(keys, indices) == [False, False]
        assert storage.batch_get(keys, tensors) == [None, None]
        assert storage.batch_set(keys, tensors) is False
        assert storage.get("a", tensors[0]) is None
        assert storage.set("a", tensors[0]) is False
        assert storage.batch_exists_v2(keys).kv_hit_pages == 0
        assert storage.batch_exists_v2(keys, transfers).kv_hit_pages == 0
        assert storage.batch_get_v2(transfers) == {PoolName.MAMBA: [False, False]}
        assert storage.batch_set_v2(transfers) == {PoolName.MAMBA: [False, False]}
        assert storage.clear() is None
        assert storage.errors - before >= 12
    storage.pools["kv"] = pages
    before = storage.errors
    for odd in (None, 7, [None, None], [b"a"], ["a", 3]):
        assert storage.batch_exists(odd) == 0
        assert not any(storage.batch_get_v1(odd, indices)), odd
        stored = storage.batch_set_v1(odd, indices)
        assert stored and not any(stored), odd
    for places in (None, torch.arange(PAGE), torch.arange(4 * PAGE), torch.arange(PAGE + 1), "ab"):
        assert storage.batch_set_v1(keys, places) == [False, False]
        assert storage.batch_get_v1(keys, places) == [False, False]
    assert storage.batch_set(keys, [tensors[0][::2], tensors[1]]) is False
    assert storage.batch_set(keys, [tensors[0], tensors[1][:8]]) is False
    assert storage.batch_exists(keys) <= 1
    assert storage.errors > before
    server.forget()
    assert server.load(prompt(0)) == PAGES * PAGE, "earlier pages are intact"
    server.close()


@pytest.mark.parametrize("error", [Panic("panicked"), RuntimeError("broken")])
def test_sglangs_threads_outlive_faults(region: str, error: BaseException) -> None:
    server = Server(region)
    server.compute(prompt(0))
    pages = server.storage.pools["kv"]
    server.storage.pools["kv"] = dataclasses.replace(pages, blocks=Faulty(error))
    server.compute(prompt(1))
    server.forget()
    assert server.load(prompt(0)) == 0
    assert server.threads() == [True] * 4
    server.storage.pools["kv"] = pages
    server.compute(prompt(2))
    server.forget()
    assert [server.load(prompt(number)) for number in range(3)] == [PAGES * PAGE, 0, PAGES * PAGE]
    server.close()


def test_a_damaged_page_ends_the_prefix(region: str) -> None:
    server = Server(region)
    server.compute(prompt(0))
    server.forget()
    found = Path("/dev/shm", region.removeprefix("shm:"))
    content = found.read_bytes()
    # Flip a bit of the third page's KV in the region.
    third = kv(server, prompt(0))[0][2 * PAGE : 3 * PAGE].contiguous().view(torch.uint8).numpy().tobytes()
    at = content.index(third)
    with found.open("r+b") as file:
        file.seek(at + 5)
        file.write(bytes([content[at + 5] ^ 1]))
    assert server.load(prompt(0)) == 2 * PAGE
    server.close()


def test_a_full_region_costs_only_hits(name: str) -> None:
    cenote.Region.create(name, "2MiB", chunk_size="256KiB", min_block="4KiB", max_hosts=2, pins_per_worker=112)
    server = Server(name, size=2048)
    prompts = 60
    for number in range(prompts):
        server.compute(prompt(number))
        server.forget()
    assert server.storage.region.counters()["pool_evicted_total"] > 0
    hits = []
    for number in range(prompts):
        hits.append(server.load(prompt(number)))
        server.forget()
    assert 0 < sum(hits) < prompts * PAGES * PAGE
    assert server.threads() == [True] * 4
    server.close()


def test_a_missing_region_is_refused_and_named(name: str) -> None:
    with pytest.raises(cenote.RegionMissing, match=name.removeprefix("shm:")):
        Server(name)
    server = Server(None)
    attached, said = server.cache.attach_storage_backend("dynamic", extra_config(name), "demo")
    assert not attached
    assert name.removeprefix("shm:") in said
    attached, said = server.cache.attach_storage_backend("dynamic", extra_config(name, {"create_size": "32MiB"}), "demo")
    assert attached, said
    server.compute(prompt(0))
    server.forget()
    assert server.load(prompt(0)) == PAGES * PAGE, "attached while it runs"
    server.close()


def test_a_destroyed_region_stays_usable_by_its_workers(region: str) -> None:
    server = Server(region)
    server.compute(prompt(0))
    Path("/dev/shm", region.removeprefix("shm:")).unlink()
    server.compute(prompt(1))
    server.forget()
    assert [server.load(prompt(number)) for number in range(2)] == [PAGES * PAGE] * 2
    server.storage.region.close()
    server.forget()
    assert server.load(prompt(0)) == 0
    server.compute(prompt(2))
    assert server.threads() == [True] * 4
    assert server.storage.errors > 0
    server.close()


def test_a_batch_beyond_its_deadline_skips_its_remaining_pages(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(region)
    server.compute(prompt(0))
    monkeypatch.setattr(storage_module, "BATCH_SECONDS", 0.0)
    server.compute(prompt(1))
    server.forget()
    assert server.load(prompt(0)) == 0
    monkeypatch.undo()
    server.forget()
    assert [server.load(prompt(number)) for number in range(2)] == [PAGES * PAGE, 0]
    server.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"regoin": "shm:a"}, "unknown regoin"),
        ({"region": ""}, "no region is given"),
        ({"model_fingerprint": None}, "name the weights"),
    ],
)
def test_invalid_settings_are_refused(region: str, settings: dict[str, str | None], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Server(region, settings)


@pytest.mark.parametrize("adapters", [{"enable_lora": True}, {"lora_paths": ["a=b"]}])
def test_a_server_with_adapters_is_refused(region: str, adapters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="LoRA adapters"):
        Server(region, **adapters)


def writer(region: str, prompts: int, dies_at: str = "", dies_in: int = 0) -> subprocess.Popen[str]:
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("writer.py")), region, str(prompts), dies_at, str(dies_in)]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_pages_outlive_a_killed_writer(region: str) -> None:
    child = writer(region, 2)
    assert child.stdout is not None
    assert child.stdout.readline() == "computed\n"
    server = Server(region)
    assert [server.load(prompt(number)) for number in range(3)] == [PAGES * PAGE, PAGES * PAGE, 0]
    child.kill()
    child.wait(PATIENCE)
    server.forget()
    assert [server.load(prompt(number)) for number in range(2)] == [PAGES * PAGE] * 2, "pages outlive their writer"
    server.close()


# Two pages of a call are copied and described by nothing; or described, and the next server enters them.
@pytest.mark.parametrize(("dies_at", "dies_in", "found"), [("publish.copied", PAGES + 2, 0), ("publish.ready", PAGES + 2, 2)])
def test_a_writer_killed_within_a_prompt_leaves_only_whole_pages(region: str, dies_at: str, dies_in: int, found: int) -> None:
    child = writer(region, 3, dies_at, dies_in)
    child.communicate(timeout=PATIENCE)
    assert child.returncode == -9
    server = Server(region)
    assert server.load(prompt(0)) == PAGES * PAGE
    assert server.load(prompt(1)) == found * PAGE
    server.compute(prompt(2))
    server.forget()
    assert server.load(prompt(2)) == PAGES * PAGE
    assert server.storage.region.check(payloads=True)["is_clean"]
    server.close()
