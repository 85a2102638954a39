"""The clocks of this package. Only this module names Python's own, so a test that replaces its functions controls time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def now() -> float:
    """Seconds of a clock that never goes back."""
    return time.monotonic()


def unix() -> float:
    """Seconds since 1970, for reports and ages of files. They may go back."""
    return time.time()


def block_for(ahead: float) -> float:
    """The longest real time for which a thread may block that waits for `ahead` seconds of `now`."""
    return min(ahead, threading.TIMEOUT_MAX)


class Deadline:
    """The instant of `now` at which a wait ends with a timeout."""

    def __init__(self, timeout: float | None) -> None:
        """`timeout` seconds from now; None is never."""
        self.at = now() + (float("inf") if timeout is None else timeout)

    @property
    def left(self) -> float:
        """Remaining seconds; 0 after the deadline."""
        return max(self.at - now(), 0.0)

    @property
    def passed(self) -> bool:
        return now() >= self.at

    def wait_for(self, bell: threading.Condition, so: Callable[[], bool]) -> bool:
        """Waits until `so` is true. Returns False after the deadline. The caller holds the lock of `bell`."""
        while not (came := so()) and (left := self.left) > 0:
            bell.wait(block_for(left))
        return came
