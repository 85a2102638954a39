"""Why the region lacked a block of a prompt, found beside the engine: a line of the log for each request, and counts."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    import cenote

logger = logger_of(__name__)

# Requests that wait for an answer. Reading a region's ring of removed blocks takes some milliseconds.
WAITING = 256

# Causes of `Namespace.removed`, and those of blocks of which the ring has no record.
REASONS = {
    "evicted": "other blocks needed its space",
    "quota": "its model was over its quota",
    "damaged": "it did not have its checksum or its seal",
    "forgotten": "all blocks of its model were forgotten",
    "collected": "garbage collection could not use it",
    "unknown": "it was never stored under this name, or removed before the oldest record, or the region keeps no records",
}


@dataclass(frozen=True)
class Miss:
    """The first block that a request lacks."""

    request: str
    blocks: int
    """The blocks of its prompt that could have been found."""
    found: int
    """The first ones of them, which were found: the number of the missing one."""
    own: int
    """The first ones of those found, which vLLM had itself."""
    fetched: int
    """The last ones of those found, which came from the cold tier or peers while the request waited."""
    at: float
    """When the request asked, in seconds since 1970."""
    rank: cenote.Namespace
    """A namespace that lacks it."""
    name: cenote.Hashes
    """Its name there."""


class MissLog:
    """Explains misses on a thread of its own, so that the engine waits for none of it."""

    def __init__(self) -> None:
        self._asked: queue.Queue[Miss | None] = queue.Queue(WAITING)
        self._reasons: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, miss: Miss) -> None:
        """Takes a miss to be explained. Without room for it, it stays unexplained and is counted so."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cenote-misses", daemon=True)
            thread.start()
            self._thread = thread
        try:
            self._asked.put_nowait(miss)
        except queue.Full:
            self.count("unexplained")

    def count(self, reason: str) -> None:
        """Counts a request whose reason is known."""
        self._reasons.put(reason)

    def take(self) -> Counter[str]:
        """Reasons since the last call."""
        taken: Counter[str] = Counter()
        while True:
            try:
                taken[self._reasons.get_nowait()] += 1
            except queue.Empty:
                return taken

    def close(self, timeout: float = 1.0) -> None:
        """Ends the thread, before the region is closed."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        while True:
            try:
                self._asked.put_nowait(None)
                break
            except queue.Full:
                self._take(1)
        thread.join(timeout)

    def _take(self, most: int) -> list[Miss | None]:
        """What waits, without a wait."""
        taken: list[Miss | None] = []
        while len(taken) < most:
            try:
                taken.append(self._asked.get_nowait())
            except queue.Empty:
                break
        return taken

    def _run(self) -> None:
        while True:
            # One look at the ring serves all that wait for the same namespace.
            asked = [self._asked.get(), *self._take(WAITING)]
            by_rank: dict[int, list[Miss]] = {}
            for miss in asked:
                if miss is not None:
                    by_rank.setdefault(id(miss.rank), []).append(miss)
            for misses in by_rank.values():
                self._explain(misses)
            if None in asked:
                return

    def _explain(self, misses: list[Miss]) -> None:
        try:
            names = misses[0].name
            for miss in misses[1:]:
                names = names + miss.name
            removals = misses[0].rank.removed(names)
            reasons = ["unknown" if removal is None else str(removal["cause"]) for removal in removals]
        except Exception:
            # The region is gone, or damaged: the health log says so.
            reasons = ["unexplained"] * len(misses)
        for miss, reason in zip(misses, reasons, strict=True):
            self.count(reason)
            # `cenote pool explain --request` reads this form, which `cenote serve --log-misses` has, too.
            logger.info(
                'Cenote: a hit ends early request=%s blocks=%d found=%d own=%d fetched=%d hash=%s model=%d at_s=%d reason="%s" why="%s"',
                json.dumps(miss.request, ensure_ascii=False), miss.blocks, miss.found, miss.own, miss.fetched, miss.name.tobytes().hex(),
                miss.rank.id, miss.at, reason, REASONS.get(reason, "the region could not be read"),
            )  # fmt: skip
