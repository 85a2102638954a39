"""A router that receives vLLM's KV events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import ZmqEventPublisher
from waiting import until


class Router:
    """Binds, so that many instances can connect, and reads continuously in a thread.

    A bound subscriber sends its subscription to a new publisher at its next socket call. Batches
    published before are lost, so the router requests their replay. Continuous reads keep that gap
    short."""

    def __init__(self, folder: Path) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind("tcp://127.0.0.1:*")
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT).decode()
        self._replay = f"ipc://{folder}/replay"
        self.config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=self._replay
        )
        self._batches: dict[int, list[dict[str, Any]]] = {}
        self._heard = threading.Lock()
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None) -> None:
        self._ended.set()
        self._reader.join()
        self._context.destroy(linger=0)

    def events(self, medium: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """All events of a medium in order, as soon as `enough` accepts them."""
        numbers: list[int] = []
        events: list[dict[str, Any]] = []

        def is_enough() -> bool:
            nonlocal numbers, events
            self._ask_for_what_is_missing()
            with self._heard:
                numbers = sorted(self._batches)
                events = [event for number in numbers for event in self._batches[number] if event.get("medium") == medium]
            return numbers == list(range(len(numbers))) and enough(events)

        until(lambda: f"batches {numbers}, with events of {medium}: {events}", is_enough)
        return events

    def _read(self) -> None:
        while not self._ended.is_set():
            # tidy: a poll period, after which the thread looks whether the router has ended.
            if self._socket.poll(100):
                _, number, batch = self._socket.recv_multipart()
                self._note(number, batch)

    def _note(self, number: bytes, batch: bytes) -> None:
        with self._heard:
            self._batches[int.from_bytes(number, "big")] = msgspec.msgpack.decode(batch)[1]

    def _ask_for_what_is_missing(self) -> None:
        with self._heard:
            missing = sorted(set(range(max(self._batches, default=0))) - set(self._batches))
        if not missing:
            return
        with self._context.socket(zmq.DEALER) as socket:
            socket.connect(self._replay)
            socket.send_multipart((b"", missing[0].to_bytes(8, "big")))
            # tidy: a publisher that is about to start or to end may not answer; the next look asks again.
            while socket.poll(5000):
                _, _, number, batch = socket.recv_multipart()
                if number == ZmqEventPublisher.END_SEQ:
                    return
                self._note(number, batch)
