"""Waits of the tests. This is the only file that pauses or reads a clock (`cargo xtask tidy` checks it).

No test passes because little time passed, and none fails because much did: a wait for something that must happen
has `PATIENCE`, and a timeout that must expire has manual time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

Found = TypeVar("Found")

# Seconds. The longest wait for something that must happen: a test that reaches it has failed.
PATIENCE = 120.0
# The same for a process that imports an engine, builds a model or starts a server.
PATIENCE_WITH_ENGINES = 600.0
# Seconds that a process has to end by itself. Then it is killed; no outcome depends on it.
GRACE = 10.0

_LOOK = 0.001


class Stuck(AssertionError):
    """Something that must happen did not happen."""


def until(what: str | Callable[[], object], found: Callable[[], Found | None], patience: float = PATIENCE) -> Found:
    """Looks until `found` returns something that is true, and returns it.

    Raises `Stuck` if it has not within `patience` seconds; the message has `what`."""
    end = time.monotonic() + patience
    while not (seen := found()):
        if time.monotonic() > end:
            raise Stuck(f"waited {patience} s for: {what if isinstance(what, str) else what()}")
        # Between looks the processor belongs to what the test waits for.
        time.sleep(_LOOK)
    return seen


class ManualTime:
    """Time of the package's Python code that passes when a test says so. `manual_time` is its fixture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from cenote import clock

        self.seconds = 0.0
        # When 0 of this time was, in seconds since 1970.
        self.began = 1_790_000_000.0
        # Seconds that each look at the time takes.
        self.each_look = 0.0
        self.looks = 0
        self.lock = threading.Lock()
        monkeypatch.setattr(clock, "now", self._now)
        monkeypatch.setattr(clock, "unix", lambda: self.began + self._now())
        # A thread that waits looks at this time again soon.
        monkeypatch.setattr(clock, "block_for", lambda ahead: min(ahead, _LOOK))

    def advance(self, seconds: float) -> None:
        with self.lock:
            self.seconds += seconds

    def expire(self, wait: Callable[[float], Found], timeout: float = 8.0) -> Found:
        """The result of `wait(timeout)`, which must end when that time has passed, and not before."""
        results: list[Found] = []
        waiting = threading.Thread(target=lambda: results.append(wait(timeout)))
        waiting.start()
        for _ in range(2):
            # The first look begins the wait, and another one follows each pause.
            looks = self.looks
            until("three looks at the time", lambda: self.looks >= looks + 3 or results)
            assert not results, f"the wait ended before its timeout: {results}"
            self.advance(timeout / 2)
        waiting.join(PATIENCE)
        assert results, "the wait goes on after its timeout"
        return results[0]

    def _now(self) -> float:
        with self.lock:
            now = self.seconds
            self.looks += 1
            self.seconds += self.each_look
            return now
