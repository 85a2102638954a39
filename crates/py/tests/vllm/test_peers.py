"""Two hosts: the engine of one fills its region, and the engine of the other one loads the blocks from there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines import BLOCK, Answer, Engine, in_child
from models import prompt
from sharing import Reads, Share, connected, create, key_file
from test_groups import full, groups
from waiting import until

import cenote
from cenote.hits import alignment
from cenote.vllm.names import RequestNames
from cenote.vllm.scheduler import SchedulerSide
from cenote.vllm.settings import Settings
from cenote.vllm.stats import CenoteStats
from cenote.weights import Weights

FULL, PAGE = 8, 16 << 10


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """The regions of two hosts with equal hash seeds."""
    names = [f"cenote-vllm-{os.getpid()}-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        create(f"shm:{name}", "256MiB", "16MiB")
    yield f"shm:{names[0]}", f"shm:{names[1]}"
    for name in names:
        Path("/dev/shm", name).unlink(missing_ok=True)


def asks(_: Any, model: str, region: str, settings: dict[str, str]) -> tuple[Answer, dict[str, int]]:
    """The answer to a prompt, once all peers answer, and the counters of peers."""
    engine = Engine(model, region, connector=settings)
    opened = region_of(engine)
    if settings:
        connected(opened)
    return saved(engine), opened.peers or {}


def region_of(engine: Engine) -> cenote.Region:
    """The region of the scheduler's side."""
    region: cenote.Region = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector._shards.region
    return region


def saved(engine: Engine) -> Answer:
    """The answer to a prompt, once the region has all blocks of the prompt."""
    answer = engine.ask(prompt(FULL * BLOCK + 5, 1))
    until("the prompt's blocks", lambda: region_of(engine).info()["blocks_ready"] >= FULL)
    return answer


def test_an_engine_loads_the_blocks_of_another_host(tiny: str, hosts: tuple[str, str], tmp_path: Path) -> None:
    far, near = hosts
    key = key_file(tmp_path)
    cold, _ = in_child(asks, tiny, far, {})
    with Share(far, key) as share:
        warm, peers = in_child(asks, tiny, near, share.settings(key))
    assert (cold.cached, warm.cached) == (0, FULL * BLOCK), peers
    assert warm.tokens == cold.tokens
    assert peers["remote_hits_total"] == FULL
    # The copies are this host's now.
    again, peers = in_child(asks, tiny, near, {})
    assert (again.cached, again.tokens, peers) == (FULL * BLOCK, cold.tokens, {})


def asks_without(_: Any, model: str, region: str, settings: dict[str, str]) -> tuple[Answer, str | None]:
    """The answer to a prompt while no peer answers, and the peer's error."""
    engine = Engine(model, region, connector=settings)
    return saved(engine), region_of(engine).peers_error


def test_a_peer_that_is_gone_costs_a_miss(tiny: str, hosts: tuple[str, str], tmp_path: Path) -> None:
    far, near = hosts
    key = key_file(tmp_path)
    with Share(far, key) as share:
        settings = share.settings(key)
    answer, error = in_child(asks_without, tiny, near, settings)
    assert answer.cached == 0
    assert error is not None and share.address in error
    again, _ = in_child(asks, tiny, near, {})
    assert (again.cached, again.tokens) == (FULL * BLOCK, answer.tokens)


def test_a_request_waits_for_the_parts_of_all_ranks(hosts: tuple[str, str], tmp_path: Path) -> None:
    far, near = hosts
    key, parts = key_file(tmp_path), groups(full())
    ranks = [b"rank 0", b"rank 1"]
    hashes = [number.to_bytes(32, "big") for number in range(FULL)]
    with cenote.Region.open(far) as owner:
        for rank in (owner.namespace(identity, PAGE) for identity in ranks):
            for depth, name in enumerate(rank.alias(hashes)):
                assert rank.publish(name, depth, bytes(PAGE)) == "published"
    with Reads() as reads, Share(far, key) as share, cenote.Region.open(near, **share.settings(key)) as region:
        names: Any = RequestNames(SimpleNamespace(lora_config=None))  # type: ignore[arg-type]
        shards: Any = SimpleNamespace(
            settings=Settings.of({"region": near}), weights=Weights(), names=names, groups=parts, region=connected(region),
            alignment=alignment([group.reach for group in parts]), has_all_groups=True,
        )  # fmt: skip
        side = SchedulerSide(shards, CenoteStats(), loads=True, saves=False, events=False)
        side.lookup.ranks = [[region.namespace(identity, PAGE) for identity in ranks]]
        tokens = FULL * parts[0].block_tokens
        request: Any = SimpleNamespace(
            request_id="r", num_tokens=tokens + 1, block_hashes=hashes, lora_request=None, mm_features=[],
            skip_reading_prefix_cache=False, num_prompt_tokens=tokens + 1, num_output_tokens=0,
        )  # fmt: skip
        reads.hold()
        assert side.matched_tokens(request, 0) == (None, False)
        assert side.matched_tokens(request, 0) == (None, False), "vLLM asks again, and goes on with other requests"
        reads.hold(False)
        assert until("the blocks", lambda: side.matched_tokens(request, 0)[0]) == tokens
        assert region.peers is not None and region.peers["remote_hits_total"] == len(ranks) * FULL
        side.finished(request)


def fails(_: Any, model: str, region: str, settings: dict[str, str]) -> str:
    try:
        Engine(model, region, connector=settings)
    except Exception as error:
        return str(error)
    return "it started"


def test_a_key_that_cannot_be_read_ends_the_start(tiny: str, hosts: tuple[str, str]) -> None:
    said = in_child(fails, tiny, hosts[1], {"peers": "127.0.0.1:1", "peer_key_file": "/nowhere/key"})
    assert "peer key" in said and "/nowhere/key" in said
