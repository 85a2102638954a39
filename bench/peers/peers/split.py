"""Prefill and decode in servers of their own, beside servers that do both.

Each server has one thread. Each way gets as many requests, at the same instants after its first."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.processes import Unable
from peers.serving import TESTS

TOKENS, ANSWER = 1000, 64
REQUESTS = 12
# Seconds between requests, as a multiple of one prompt's time on an idle server.
PERIOD = 1.2


@dataclass
class Way:
    """One way to serve, with the seconds of all rounds."""

    about: str
    first: list[float] = field(default_factory=list)
    """From the request to the first token."""
    between: list[float] = field(default_factory=list)
    """From one piece of an answer to the next."""
    whole: list[float] = field(default_factory=list)
    """From the first request to the last token."""


def measure(rounds: int, proxy: Path) -> dict[str, Way]:
    """Serves the requests in each way, in turns."""
    sys.path.insert(0, str(TESTS))
    import models
    from servers import Process, Proxy, Server

    folder = Path(tempfile.mkdtemp(prefix="cenote-split-", dir="/dev/shm"))
    region = f"cenote-split-{os.getpid()}"
    ways = {
        "one server": Way("prefill and decode in one"),
        "two servers": Way("requests in turns, nothing shared"),
        "prefill and decode": Way("one region; vLLM's example proxy before them"),
    }
    with contextlib.ExitStack() as ends:
        ends.callback(Path("/dev/shm", region).unlink, missing_ok=True)
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        model = models.make_elsewhere(folder / "model", "mid")

        def server(name: str, of: str | None = None, role: str = "kv_both") -> Server:
            print(f"starting {name}", file=sys.stderr, flush=True)
            made = Server(model, of, folder / name, role=role, size="2GiB", OMP_NUM_THREADS="1")
            ends.callback(made.end)
            return made

        plain = [server("one"), server("two")]
        pair = [server("prefill", f"shm:{region}", "kv_producer"), server("decode", f"shm:{region}", "kv_consumer")]
        for each in (*plain, *pair):
            each.wait()
        before = Proxy(str(proxy), model, folder / "proxy", *pair)
        ends.callback(before.end)
        before.wait()
        doors: dict[str, list[Process]] = {"one server": plain[:1], "two servers": plain, "prefill and decode": [before]}
        # Warm-up, and the time of a prompt.
        for way in ways:
            for number, door in enumerate(doors[way]):
                _last(door.stream(model, models.prompt(TOKENS, 1 + number), 2))
        period = PERIOD * _last(plain[0].stream(model, models.prompt(TOKENS, 9), 1)).seconds[0]
        for round_ in range(rounds):
            for number, (name, way) in enumerate(ways.items()):
                print(f"round {round_ + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                first = 1000 + REQUESTS * (number + len(ways) * round_)
                prompts = [models.prompt(TOKENS, first + place) for place in range(REQUESTS)]
                _serve(doors[name], model, prompts, period, way)
        hits = sum(pair[1].counter("hit_blocks").values())
        if hits < rounds * REQUESTS * (TOKENS // 32 - 1):
            raise Unable(f"the decode server found {hits} blocks only, so it computed prompts")
    return ways


def _last(pieces: Iterator[Any]) -> Any:
    *_, stream = pieces
    if not stream.whole:
        raise Unable("a server broke off an answer")
    return stream


def _serve(doors: list[Any], model: str, prompts: list[list[int]], period: float, way: Way) -> None:
    """Sends the requests at fixed instants, each from a thread of its own, and notes the answers."""
    began, lock, failed = time.perf_counter(), threading.Lock(), []

    def send(number: int) -> None:
        try:
            # The instants are the load; a thread waits for its own.
            threading.Event().wait(max(0.0, began + number * period - time.perf_counter()))
            stream = _last(doors[number % len(doors)].stream(model, prompts[number], ANSWER))
        except Unable as error:
            failed.append(error)
            return
        with lock:
            way.first.append(stream.seconds[0])
            way.between += [late - early for early, late in zip(stream.seconds[:-1], stream.seconds[1:], strict=True)]

    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    way.whole.append(time.perf_counter() - began)


def part(values: list[float], percent: int) -> float:
    """A percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
