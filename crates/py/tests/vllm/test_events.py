"""KV events of the region, through vLLM's own publisher."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
from engines import BLOCK, Child, Engine, in_child
from router import Router
from vllm.config import KVEventsConfig

import cenote

PROMPT = 10 * BLOCK + 5


def answers(pipe: Connection, model: str, region: str, told: KVEventsConfig) -> None:
    """An instance with a router. It answers prompts until it receives None."""
    engine = Engine(model, region, kv_events_config=told)
    while True:
        pipe.send(("said", "ready"))
        if (prompt := pipe.recv()) is None:
            return
        engine.forget()
        engine.ask(prompt, 2)


def stores(_: Connection, model: str, region: str, prompts: list[list[int]]) -> None:
    """An instance without a router."""
    engine = Engine(model, region)
    for prompt in prompts:
        engine.ask(prompt, 2)


def of_type(kind: str, count: int) -> Callable[[list[dict[str, Any]]], bool]:
    """A condition: events of this type have at least `count` blocks."""
    return lambda events: sum(len(event["block_hashes"]) for event in events if event["type"] == kind) >= count


def test_a_router_gets_the_stored_and_evicted_blocks_of_others(tiny: str, small_region: str, tmp_path: Path) -> None:
    prompt = models.prompt(PROMPT, 1)
    in_child(stores, tiny, small_region, [prompt])
    with Router(tmp_path) as router:
        instance = Child(answers, tiny, small_region, router.config)
        assert instance.receive() == "ready"
        # Blocks of others are published once this instance knows the tokens.
        instance.send(prompt)
        assert instance.receive() == "ready"
        stored = router.events("CENOTE", of_type("BlockStored", 10))
        assert {event["type"] for event in stored} == {"BlockStored"}
        assert [token for event in stored for token in event["token_ids"]] == prompt[: 10 * BLOCK]
        assert {event["block_size"] for event in stored} == {BLOCK}
        assert stored[0]["parent_block_hash"] is None
        # The names equal those of vLLM's own events.
        own = router.events("GPU", of_type("BlockStored", 10))
        names = [name for event in stored for name in event["block_hashes"]]
        assert names == [name for event in own if event["type"] == "BlockStored" for name in event["block_hashes"]]
        # More blocks than the region has room for evict the published ones.
        in_child(stores, tiny, small_region, [models.prompt(2000, 100 + number) for number in range(5)])
        # An instance publishes at the end of a step. This prompt fills no block.
        instance.send(models.prompt(BLOCK // 2, 2))
        assert instance.receive() == "ready"
        heard = router.events("CENOTE", of_type("BlockRemoved", 10))[len(stored) :]
        assert {event["type"] for event in heard} == {"BlockRemoved"}
        assert sorted(name for event in heard for name in event["block_hashes"]) == sorted(names)
        instance.send(None)
        instance.receive()
        instance.end()


def test_events_of_the_region_have_vllms_block_names(tiny: str, region: str) -> None:
    in_child(lambda _: Engine(tiny, region).ask(models.prompt(PROMPT, 4), 2).tokens)
    with cenote.Region.open(region) as look:
        events, resync = look.follow().poll()
    assert (len(events), resync) == (10, "begun")
    names = {depth: (name, parent) for kind, _, _, name, parent, depth in events if kind == "stored"}
    assert names[0][1] == 0
    assert all(names[depth][1] == names[depth - 1][0] != 0 for depth in range(1, 10))
