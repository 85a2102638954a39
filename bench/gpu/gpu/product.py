"""Saves and loads of the product, as an engine's connector does them. Every byte that was loaded is compared."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import cenote
from cenote.device import PageLayout
from gpu import limits
from gpu.cards import Card, wait_for
from gpu.report import Report, Skip, cpu_seconds, rate


@dataclass(frozen=True)
class Shape:
    """A model's KV on one rank. A page is one layer's part of a block, in one run or two."""

    model: str
    layers: int
    page: int
    block_tokens: int
    runs: int = 1

    @property
    def block(self) -> int:
        return self.layers * self.page


LLAMA = Shape("8B", 32, 64 << 10, 16)
SHAPES = (
    LLAMA,
    Shape("70B, TP 8", 80, 8 << 10, 16),
    Shape("8B, keys and values apart", 32, 64 << 10, 16, runs=2),
    Shape("8B, blocks of 64", 32, 256 << 10, 64),
    Shape("MLA", 61, 576 * 2 * 16, 16),
)
# Names of the ways, and what they change. A build without such a switch is skipped.
WAYS: dict[str, dict[str, Any]] = {
    "direct": {},
    "staged": {"staged": True, "staging_bytes": 1 << 30},
    # Without room for a block on the GPU, its kernels are not used.
    "sums on the processor": {"gpu_buffer_bytes": 0},
}
TOKENS = (8192, 32768)

_numbers = itertools.count()


def cases() -> list[tuple[Shape, str, int]]:
    """Shape, way and tokens, the most important first."""
    direct = [(shape, "direct", tokens) for tokens in TOKENS for shape in SHAPES]
    return direct + [(LLAMA, way, TOKENS[0]) for way in WAYS if way != "direct"]


def measure(report: Report, card: Card, region: cenote.Region, shape: Shape, way: str, tokens: int, rounds: int = 3) -> None:
    """Adds a record for save, load and both at once."""
    case = Case(card, region, shape, way, tokens)
    try:
        times = [case.round() for _ in range(rounds)]
    except Exception:
        case.kv.close(20)
        raise
    bounds, size = limits.of(report), case.size
    for what in ("save", "load", "both"):
        # The first round is cold.
        best = min(times[1:] or times, key=lambda round_: round_[what].seconds)[what]
        gbps = rate((2 if what == "both" else 1) * size, best.seconds)
        report.add(
            "product", what=what, way=way, tokens=tokens, **asdict(shape), blocks=case.count, MiB=size >> 20, GBps=gbps,
            of_limit=round(gbps / bounds[what], 3) if what in bounds else None, ms=round(1e3 * best.seconds, 2),
            why_staged=case.kv.why_staged, why_no_kernels=getattr(case.kv, "why_no_kernels", None), engine_ms=round(1e3 * best.engine, 3), cpu_ms_per_GiB=round(1e3 * best.cpu * (1 << 30) / size, 2),
            equal=all(round_[what].is_right for round_ in times),
        )  # fmt: skip
    case.close()


@dataclass
class Taken:
    """One measurement."""

    seconds: float
    engine: float
    """Seconds that the engine's thread spent in calls."""
    cpu: float
    ended: float
    """On the clock of `time.perf_counter`, before any comparison."""
    is_right: bool


class Case:
    """KV memory of one shape. Saves read the first half of random blocks, loads write the second.

    With `waits`, it begins when the region is page-locked.
    """

    def __init__(self, card: Card, region: cenote.Region, shape: Shape, way: str, tokens: int, waits: bool = True) -> None:
        self.card, self.region, self.shape, self.tokens = card, region, shape, tokens
        self.count = tokens // shape.block_tokens
        self.size = self.count * shape.block
        blocks, page, runs = 2 * self.count + 16, shape.page, shape.runs
        # Pages of a run: with two runs, all keys lie before all values.
        self.run = page // runs
        layout = PageLayout(self.run, tuple((at * blocks * self.run, self.run) for at in range(runs)), blocks)
        self.blocks = blocks
        self.memory = [card.make(blocks * page) for _ in range(shape.layers)]
        layers = [(card.address(each), layout) for each in self.memory]
        try:
            self.kv = card.kv(region, layers, self.memory, **WAYS[way])
            if waits and not self.kv.wait_locked(60):
                raise TimeoutError("the region is not page-locked within 60 s")
        except TypeError as error:
            raise Skip(f"this build has no switch for it: {error}") from error
        order = random.Random(1).sample(range(blocks), 2 * self.count)
        self.sources, self.targets = order[: self.count], order[self.count :]

    def close(self) -> None:
        if not self.kv.close(20):
            raise TimeoutError("the GPU did not end its copies within 20 s")

    def round(self) -> dict[str, Taken]:
        """A save of new blocks, a load of them, and both at once."""
        first, second = self.names(), self.names()
        self._clear()
        try:
            return {"save": self.save(first), "load": self.load(first), "both": self._both(first, second)}
        finally:
            first[0].forget()
            second[0].forget()

    def names(self) -> tuple[cenote.Namespace, cenote.Hashes]:
        number = next(_numbers)
        namespace = self.region.namespace(f"bench {number}".encode(), self.shape.block)
        return namespace, namespace.hash_tokens(list(range(number, number + self.tokens)), self.shape.block_tokens)

    def _begin_save(self, names: tuple[cenote.Namespace, cenote.Hashes]) -> Counter[str]:
        namespace, hashes = names
        self.kv.save([(namespace, hashes, list(range(self.count)), self.sources, None, 0)])
        return Counter()

    def _await_save(self, outcomes: Counter[str]) -> tuple[bool, float]:
        """Whether all was published, and the processor time of asking."""

        def has_ended() -> bool:
            outcomes.update(self.kv.take_outcomes())
            return sum(outcomes.values()) >= self.count

        begun = time.thread_time()
        wait_for("the outcome of each saved block", has_ended)
        return outcomes == {"published": self.count}, time.thread_time() - begun

    def _begin_load(self, names: tuple[cenote.Namespace, cenote.Hashes]) -> Any:
        lease = names[0].lookup(names[1])
        if len(lease) != self.count:
            raise RuntimeError(f"{len(lease)} of {self.count} blocks were found")
        return self.kv.load(lease, self.targets, timeout=20.0)

    def save(self, names: tuple[cenote.Namespace, cenote.Hashes]) -> Taken:
        self.card.synchronize()
        cpu, begun = cpu_seconds(), time.perf_counter()
        outcomes = self._begin_save(names)
        issued = time.perf_counter()
        is_right, asking = self._await_save(outcomes)
        now = time.perf_counter()
        return Taken(now - begun, issued - begun, cpu_seconds() - cpu - asking, now, is_right)

    def load(self, names: tuple[cenote.Namespace, cenote.Hashes]) -> Taken:
        self.card.synchronize()
        cpu, begun = cpu_seconds(), time.perf_counter()
        load = self._begin_load(names)
        issued = time.perf_counter()
        has_ended = load.wait(20.0)
        now, cpu = time.perf_counter(), cpu_seconds() - cpu
        return Taken(now - begun, issued - begun, cpu, now, has_ended and load.failed() == [] and self._is_equal())

    def _both(self, there: tuple[cenote.Namespace, cenote.Hashes], new: tuple[cenote.Namespace, cenote.Hashes]) -> Taken:
        self._clear()
        self.card.synchronize()
        cpu, begun = cpu_seconds(), time.perf_counter()
        load, outcomes = self._begin_load(there), self._begin_save(new)
        issued = time.perf_counter()
        (is_saved, asking), is_loaded = self._await_save(outcomes), load.wait(20.0)
        now, cpu = time.perf_counter(), cpu_seconds() - cpu - asking
        is_right = is_saved and is_loaded and load.failed() == [] and self._is_equal()
        return Taken(now - begun, issued - begun, cpu, now, is_right)

    def _pages(self, blocks: list[int]) -> list[int]:
        """Pages of all runs of these blocks."""
        return [run * self.blocks + block for run in range(self.shape.runs) for block in blocks]

    def _clear(self) -> None:
        for memory in self.memory:
            self.card.clear(memory, self.run, self._pages(self.targets))

    def _is_equal(self) -> bool:
        self.card.synchronize()
        sources, targets = self._pages(self.sources), self._pages(self.targets)
        return all(self.card.equal(memory, self.run, targets, sources) for memory in self.memory)
