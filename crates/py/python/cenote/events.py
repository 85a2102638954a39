"""Publishes the KV events of a region in vLLM's wire format, without vLLM. Needs pyzmq.

Usage: `python -m cenote.events REGION`. See docs/guides/events.md.
"""

from __future__ import annotations

import argparse
import re
import signal
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any

import zmq

import cenote
from cenote import clock

MEDIUM = "CENOTE"
# Sequence number of the message that ends an answer on the replay socket.
END = (-1).to_bytes(8, "big", signed=True)
# Where a region's blocks are warm, in the place of a pod in llm-d's topics: for all pods of a node, or of a pool.
_LOCALITY = re.compile(r"(?:node|pool):[^@\s]+")
# Most events of one batch. The first poll of a region may return a million.
_BATCH_MAX = 4096
# Between two looks for a region that was removed.
_MISSING_SECONDS = 1.0


def packed(value: Any) -> bytes:
    """MessagePack encoding of the types that events contain. Raises TypeError for other types."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int() if 0 <= value < 1 << 64:
            if value < 0x80:
                return bytes([value])
            for code, form in (0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q"):
                if value < 1 << 8 * struct.calcsize(form):
                    return bytes([code]) + struct.pack(form, value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            data = value.encode()
            return _head(len(data), 0xA0, 32, ((0xD9, ">B"), (0xDA, ">H"), (0xDB, ">I"))) + data
        case list():
            return _head(len(value), 0x90, 16, ((0xDC, ">H"), (0xDD, ">I"))) + b"".join(map(packed, value))
        case dict():
            items = b"".join(packed(key) + packed(item) for key, item in value.items())
            return _head(len(value), 0x80, 16, ((0xDE, ">H"), (0xDF, ">I"))) + items
    raise TypeError(f"events cannot contain {value!r}")


def _head(length: int, short: int, limit: int, forms: Sequence[tuple[int, str]]) -> bytes:
    if length < limit:
        return bytes([short | length])
    code, form = next((code, form) for code, form in forms if length < 1 << 8 * struct.calcsize(form))
    return bytes([code]) + struct.pack(form, length)


class Events:
    """Events of a region as vLLM's events. Blocks have the names that their publishers gave.

    Without `parents`, no event names a block's predecessor. llm-d drops an event with a predecessor that
    it does not know.

    If the region is removed or made anew under its name, the events end with `AllBlocksCleared`: the memory of the
    first one stays readable, but no engine that starts finds its blocks."""

    def __init__(
        self, region: cenote.Region, namespaces: Collection[str] = (), *, medium: str = MEDIUM, parents: bool = True
    ) -> None:
        self.region, self.follower = region, region.follow()
        self.medium, self.parents = medium, parents
        self.chosen = set(namespaces)
        # By namespace: fingerprint, and bit number among the followed namespaces with tokens per block;
        # None if the namespace is not followed.
        self.rows: dict[int, tuple[str, tuple[int, int] | None]] = {}
        self.followed = 0
        self.there: dict[int, int] = {}
        # By name of an announced block: its predecessor and its tokens.
        self.announced: dict[int, tuple[int, int]] = {}
        self.begun = self.ended = False

    def take(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        if not self.ended and not self.region.is_current:
            self.ended = True
            self.there.clear()
            self.announced.clear()
            return [{"type": "AllBlocksCleared"}]
        if self.ended:
            return []
        polled, _ = self.follower.poll()
        events: list[dict[str, Any]] = []
        if not self.begun:
            # A subscriber may still hold state from an earlier publisher.
            self.begun = True
            events.append({"type": "AllBlocksCleared"})
        if polled:
            self._read_rows()
        for kind, namespace, digest, name, parent, _ in polled:
            _, row = self.rows.get(namespace, ("", None))
            if row is None:
                continue
            place, tokens = row
            name = name or int.from_bytes(digest[-8:], "big")
            before = self.there.get(name, 0)
            after = before | 1 << place if kind == "stored" else before & ~(1 << place)
            self.there[name] = after
            if after == 0:
                del self.there[name]
            if self._counts(after) and not self._counts(before):
                self.announced[name] = (parent if self.parents else 0, tokens)
                events.append(self._stored(name))
            elif self._counts(before) and not self._counts(after):
                self.announced.pop(name, None)
                events.append({"type": "BlockRemoved", "block_hashes": [name], "medium": self.medium})
        return events

    def again(self) -> list[dict[str, Any]]:
        """Events that announce all present blocks anew, to a subscriber that forgets the earlier ones first."""
        self.take()
        return [{"type": "AllBlocksCleared"}, *map(self._stored, self.announced)]

    def _stored(self, name: int) -> dict[str, Any]:
        parent, tokens = self.announced[name]
        return {
            "type": "BlockStored", "block_hashes": [name], "parent_block_hash": parent or None, "token_ids": [],
            "block_size": tokens, "lora_id": None, "medium": self.medium, "lora_name": None,
        }  # fmt: skip

    def _counts(self, have: int) -> bool:
        return have.bit_count() == len(self.chosen) if self.chosen else have != 0

    def _read_rows(self) -> None:
        """Reads the rows again, because one may have been reclaimed for another model."""
        for row in self.region.namespaces():
            if row["id"] in self.rows and self.rows[row["id"]][0] == row["fingerprint"]:
                continue
            follows = not self.chosen or bool({row["label"], str(row["id"])} & self.chosen)
            self.rows[row["id"]] = (row["fingerprint"], (self.followed, row["block_tokens"]) if follows else None)
            self.followed += follows


def topic_of(locality: str, model: str) -> str:
    """The topic of llm-d for blocks that all pods of a node (`node:NAME`) or of a pool (`pool:NAME`) can load.

    Raises ValueError for names that llm-d would read as something else."""
    if not _LOCALITY.fullmatch(locality):
        raise ValueError(f"`{locality}` is no locality: give node:NAME or pool:NAME, without @ and spaces")
    if not model or "@" in model:
        raise ValueError(f"`{model}` is no name of a model in a topic: give the served name, without @")
    return f"kv@{locality}@{model}"


class Publisher:
    """Publishes numbered batches on a PUB socket.

    A ROUTER socket replays past batches from a requested number on. With `refresh`, all present blocks are
    announced anew after so many seconds, for subscribers that could not use an event when it came."""

    def __init__(
        self, events: Events, endpoint: str, replay: str | None = None, topic: str = "", rank: int = 0, keep: int = 10_000,
        refresh: float | None = None,
    ) -> None:  # fmt: skip
        self.events, self.topic, self.rank = events, topic.encode(), rank
        self.refresh, self.refreshed = refresh, clock.now()
        self.sequence = 0
        self.past: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PUB)
        self.socket.set_hwm(100_000)
        _open(self.socket, endpoint)
        self.replay = None
        if replay is not None:
            self.replay = self.context.socket(zmq.ROUTER)
            self.replay.bind(replay)

    def step(self) -> int:
        """Publishes new events and answers replay requests. Returns the number of new events."""
        if self.refresh is not None and clock.now() - self.refreshed >= self.refresh:
            self.refreshed = clock.now()
            events = self.events.again()
        else:
            events = self.events.take()
        for first in range(0, len(events), _BATCH_MAX):
            batch = packed([clock.unix(), events[first : first + _BATCH_MAX], self.rank])
            number = self.sequence
            self.sequence += 1
            self.past.append((number, batch))
            self.socket.send_multipart([self.topic, number.to_bytes(8, "big"), batch])
        while self.replay is not None and self.replay.poll(0):
            self._answer(self.replay)
        return len(events)

    def follow(self, events: Events) -> None:
        """Publishes another region's events from now on. They begin by clearing those of the earlier one."""
        self.events = events

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        request = replay.recv_multipart()
        if len(request) != 3 or len(request[2]) != 8:
            return
        client, first = request[0], int.from_bytes(request[2], "big")
        for number, batch in self.past:
            if number >= first:
                replay.send_multipart([client, b"", self.topic, number.to_bytes(8, "big"), batch])
        replay.send_multipart([client, b"", b"", END, b""])

    def close(self) -> None:
        """Closes the sockets. Pending messages have one second to be sent."""
        self.context.destroy(linger=1000)


def _open(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Binds to wildcard, `ipc://` and `inproc://` endpoints; connects to others, as vLLM does."""
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m cenote.events", description="Publishes a region's KV events as vLLM does.")
    parser.add_argument("region", help="shm:NAME, a file, a device")
    parser.add_argument("--endpoint", default="tcp://*:5557", help="PUB socket; binds to *, connects to a host (%(default)s)")
    parser.add_argument("--replay", help="ROUTER socket for replays of past batches, such as tcp://*:5558")
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument("--topic", default="")
    topics.add_argument(
        "--locality", metavar="WHERE",
        help="llm-d's topic for blocks that all pods of a node (node:NAME) or of a pool (pool:NAME) can load; needs --model",
    )  # fmt: skip
    parser.add_argument("--model", help="served name of the model in the topic of --locality")
    parser.add_argument("--medium", default=MEDIUM, help="medium of the events (%(default)s)")
    parser.add_argument(
        "--refresh", type=float, metavar="SECONDS",
        help="announce all present blocks anew each so many seconds; default: 30 with --locality, otherwise never",
    )  # fmt: skip
    parser.add_argument("--rank", type=int, default=0, help="data parallel rank in each batch")
    parser.add_argument(
        "--namespace", action="append", default=[], metavar="LABEL",
        help="follow only this namespace, by label or number; with several, such as all ranks, publish a block when all have it",
    )  # fmt: skip
    parser.add_argument("--host-slot", type=int, default=0)
    parser.add_argument("--every", type=float, default=0.01, metavar="SECONDS", help="poll period (%(default)s)")
    parser.add_argument("--for", type=float, dest="duration", metavar="SECONDS", help="run time; default: until a signal")
    options = parser.parse_args(arguments)
    topic, refresh = options.topic, options.refresh
    if (options.locality is None) != (options.model is None):
        parser.error("--locality and --model need each other")
    if refresh is not None and not refresh > 0:
        parser.error(f"--refresh {refresh}: give seconds above 0")
    if options.locality is not None:
        try:
            topic = topic_of(options.locality, options.model)
        except ValueError as error:
            parser.error(str(error))
        refresh = 30.0 if refresh is None else refresh
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    start = clock.now()

    def of(region: cenote.Region) -> Events:
        return Events(region, options.namespace, medium=options.medium, parents=options.locality is None)

    def opened() -> cenote.Region:
        return cenote.Region.open(options.region, worker="events", host_slot=options.host_slot, peers="")

    told = [""]

    def tell(text: str) -> None:
        if told[0] != text:
            told[0] = text
            print(text, file=sys.stderr, flush=True)

    region = opened()
    try:
        publisher = Publisher(of(region), options.endpoint, options.replay, topic, options.rank, refresh=refresh)
        try:
            while not ended.is_set() and (options.duration is None or clock.now() - start < options.duration):
                publisher.step()
                if publisher.events.ended and (new := _opened_again(opened, tell)) is not None:
                    region.close()
                    region = new
                    publisher.follow(of(region))
                    continue
                ended.wait(_MISSING_SECONDS if publisher.events.ended else options.every)
        finally:
            publisher.close()
    finally:
        region.close()


def _opened_again(opened: Callable[[], cenote.Region], tell: Callable[[str], None]) -> cenote.Region | None:
    """The region that now has the name; None if there is none yet, or it cannot be followed."""
    try:
        region = opened()
    except cenote.CenoteError as error:
        tell(f"the region was removed or made anew, and is not followed: {error}")
        return None
    try:
        region.follow().poll()
    except cenote.CenoteError as error:
        region.close()
        tell(f"the region was made anew, and is not followed: {error}")
        return None
    tell(f"{region.name} was made anew: its blocks are announced")
    return region


if __name__ == "__main__":
    main()
