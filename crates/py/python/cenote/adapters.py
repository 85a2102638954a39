"""Names of LoRA adapters by all of their content. No engine.

An engine loads an adapter on demand, more than once, in several processes, and identifies it by name and path. The files tell
what it has loaded only if they have not changed between the engine's start and the moment a name is used. An adapter whose files
are younger than the engine, or have changed since, has no name, and its requests share nothing. That lasts as long as the engine
lives, because its own prefix cache may hold blocks of both contents by then."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cenote.content import TRUSTED, Cache, Stamp, contents, stamps

# The files that engines read.
_READ = ("adapter_*", "new_embeddings*", "lora_*")
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")

# A file system's clock may be as coarse as a second.
_CLOCK_SECONDS = 2.0
# NFS, SMB, Lustre, Ceph, GPFS: servers keep these times, and their clocks may differ from ours.
_SERVED = {0x6969, 0xFE534D42, 0xFF534D42, 0x0BD00BD0, 0x00C36400, 0x47504653}
_SERVER_CLOCK_SECONDS = 300.0


Find = Callable[[str], list[Path]]
"""The folder of an adapter's path, and files that decide which folder that is. Raises OSError or ValueError if there is none."""


def files_of(path: str, find: Find | None = None) -> list[Path]:
    """The files that engines read of an adapter, and the others that `find` names; none if there are no weights."""
    folder, *others = find(path) if find is not None else [Path(path)]
    read = sorted({file for pattern in _READ for file in folder.glob(pattern) if file.is_file()})
    return [*read, *others] if any(file.name in _WEIGHTS for file in read) else []


@dataclass(frozen=True)
class Adapter:
    """An adapter's content."""

    digest: bytes
    files: tuple[str, ...]
    stamps: tuple[Stamp, ...]

    def holds(self) -> bool:
        """Whether its files are still what they were when they were named."""
        found = stamps([Path(file) for file in self.files])
        return found is not None and tuple(found) == self.stamps


class Adapters:
    """The adapters of one engine, each named once, beside the engine."""

    def __init__(self, facts: Any = None, find: Find | None = None, cache: Cache | None = None) -> None:
        """`facts`: settings of the engine that decide what an adapter does."""
        self.facts, self.find, self.cache = facts, find, cache
        # The engine loads no adapter earlier.
        self.since = time.time()
        self._named: dict[tuple[str, str, str], Future[Adapter | None]] = {}
        self._lost: set[tuple[str, str, str]] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def get(self, name: str, path: str, facts: Any = None) -> Adapter | None | Future[Adapter | None]:
        """The adapter; None: it has no name. A future: its files are being read."""
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
        """The adapter, if it had a name when it was last asked for."""
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
        # Files that locate the folder are watched, but are no part of the content.
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
    """Whether a file certainly has not changed since then."""
    margin = _CLOCK_SECONDS if stamp[5] in TRUSTED else _SERVER_CLOCK_SECONDS
    return keeps_times(stamp) and max(stamp[3], stamp[4]) / 1e9 + margin <= since


def keeps_times(stamp: Stamp) -> bool:
    """Whether every change of a file changes its times."""
    return stamp[5] in TRUSTED or stamp[5] in _SERVED


def _key(name: str, path: str, facts: Any) -> tuple[str, str, str]:
    return name, path, json.dumps(facts)


class Loaded:
    """The adapters that a worker process has loaded, by their numbers, with the stamps of their files."""

    def __init__(self, find: Find | None = None) -> None:
        self.find = find
        self._states: dict[int, set[tuple[str, tuple[Stamp, ...] | None]]] = {}

    def look(self, path: str) -> tuple[Stamp, ...] | None:
        """The present stamps of an adapter's files."""
        try:
            found = stamps(files_of(path, self.find))
        except (OSError, ValueError):
            return None
        return tuple(found) if found else None

    def note(self, number: int, path: str, before: tuple[Stamp, ...] | None) -> None:
        """An adapter was loaded; these were the stamps of its files before."""
        after = self.look(path)
        self._states.setdefault(number, set()).add((path, before if before == after else None))

    def is_another(self, number: int, path: str, adapter: Adapter) -> bool:
        """Whether something else was loaded by this number, ever."""
        return bool(self._states.get(number, set()) - {(path, adapter.stamps)})

    def is_only(self, number: int, path: str, adapter: Adapter) -> bool:
        """Whether this was loaded, and nothing else."""
        return self._states.get(number) == {(path, adapter.stamps)}
