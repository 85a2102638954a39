"""Why the region lacked a block of a prompt, found beside the engine: a line of the log for each request, and counts."""

from __future__ import annotations

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
    "late": "it was stored after the lookup",
    "unknown": "it was never stored under this name, or removed before the oldest record",
}


@dataclass(frozen=True)
class Miss:
    """The first block that a request lacks."""

    request: str
    hit: int
    """Tokens of the hit."""
    wanted: int
    """Tokens that a hit could have had."""
    block: int
    """Its number in the prompt."""
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
            self._thread = threading.Thread(target=self._run, name="cenote-misses", daemon=True)
            self._thread.start()
        try:
            self._asked.put_nowait(miss)
        except queue.Full:
            self._reasons.put("unexplained")

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
        try:
            self._asked.put_nowait(None)
        except queue.Full:
            # It is a daemon, and a closed region gives it an error.
            return
        thread.join(timeout)

    def _run(self) -> None:
        while (miss := self._asked.get()) is not None:
            try:
                reason = _reason(miss)
            except Exception:
                # The region is gone, or damaged: the health log says so.
                reason = "unexplained"
            self._reasons.put(reason)
            logger.info(
                "Cenote: request %s: %d of %d tokens from the region; block %d is missing (%s): %s",
                miss.request, miss.hit, miss.wanted, miss.block, reason, REASONS.get(reason, "the region cannot tell"),
            )  # fmt: skip


def _reason(miss: Miss) -> str:
    if miss.rank.present(miss.name)[0]:
        return "late"
    [removal] = miss.rank.removed(miss.name)
    return "unknown" if removal is None else str(removal["cause"])
