"""What a request counts as: hits once it is admitted, and cached tokens without those that are computed again."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sysconfig
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import made
from engines import BLOCK, Answer, Engine, in_child
from models import prompt
from test_groups import full, groups, mamba, sliding
from vllm.v1.metrics.stats import PrefillStats
from waiting import PATIENCE, until

import cenote
from cenote.hits import alignment
from cenote.vllm.differences import count_as_computed
from cenote.vllm.misses import WAITING, Miss, MissLog
from cenote.vllm.names import RequestNames
from cenote.vllm.scheduler import SchedulerSide
from cenote.vllm.settings import Settings
from cenote.vllm.stats import CenoteStats
from cenote.weights import Weights

PAGE, SIZE, BLOCKS = 4096, 32, 6


@pytest.fixture
def region() -> Iterator[cenote.Region]:
    name = f"cenote-counts-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    cenote.Region.create(f"shm:{name}", "32MiB", chunk_size="256KiB", min_block="4KiB")
    with cenote.Region.open(f"shm:{name}") as opened:
        yield opened
        assert opened.check()["pinned"] == 0
    Path("/dev/shm", name).unlink()


@pytest.fixture
def region_name() -> Iterator[str]:
    yield from made("256MiB", "16MiB")


class Side:
    """A scheduler side without an engine, and a request of `BLOCKS` blocks that are in the region."""

    def __init__(self, region: cenote.Region, *specs: Any, **settings: Any) -> None:
        parts = groups(*specs)
        names: Any = RequestNames(SimpleNamespace(lora_config=None))  # type: ignore[arg-type]
        shards: Any = SimpleNamespace(
            settings=Settings.of({"region": "shm:none", **settings}), weights=Weights(), names=names, groups=parts,
            alignment=alignment([group.reach for group in parts]), has_all_groups=True, region=region,
        )  # fmt: skip
        self.stats = CenoteStats()
        self.side = SchedulerSide(shards, self.stats, loads=True, saves=False, events=False)
        self.side.manager = SimpleNamespace(block_pool=SimpleNamespace(null_block=SimpleNamespace(block_id=0)))  # type: ignore[assignment]
        self.side.lookup.ranks = [[region.namespace(f"{id(self)} {group.number}".encode(), PAGE)] for group in parts]
        hashes = [number.to_bytes(32, "big") for number in range(BLOCKS)]
        for [rank] in self.side.lookup.ranks:
            for depth, name in enumerate(rank.alias(hashes)):
                assert rank.publish(name, depth, bytes(PAGE)) == "published"
        self.request: Any = SimpleNamespace(
            request_id="r", num_tokens=BLOCKS * SIZE + 1, block_hashes=hashes, lora_request=None, mm_features=[],
            skip_reading_prefix_cache=False, num_prompt_tokens=BLOCKS * SIZE + 1, num_output_tokens=0,
        )  # fmt: skip
        self.blocks: Any = SimpleNamespace(get_block_ids=lambda: tuple(list(range(1, BLOCKS + 1)) for _ in parts))

    def ask(self) -> int | None:
        return self.side.matched_tokens(self.request, 0)[0]


def removed_by(side: Side, cause: str) -> None:
    """Makes the region lack a block of the request."""
    [[rank]] = side.side.lookup.ranks
    if cause == "forgotten":
        rank.forget()
    else:
        # The prompt has another block there, which no engine has computed.
        side.request.block_hashes = [*side.request.block_hashes[:3], bytes([7]) * 32, *side.request.block_hashes[4:]]


@pytest.mark.parametrize(("cause", "hit"), [("forgotten", 0), ("unknown", 3)])
def test_a_miss_is_explained_and_counted_by_its_reason(region: cenote.Region, cause: str, hit: int) -> None:
    side = Side(region, full(), log_misses=True)
    removed_by(side, cause)
    assert side.ask() == hit * SIZE
    side.side.allocated(side.request, side.blocks, hit * SIZE)
    assert side.side.misses is not None
    side.side.misses.close(PATIENCE)
    assert side.side.misses.take() == {cause: 1}
    side.side._forget("r")
    # Nothing is asked of a request that finds all.
    other = Side(region, full(), log_misses=True)
    assert other.ask() == BLOCKS * SIZE
    other.side.allocated(other.request, other.blocks, BLOCKS * SIZE)
    assert other.side.misses is not None
    assert other.side.misses.take() == {}
    other.side._forget("r")


def test_the_command_explains_a_request_from_the_log(
    region: cenote.Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = logging.Handler()
    written.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    lines: list[str] = []
    logger = logging.getLogger("vllm.cenote.misses")
    monkeypatch.setattr(logger, "handlers", [written])
    logger.setLevel(logging.INFO)
    side = Side(region, full(), log_misses=True)
    side.request.request_id = 'cmpl-\u00e9"1-0-1a2b3c4d'
    removed_by(side, "forgotten")
    # vLLM has the first two blocks itself, and the cold tier brought none.
    assert side.side.matched_tokens(side.request, 2 * SIZE)[0] == 0
    side.side.allocated(side.request, side.blocks, 0)
    assert side.side.misses is not None
    side.side.misses.close(PATIENCE)
    side.side._forget(side.request.request_id)
    log = tmp_path / "vllm.log"
    log.write_text("".join(f"(EngineCore_DP0 pid=7) INFO 11-27 04:46:33 [misses.py:120] {line}\n" for line in lines))
    command = Path(sysconfig.get_path("scripts"), "cenote")
    flags = ["pool", "explain", "--json", "--region", region.name, "--log-file", str(log)]
    ran = subprocess.run([command, *flags, "--request", 'cmpl-\u00e9"1'], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran
    [miss] = json.loads(ran.stdout)["misses"]
    [[rank]] = side.side.lookup.ranks
    assert {key: miss[key] for key in ("blocks", "found", "own", "fetched", "reason", "model")} == {
        "blocks": BLOCKS, "found": 2, "own": 2, "fetched": 0, "reason": "forgotten", "model": rank.id,
    }  # fmt: skip
    assert miss["hash"] == rank.alias(side.request.block_hashes)[2].hex()
    assert (miss["now"]["state"], miss["now"]["cause"]) == ("removed", "forgotten")


def test_misses_that_find_no_room_are_counted_as_unexplained() -> None:
    """A region that cannot be read is no reason to wait, or to fail."""
    asked = MissLog()
    gate, inside = threading.Event(), threading.Event()

    class Stuck:
        id = 0

        def removed(self, _: object) -> list[None]:
            inside.set()
            assert gate.wait(PATIENCE)
            raise RuntimeError("the region is gone")

    miss: Any = Miss("r", 1, 0, 0, 0, 0.0, Stuck(), cenote.Hashes.frombytes(b"1" * 16))  # type: ignore[arg-type]
    asked.ask(miss)
    assert inside.wait(PATIENCE)
    for _ in range(WAITING + 3):
        asked.ask(miss)
    assert asked.take() == {"unexplained": 3}
    gate.set()
    came: Counter[str] = Counter()

    def all_known() -> bool:
        came.update(asked.take())
        return came.total() > WAITING

    until("a reason for each of them", all_known)
    assert came == {"unexplained": WAITING + 1}
    asked.close(PATIENCE)


def test_a_request_that_waits_to_be_admitted_counts_once(region: cenote.Region) -> None:
    """Each poll of a request that waited for vLLM's own blocks counted as another lookup, and as another hit."""
    side = Side(region, full())
    assert [side.ask() for _ in range(5)] == [BLOCKS * SIZE] * 5
    assert side.stats.data == {}
    side.side.allocated(side.request, side.blocks, BLOCKS * SIZE)
    side.side.allocated(side.request, side.blocks, 0)
    assert side.stats.data == {"lookup_blocks": BLOCKS, "stateless_blocks": 0, "hit_blocks": BLOCKS}
    [order] = side.side.take_loads()
    assert sum(len(part.block_ids) for part in order.parts) == BLOCKS
    side.side._forget("r")


def test_a_request_that_is_never_admitted_counts_nothing(region: cenote.Region) -> None:
    side = Side(region, full())
    side.ask()
    side.side.finished(side.request)
    side.side._forget("r")
    side.side.allocated(side.request, side.blocks, 0)
    assert side.stats.data == {}


def test_blocks_that_vllm_takes_from_elsewhere_are_no_hits(region: cenote.Region) -> None:
    side = Side(region, full())
    side.ask()
    side.side.allocated(side.request, side.blocks, 0)
    assert side.stats.data == {"lookup_blocks": BLOCKS, "stateless_blocks": 0}
    few = Side(region, full(), min_blocks=BLOCKS + 1)
    assert few.ask() == 0
    few.side.allocated(few.request, few.blocks, 0)
    assert few.stats.data == {"lookup_blocks": BLOCKS, "stateless_blocks": 0}


@pytest.mark.parametrize("specs", [[full()], [full(), sliding(64)], [mamba()]])
def test_hits_are_at_most_the_blocks_that_are_ordered(region: cenote.Region, specs: list[Any]) -> None:
    side = Side(region, *specs)
    assert side.ask() == BLOCKS * SIZE
    side.side.allocated(side.request, side.blocks, BLOCKS * SIZE)
    [order] = side.side.take_loads()
    assert 0 < side.stats.data["hit_blocks"] <= sum(len(part.block_ids) for part in order.parts)
    side.side._forget("r")


@pytest.mark.parametrize(
    ("computed", "cached"), [(300, (64, 200)), (264, (64, 200)), (200, (64, 136)), (64, (64, 0)), (32, (32, 0)), (0, (0, 0))]
)
def test_tokens_that_are_computed_again_are_not_cached(computed: int, cached: tuple[int, int]) -> None:
    stats = PrefillStats()
    stats.set(400, 64, 200)
    request = SimpleNamespace(num_computed_tokens=computed, prefill_stats=stats)
    count_as_computed(request)
    assert (stats.num_local_cached_tokens, stats.num_external_cached_tokens) == cached
    assert (stats.num_cached_tokens, stats.num_computed_tokens) == (sum(cached), 400 - sum(cached))
    count_as_computed(SimpleNamespace(num_computed_tokens=0, prefill_stats=None))
    older = SimpleNamespace(num_computed_tokens=32, num_cached_tokens=264)
    count_as_computed(older)
    assert older.num_cached_tokens == 32


def asks(_: Any, model: str, region: str | None) -> Answer:
    return Engine(model, region).ask(prompt(8 * BLOCK + 5, 1))


@pytest.mark.parametrize("every", [1, 3])
def test_damaged_blocks_are_not_cached_tokens(tiny: str, region_name: str, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """All blocks of a hit were damaged and computed again, and `cached_tokens` still had them."""
    cold = in_child(asks, tiny, region_name)
    monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", str(every))
    warm = in_child(asks, tiny, region_name)
    assert warm.tokens == cold.tokens
    # Every block fails, or each third one: blocks after a failed one are computed.
    assert warm.cached <= (every - 1) * BLOCK
