"""Events of a region in vLLM's wire format, received by a subscriber."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL
from waiting import PATIENCE, ManualTime, until

import cenote

zmq = pytest.importorskip("zmq")
msgspec = pytest.importorskip("msgspec")


PAGE = 4096


def publish(blocks: cenote.Namespace, names: cenote.Hashes, numbers: range) -> None:
    for number in numbers:
        assert blocks.publish(names[number], number, bytes(PAGE), name=100 + number, parent=99 + number) == "published"


def subscriber(context: Any, publisher: Any, topic: bytes = b"") -> Any:
    """A socket that subscribes to all later batches."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    socket.connect(publisher.socket.getsockopt(zmq.LAST_ENDPOINT).decode())
    return socket


def received(socket: Any) -> list[bytes]:
    assert socket.poll(1000 * PATIENCE), "nothing came"
    return socket.recv_multipart()  # type: ignore[no-any-return]


def test_a_reclaimed_row_has_the_name_of_its_new_model(region: cenote.Region, name: str) -> None:
    """A publisher that kept the names of rows reported the block size of a model that was gone."""
    from cenote.events import Events

    events = Events(region)
    with cenote.Region.open(name, worker="first") as other:
        blocks = other.namespace(b"first", PAGE, label="first", block_tokens=16)
        publish(blocks, blocks.hash_tokens(list(range(16)), 16), range(1))
        assert [event.get("block_size") for event in events.take()] == [None, 16]
        blocks.forget()
        assert [event["type"] for event in events.take()] == ["BlockRemoved"]
    first = region.namespaces()[0]
    number = 0
    while region.namespaces()[0]["fingerprint"] == first["fingerprint"]:
        assert number < 600, "the table has 256 rows"
        with cenote.Region.open(name, worker="next") as other:
            other.namespace(b"next %d" % number, PAGE, label="next", block_tokens=32)
        number += 1
    with cenote.Region.open(name, worker="last") as other:
        blocks = other.namespace(b"next %d" % (number - 1), PAGE, label="next", block_tokens=32)
        publish(blocks, blocks.hash_tokens(list(range(32)), 32), range(1))
        assert [event["block_size"] for event in events.take()] == [32]


def test_a_subscriber_gets_batches_in_vllms_format(region: cenote.Region, manual_time: ManualTime) -> None:
    from cenote.events import END, Events, Publisher

    blocks = region.namespace(b"model", PAGE, label="model", block_tokens=16)
    names = blocks.hash_tokens(list(range(64)), 16)
    publish(blocks, names, range(2))
    publisher = Publisher(Events(region), "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", topic="kv")
    context = zmq.Context()
    try:
        socket = subscriber(context, publisher, b"kv")
        # A late subscriber requests the missed batches.
        assert publisher.step() == 3
        asking = context.socket(zmq.DEALER)
        asking.connect(publisher.replay.getsockopt(zmq.LAST_ENDPOINT).decode())
        asking.send_multipart([b"", (0).to_bytes(8, "big")])

        def is_answered() -> bool:
            publisher.step()
            return bool(asking.poll(0))

        until("the replay", is_answered)
        _, topic, number, batch = received(asking)
        assert (topic, number) == (b"kv", (0).to_bytes(8, "big"))
        when, events, rank = msgspec.msgpack.decode(batch)
        assert (when, rank) == (manual_time.began, 0)
        assert events[0] == {"type": "AllBlocksCleared"}
        assert events[1:] == [
            {
                "type": "BlockStored", "block_hashes": [100 + number], "parent_block_hash": 99 + number, "token_ids": [],
                "block_size": 16, "lora_id": None, "medium": "CENOTE", "lora_name": None,
            }
            for number in range(2)
        ]  # fmt: skip
        assert received(asking) == [b"", b"", END, b""]
        # A subscription arrives late, so publish new events until the socket has a batch.
        def is_subscribed() -> bool:
            blocks.forget()
            assert publisher.step() == 2
            publish(blocks, names, range(2))
            assert publisher.step() == 2
            return bool(socket.poll(0))

        until("a batch", is_subscribed)
        topic, number, batch = received(socket)
        assert topic == b"kv"
        # The subscription may have arrived before the first batch.
        first = {"AllBlocksCleared"} if int.from_bytes(number, "big") == 0 else set()
        assert {event["type"] for event in msgspec.msgpack.decode(batch)[1]} <= {"BlockStored", "BlockRemoved"} | first
    finally:
        context.destroy(linger=0)
        publisher.close()


def test_a_block_of_several_ranks_is_published_when_all_have_it(region: cenote.Region) -> None:
    from cenote.events import Events

    ranks = [region.namespace(f"rank {rank}".encode(), PAGE, label=f"m 0.{rank}", block_tokens=16) for rank in range(2)]
    other = region.namespace(b"other", PAGE, label="other", block_tokens=16)
    events = Events(region, ["m 0.0", "m 0.1"])
    assert events.take() == [{"type": "AllBlocksCleared"}]
    names = [rank.hash_tokens(list(range(64)), 16) for rank in (*ranks, other)]
    publish(ranks[0], names[0], range(2))
    publish(other, names[2], range(3))
    assert events.take() == []
    publish(ranks[1], names[1], range(1))
    assert [(event["type"], event["block_hashes"]) for event in events.take()] == [("BlockStored", [100])]
    ranks[0].forget()
    assert [(event["type"], event["block_hashes"]) for event in events.take()] == [("BlockRemoved", [100])]


def test_packed_values_decode_with_msgspec() -> None:
    from cenote.events import packed

    for value in (
        0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, None, True, False, 1.5, "", "é" * 15, "x" * 31,
        "x" * 32, "x" * 256, "x" * 70_000, [], [1] * 15, [1] * 16, [None] * 70_000, {}, {"a": [{"b": 1}]},
        {str(number): number for number in range(16)},
    ):  # fmt: skip
        assert msgspec.msgpack.decode(packed(value)) == value
    with pytest.raises(TypeError):
        packed(-1)


class Indexed:
    """What llm-d's index does with events (`pkg/kvevents` of llm-d-router): it knows a block's name from an engine's
    event with tokens, ignores events of other names, drops those with an unknown parent, and counts stores of a name."""

    def __init__(self, known: set[int]) -> None:
        self.known, self.stores = known, dict[int, int]()

    def take(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            match event["type"]:
                case "AllBlocksCleared":
                    self.stores.clear()
                case "BlockStored":
                    [name] = event["block_hashes"]
                    parent = event["parent_block_hash"]
                    if name in self.known and (parent is None or parent in self.known):
                        self.stores[name] = self.stores.get(name, 0) + 1
                case "BlockRemoved":
                    [name] = event["block_hashes"]
                    self.stores[name] = self.stores.get(name, 0) - 1
                    if self.stores[name] <= 0:
                        del self.stores[name]


def test_a_router_that_learns_a_name_late_is_told_again(region: cenote.Region) -> None:
    from cenote.events import Events

    blocks = region.namespace(b"model", PAGE, label="m", block_tokens=16)
    names = blocks.hash_tokens(list(range(64)), 16)
    events, index = Events(region, medium="SHARED", parents=False), Indexed({100, 102})
    publish(blocks, names, range(3))
    first = events.take()
    assert {event["medium"] for event in first[1:]} == {"SHARED"}
    index.take(first)
    assert index.stores == {100: 1, 102: 1}, "an event whose predecessor is unknown counts"
    index.known.add(101)
    index.take(events.take())
    assert index.stores == {100: 1, 102: 1}, "events are differences"
    for _ in range(3):
        index.take(events.again())
        assert index.stores == {100: 1, 101: 1, 102: 1}
    blocks.forget()
    index.take(events.take())
    assert index.stores == {}, "one removal ends what was announced several times"
    assert events.again() == [{"type": "AllBlocksCleared"}]


def test_the_publisher_announces_again_after_some_time(region: cenote.Region, manual_time: ManualTime) -> None:
    from cenote.events import Events, Publisher

    blocks = region.namespace(b"model", PAGE, label="m", block_tokens=16)
    publish(blocks, blocks.hash_tokens(list(range(32)), 16), range(2))
    publisher = Publisher(Events(region), "tcp://127.0.0.1:*", refresh=3600)
    try:
        assert [publisher.step(), publisher.step()] == [3, 0]
        manual_time.advance(3599)
        assert publisher.step() == 0
        manual_time.advance(1)
        assert [publisher.step(), publisher.step()] == [3, 0]
    finally:
        publisher.close()


def test_events_end_when_their_region_is_removed_or_made_anew(region: cenote.Region, name: str) -> None:
    """A publisher followed the memory of the first region for ever, and announced its blocks."""
    from cenote.events import Events

    def is_current() -> bool:
        return region.is_current

    events = Events(region)
    blocks = region.namespace(b"model", PAGE, label="m", block_tokens=16)
    names = blocks.hash_tokens(list(range(32)), 16)
    publish(blocks, names, range(1))
    assert [event["type"] for event in events.take()] == ["AllBlocksCleared", "BlockStored"]
    assert is_current()
    Path("/dev/shm", name.removeprefix("shm:")).unlink()
    assert not is_current()
    publish(blocks, names, range(1, 2))
    assert events.take() == [{"type": "AllBlocksCleared"}]
    assert events.take() == []
    assert events.again() == [{"type": "AllBlocksCleared"}]
    assert events.ended
    cenote.Region.create(name, "8MiB", **SMALL)
    assert not is_current(), "another region has the name"


def test_the_publisher_goes_on_with_the_region_that_now_has_the_name(region: cenote.Region, name: str) -> None:
    publish(first := region.namespace(b"model", PAGE, label="m", block_tokens=16), first.hash_tokens(list(range(16)), 16), range(1))
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.bind("tcp://127.0.0.1:*")
    # A subscription may arrive after the first batch, so all blocks are announced again and again.
    command = [sys.executable, "-m", "cenote.events", name, "--endpoint", socket.getsockopt(zmq.LAST_ENDPOINT).decode(), "--refresh", "0.05"]
    publisher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    known: set[int] = set()

    def knows(names: set[int]) -> bool:
        while socket.poll(0):
            for event in msgspec.msgpack.decode(socket.recv_multipart()[2])[1]:
                match event["type"]:
                    case "AllBlocksCleared":
                        known.clear()
                    case "BlockStored":
                        known.update(event["block_hashes"])
        assert publisher.poll() is None
        return known == names

    try:
        until("the first region's block", lambda: knows({100}))
        Path("/dev/shm", name.removeprefix("shm:")).unlink()
        until("the end of the first region", lambda: knows(set()))
        cenote.Region.create(name, "8MiB", **SMALL)
        with cenote.Region.open(name, worker="second") as second:
            blocks = second.namespace(b"model", PAGE, label="m", block_tokens=16)
            publish(blocks, blocks.hash_tokens(list(range(32)), 16), range(1, 2))
            until("the second region's block", lambda: knows({101}))
    finally:
        publisher.terminate()
        _, text = publisher.communicate(timeout=PATIENCE)
        context.destroy(linger=0)
    assert publisher.returncode == 0, text
    assert "was made anew" in text


def test_localities_have_llmds_topics(capsys: pytest.CaptureFixture[str]) -> None:
    from cenote.events import main, topic_of

    assert topic_of("pool:rack-1", "meta/llama") == "kv@pool:rack-1@meta/llama"
    assert topic_of("node:n7", "m") == "kv@node:n7@m"
    for locality, model in (("rack", "m"), ("pod:a", "m"), ("pool:", "m"), ("pool:a@b", "m"), ("pool:a", ""), ("pool:a", "m@1")):
        with pytest.raises(ValueError):
            topic_of(locality, model)
    for arguments, text in (
        (["--locality", "pool:a"], "need each other"),
        (["--model", "m"], "need each other"),
        (["--locality", "rack", "--model", "m"], "no locality"),
        (["--locality", "pool:a", "--model", "m", "--topic", "t"], "not allowed with"),
        (["--refresh", "0"], "above 0"),
    ):
        with pytest.raises(SystemExit):
            main(["shm:missing", *arguments])
        assert text in capsys.readouterr().err
