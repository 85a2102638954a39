"""Transfer of 1 MiB blocks from one process to another, and lookups of a prefix."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from peers.processes import Child, Unable, cpu_seconds
from peers.report import Series
from peers.stores import BLOCK, BLOCKS, Client, Store

# Lookups of a prefix per round.
ASKS = 50
# Warm-up rounds. After them every store has touched all its memory in every process.
WARM_UP = 4
# Index of the missing name in the check of a lookup.
HOLE = 40


def names_of(round_: int) -> list[bytes]:
    """Names of 32 bytes, like vLLM's. Printable, because some stores accept only text."""
    return [f"{round_:016x}{number:016x}".encode() for number in range(BLOCKS)]


def _content(round_: int) -> np.ndarray[Any, Any]:
    """Content of a round's blocks. All words are distinct over all blocks and rounds."""
    words = BLOCK // 8
    start = np.uint64(round_) << np.uint64(40)
    numbers = np.arange(start, start + np.uint64(BLOCKS * words), dtype=np.uint64)
    return numbers.reshape(BLOCKS, words) * np.uint64(0x9E3779B97F4A7C15)


def serve(pipe: Connection, kind: type[Client], settings: dict[str, Any]) -> None:
    """Main function of a client process: executes requests and returns their costs."""
    client = kind(**settings)
    pipe.send(("said", "ready"))
    while (said := pipe.recv())[0] != "end":
        pipe.send(("said", _ANSWERS[said[0]](client, *said[1:])))
    client.close()


def _timed(each: Callable[[], Any]) -> float:
    began = time.perf_counter()
    each()
    return time.perf_counter() - began


def _put(client: Client, round_: int) -> tuple[float, float]:
    names, client.memory[:] = names_of(round_), _content(round_)
    began = time.process_time()
    walls = [_timed(lambda number=number: client.put(names[number], number)) for number in range(BLOCKS)]
    return statistics.median(walls), (time.process_time() - began) / BLOCKS


def _get(client: Client, round_: int) -> tuple[float, float]:
    names, client.memory[:] = names_of(round_), 0
    began = time.process_time()
    walls = [_timed(lambda number=number: client.get(names[number], number)) for number in range(BLOCKS)]
    took = time.process_time() - began
    _compare(client, round_)
    return statistics.median(walls), took / BLOCKS


def _get_all(client: Client, round_: int) -> tuple[float, float]:
    names, client.memory[:] = names_of(round_), 0
    began = time.process_time()
    wall = _timed(lambda: client.get_all(names))
    took = time.process_time() - began
    _compare(client, round_)
    return wall / BLOCKS, took / BLOCKS


def _in_place(client: Client, round_: int) -> tuple[float, float] | None:
    names, seen = names_of(round_), []
    if client.in_place(names[0]) is None:
        return None
    began, walls = time.process_time(), []
    for name in names:
        walls.append(_timed(lambda name=name: seen.append(client.in_place(name))))
    took = time.process_time() - began
    for block, wanted in zip(seen, _content(round_), strict=True):
        if not np.array_equal(np.frombuffer(block, dtype=np.uint64), wanted):
            raise Unable("the block in place differs from the block that was put")
    return statistics.median(walls), took / BLOCKS


def _compare(client: Client, round_: int) -> None:
    if not np.array_equal(client.memory, _content(round_)):
        raise Unable("the read block differs from the block that was put")


def _look_up(client: Client, round_: int) -> dict[str, tuple[float, float]]:
    names, taken = names_of(round_), {}
    hole = [*names[:HOLE], b"f" * len(names[0]), *names[HOLE + 1 :]]
    for way, function in client.lookups(hole).items():
        wanted = BLOCKS - 1 if "counts" in way else HOLE
        if (found := function()) != wanted:
            raise Unable(f"{way}: found {found} of {wanted} blocks before the missing one")
    for way, function in client.lookups(names).items():
        began, walls = time.process_time(), []
        for _ in range(ASKS):
            start = time.perf_counter()
            found = function()
            walls.append(time.perf_counter() - start)
            if found != BLOCKS:
                raise Unable(f"{way}: found {found} of {BLOCKS} blocks")
        taken[way] = (statistics.median(walls), (time.process_time() - began) / ASKS)
    return taken


def _drop(client: Client, round_: int) -> None:
    client.drop(names_of(round_))


_ANSWERS = {"put": _put, "get": _get, "get all": _get_all, "in place": _in_place, "look up": _look_up, "drop": _drop}


@dataclass
class Way:
    """A writing and a reading process on one store."""

    store: Store
    way: str
    # Part of the names of blocks, so that two ways on one store use different names.
    number: int
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        kind = self.store.clients[self.way]
        self.children: list[Child] = []
        for _ in range(2):
            self.children.append(Child(self.store.packages, self.store.variables(), serve, kind, self.settings))
        for child in self.children:
            child.receive()

    def series(self, taken: dict[str, dict[tuple[str, str], Series]], what: str, way: str) -> Series:
        key = (self.store.name, way)
        return taken.setdefault(what, {}).setdefault(key, Series(*key))

    def round(self, round_: int, taken: dict[str, dict[tuple[str, str], Series]] | None) -> None:
        """Runs one round; a warm-up if `taken` is None."""
        mine = round_ << 8 | self.number
        writer, reader = self.children
        try:
            for what, child in (("put", writer), ("get", reader), ("get all", reader), ("in place", reader)):
                before = cpu_seconds(*self.store.servers())
                if (took := child.ask(what, mine)) is None:
                    continue
                wall, cpu = took
                cpu += (cpu_seconds(*self.store.servers()) - before) / BLOCKS
                if taken is not None:
                    series = self.series(taken, what, self.way)
                    series.wall.append(wall)
                    series.cpu.append(cpu)
            for way, (wall, cpu) in reader.ask("look up", mine).items():
                if taken is not None:
                    series = self.series(taken, "lookup", f"{self.way}, {way}" if self.way else way)
                    series.wall.append(wall)
                    series.cpu.append(cpu)
        except Unable:
            with contextlib.suppress(Unable):
                writer.ask("drop", mine)
            raise
        writer.ask("drop", mine)

    def end(self) -> None:
        for child in self.children:
            child.end()


def measure(
    stores: Sequence[Store], rounds: int, failed: dict[str, str], about: dict[str, str]
) -> dict[str, dict[tuple[str, str], Series]]:
    """Measures all stores, which alternate in every round.

    `failed` gets the reasons of stores that cannot take part; `about` gets descriptions."""
    ways: list[Way] = []
    taken: dict[str, dict[tuple[str, str], Series]] = {}
    started: list[Store] = []
    try:
        for store in stores:
            started.append(store)
            try:
                settings = store.start()
                about[store.name] = store.about()
            except (Unable, OSError, ImportError) as error:
                failed[store.name] = str(error)
                continue
            for number, way in enumerate(store.clients):
                try:
                    ways.append(Way(store, way, number, settings))
                except Unable as error:
                    failed[f"{store.name}: {way}" if way else store.name] = str(error)
        for round_ in range(WARM_UP + rounds):
            print(f"round {round_ + 1} of {WARM_UP + rounds}: blocks", file=sys.stderr, flush=True)
            for way in list(ways):
                try:
                    way.round(round_, taken if round_ >= WARM_UP else None)
                except Unable as error:
                    failed[f"{way.store.name}: {way.way}" if way.way else way.store.name] = str(error)
                    way.end()
                    ways.remove(way)
        return {
            what: {key: one for key, one in series.items() if len(one.wall) == rounds} for what, series in taken.items()
        }
    finally:
        for way in ways:
            way.end()
        for store in started:
            store.end()
