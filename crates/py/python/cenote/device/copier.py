"""Threads that drive the copies of a device, concurrently with the engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from cenote.clock import Deadline

# A device has no wait with a deadline, so the threads poll it with this period.
_ASK_SECONDS = 0.0001
_IDLE_SECONDS = 1.0


class Job(Protocol):
    """Work in progress. It owns all memory that a device may still access; only `run` frees it."""

    def run(self) -> Iterator[bool]:
        """Yields after each step; True if the step made progress."""
        ...

    def broke(self, error: Exception) -> None:
        """`run` raised this error. The device may still execute copies of the job."""


class Copier:
    """Runs jobs in threads. One thread owns each job and advances its jobs step by step."""

    def __init__(self, threads: int, place: Callable[[], object] = lambda: None) -> None:
        """`place` is called in each thread when it starts."""
        self._place = place
        self._bell = threading.Condition()
        self._new: deque[Job] = deque()
        self._under_way = 0
        self._closing = False
        # Jobs that raised in `run`. The device may still access their memory, so the list keeps
        # them until the process ends.
        self.lost: list[Job] = []
        for number in range(threads):
            threading.Thread(target=self._work, name=f"cenote-device-{number}", daemon=True).start()

    def start(self, job: Job) -> None:
        """Begins a job."""
        with self._bell:
            if self._closing:
                raise RuntimeError("the memory was closed")
            self._new.append(job)
            self._under_way += 1
            self._bell.notify()

    def close(self, timeout: float) -> bool:
        """Refuses further jobs and waits up to `timeout` seconds for those in progress.

        Returns True if all jobs ended and none was lost: then the device accesses none of our
        memory."""
        deadline = Deadline(timeout)
        with self._bell:
            self._closing = True
            self._bell.notify_all()
            return deadline.wait_for(self._bell, lambda: self._under_way == 0) and not self.lost

    def _work(self) -> None:
        self._place()
        mine: list[tuple[Job, Iterator[bool]]] = []
        while (begun := self._next(_IDLE_SECONDS if not mine else 0)) is not None:
            mine += [(job, job.run()) for job in begun]
            did, left = False, []
            for job, steps in mine:
                try:
                    did |= next(steps)
                    left.append((job, steps))
                except StopIteration:
                    did = True
                    self._ended()
                except Exception as error:
                    did = True
                    job.broke(error)
                    self._ended(job)
            mine = left
            if mine and not did:
                with self._bell:
                    if not self._new:
                        self._bell.wait(_ASK_SECONDS)

    def _next(self, timeout: float) -> list[Job] | None:
        """At most one new job; None after `close`, if this thread has no job left."""
        with self._bell:
            if not self._new and timeout > 0 and not self._closing:
                self._bell.wait(timeout)
            if self._new:
                return [self._new.popleft()]
            return None if self._closing and timeout > 0 else []

    def _ended(self, lost: Job | None = None) -> None:
        with self._bell:
            if lost is not None:
                self.lost.append(lost)
            self._under_way -= 1
            self._bell.notify_all()
