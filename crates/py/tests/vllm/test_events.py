"""What vLLM's own publisher tells a router of the region."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import models
import msgspec
import zmq
from engines import BLOCK, Child, Engine, in_child
from vllm.config import KVEventsConfig

PROMPT = 10 * BLOCK + 5


def told(pipe: Connection, model: str, region: str, endpoint: str, prompt: list[int]) -> None:
    """An instance with a router: it is asked, and once more when others have done something."""
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint)
    engine = Engine(model, region, kv_events_config=events)
    engine.ask(prompt, 2)
    while True:
        pipe.send(("said", "asked"))
        if (other := pipe.recv()) is None:
            return
        engine.ask(other, 2)


def roll_out(_: Connection, model: str, region: str) -> None:
    """Another instance gets new weights: what the region has of the model goes."""
    engine = Engine(model, region)
    assert engine.llm.reset_prefix_cache(reset_connector=True)


def of_region(socket: Any) -> list[dict[str, Any]]:
    """Events of the region that have arrived, until none has for a second."""
    events = []
    while socket.poll(1000):
        _, _, batch = socket.recv_multipart()
        events += [event for event in msgspec.msgpack.decode(batch)[1] if event.get("medium") == "CENOTE"]
    return events


def test_a_router_is_told_what_others_evict(tiny: str, region: str) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.bind("tcp://127.0.0.1:*")
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT).decode()
    prompt = models.prompt(PROMPT, 1)
    instance = Child(told, tiny, region, endpoint, prompt)
    try:
        assert instance.receive() == "asked"
        stored = of_region(socket)
        assert {event["type"] for event in stored} == {"BlockStored"}
        assert [token for event in stored for token in event["token_ids"]] == prompt[: 10 * BLOCK]
        hashes = [name for event in stored for name in event["block_hashes"]]
        assert len(set(hashes)) == 10
        assert stored[0]["parent_block_hash"] is None
        assert {event["block_size"] for event in stored} == {BLOCK}
        # What another instance stores is told of when this one knows its tokens: when it is asked the same.
        theirs = models.prompt(PROMPT, 2)
        in_child(lambda _: Engine(tiny, region).ask(theirs, 2).tokens)
        instance.send(theirs)
        assert instance.receive() == "asked"
        second = of_region(socket)
        assert [token for event in second for token in event["token_ids"]] == theirs[: 10 * BLOCK]
        hashes += [name for event in second for name in event["block_hashes"]]
        in_child(roll_out, tiny, region)
        # An instance tells at the end of a step.
        instance.send(models.prompt(BLOCK - 1, 3))
        assert instance.receive() == "asked"
        removed = of_region(socket)
        assert {event["type"] for event in removed} == {"BlockRemoved"}
        assert sorted(name for event in removed for name in event["block_hashes"]) == sorted(hashes)
        instance.send(None)
    finally:
        instance.end()
        context.destroy(linger=0)


def test_the_region_is_named_as_vllm_names_blocks(tiny: str, region: str) -> None:
    import cenote

    began = time.monotonic()
    in_child(lambda _: Engine(tiny, region).ask(models.prompt(PROMPT, 4), 2).tokens)
    with cenote.Region.open(region) as look:
        events, resync = look.follow().poll()
    assert (len(events), resync) == (10, "begun"), f"after {time.monotonic() - began:.0f} s"
    names = {depth: (name, parent) for kind, _, _, name, parent, depth in events if kind == "stored"}
    assert names[0][1] == 0
    assert all(names[depth][1] == names[depth - 1][0] != 0 for depth in range(1, 10))
