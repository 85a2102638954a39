"""Names of LoRA adapters by all of their content. Imports no engine.

An engine loads an adapter on demand, more than once, in several processes, and identifies it by
name and path. The files show the loaded content only if they do not change between the engine's
start and the use of a name. An adapter with files that are younger than the engine, or that changed
since, has no name, and its requests share nothing. This holds until the engine ends: its own
prefix cache may hold blocks of both contents."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cenote import clock
from cenote.content import TRUSTED, Cache, Stamp, contents, stamps
from cenote.walk import matching

# Patterns of the files that engines read.
_READ = ("adapter_*", "new_embeddings*", "lora_*")
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")

# A file system's clock may be as coarse as a second.
_CLOCK_SECONDS = 2.0
# NFS, SMB, Lustre, Ceph, GPFS: servers set these times, and their clocks may differ from ours.
_SERVED = {0x6969, 0xFE534D42, 0xFF534D42, 0x0BD00BD0, 0x00C36400, 0x47504653}
_SERVER_CLOCK_SECONDS = 300.0


Find = Callable[[str], list[Path]]
"""Returns the folder of an adapter's path, then the files that decide which folder that is.

Raises OSError or ValueError if no folder exists."""


def files_of(path: str, find: Find | None = None) -> list[Path]:
    """An adapter's files that engines read, plus those of `find`; none without weights."""
    folder, *others = find(path) if find is not None else [Path(path)]
    read = matching(folder, *_READ) if folder.is_dir() else []
    return [*read, *others] if any(file.name in _WEIGHTS for file in read) else []


@dataclass(frozen=True)
class Adapter:
    """An adapter's content."""

    digest: bytes
    files: tuple[str, ...]
    stamps: tuple[Stamp, ...]

    def holds(self) -> bool:
        """True if the stamps of the files are unchanged since the adapter was named."""
        found = stamps([Path(file) for file in self.files])
        return found is not None and tuple(found) == self.stamps


class Adapters:
    """The adapters of one engine. A background thread names each of them once."""

    def __init__(self, facts: Any = None, find: Find | None = None, cache: Cache | None = None) -> None:
        """`facts`: settings of the engine that decide what an adapter does."""
        self.facts, self.find, self.cache = facts, find, cache
        # Lower bound of every time at which the engine loads an adapter.
        self.since = clock.unix()
        self._named: dict[tuple[str, str, str], Future[Adapter | None]] = {}
        self._lost: set[tuple[str, str, str]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def get(self, name: str, path: str, facts: Any = None) -> Adapter | None | Future[Adapter | None]:
        """The adapter; None if it has no name; a future while its files are being read."""
        key = _key(name, path, facts)
        if key in self._lost:
            return None
        with self._lock:
            future = self._named.get(key)
            if future is None:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(1, "cenote-adapters")
                future = self._named[key] = self._threads.submit(self._name, path, [self.facts, facts])
        if not future.done():
            return future
        adapter = None if future.exception() is not None else future.result()
        if adapter is None or not adapter.holds():
            self._lost.add(key)
            return None
        return adapter

    def known(self, name: str, path: str, facts: Any = None) -> Adapter | None:
        """The adapter, if the last `get` returned one. Does not check its files again."""
        key = _key(name, path, facts)
        future = self._named.get(key)
        return None if key in self._lost or future is None or not future.done() or future.exception() else future.result()

    def _name(self, path: str, facts: Any) -> Adapter | None:
        files = files_of(path, self.find)
        if not files:
            return None
        found = contents(files, self.cache)
        if not all(is_older(content.stamp, self.since) for content in found):
            return None
        # The stamps include files that only locate the folder. The digest excludes them.
        listed = [
            [file.name, content.size, content.digest.hex()]
            for file, content in zip(files, found, strict=True)
            if any(fnmatch(file.name, pattern) for pattern in _READ)
        ]
        digest = hashlib.sha256(b"cenote adapter v1 " + json.dumps([facts, listed], sort_keys=True, default=str).encode())
        return Adapter(digest.digest(), tuple(map(str, files)), tuple(content.stamp for content in found))

    def close(self) -> None:
        """Ends the thread that reads files."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def is_older(stamp: Stamp, since: float) -> bool:
    """True if a file has certainly not changed since `since`, in seconds since the epoch."""
    margin = _CLOCK_SECONDS if stamp[5] in TRUSTED else server_clock_seconds(stamp)
    return keeps_times(stamp) and max(stamp[3], stamp[4]) / 1e9 + margin <= since


def server_clock_seconds(stamp: Stamp) -> float:
    """By how much the clock that sets the times of a file may be behind this machine's."""
    return _SERVER_CLOCK_SECONDS if stamp[5] in _SERVED else 0.0


def keeps_times(stamp: Stamp) -> bool:
    """True if the file system updates the times on every change of a file."""
    return stamp[5] in TRUSTED or stamp[5] in _SERVED


def _key(name: str, path: str, facts: Any) -> tuple[str, str, str]:
    return name, path, json.dumps(facts)


class Loaded:
    """The adapters that a worker process has loaded, by number, with the stamps of their files."""

    def __init__(self, find: Find | None = None) -> None:
        self.find = find
        self._states: dict[int, set[tuple[str, tuple[Stamp, ...] | None]]] = {}

    def look(self, path: str) -> tuple[Stamp, ...] | None:
        """The current stamps of an adapter's files; None if they cannot be read."""
        try:
            found = stamps(files_of(path, self.find))
        except (OSError, ValueError):
            return None
        return tuple(found) if found else None

    def note(self, number: int, path: str, before: tuple[Stamp, ...] | None) -> None:
        """Records that an adapter was loaded. `before` are the stamps of its files before the load.

        If the stamps changed during the load, the loaded content is unknown: None is recorded."""
        after = self.look(path)
        self._states.setdefault(number, set()).add((path, before if before == after else None))

    def is_another(self, number: int, path: str, adapter: Adapter) -> bool:
        """True if this number ever loaded anything other than this adapter from this path."""
        return bool(self._states.get(number, set()) - {(path, adapter.stamps)})

    def is_only(self, number: int, path: str, adapter: Adapter) -> bool:
        """True if this number loaded this adapter from this path, and nothing else."""
        return self._states.get(number) == {(path, adapter.stamps)}
