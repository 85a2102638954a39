"""LMCache's L2 adapter. Two controller threads of LMCache call it.

The adapter counts each error as a miss and completes every task."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

import cenote
from cenote import clock
from cenote.attachment import SETTINGS, Attachment, Wanted, check_names
from cenote.clock import Deadline
from cenote.model_files import refuse_media, weights_name
from cenote.serving import serving
from cenote.start import place_thread

if TYPE_CHECKING:
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from lmcache.v1.memory_management import MemoryObj

logger = logging.getLogger(__name__)

_SETTINGS = SETTINGS | {"lease_timeout", "close_timeout", "model_folder", "model_fingerprint", "trust_media_names"}
# An engine takes longer than this from the change of its files to its first lookup.
_LOOK_SECONDS = 1.0
# The lease of a lookup, and the index of a block in it.
_Kept = tuple[cenote.Lease, int]
# Model, rank, object group.
_Shard = tuple[str, int, int]


class CenoteL2Adapter(L2AdapterInterface):
    """LMCache's objects in a region. An object is one block, present as a whole or absent."""

    def __init__(self, params: dict[str, Any], **_: Any) -> None:
        check_names("adapter_params", params, _SETTINGS)
        wanted = Wanted.of("adapter_params", params)
        folder = Path(str(params.get("model_folder") or ""))
        if folder.is_dir():
            refuse_media(params, "adapter_params", folder, "LMCache's keys go by the names that vLLM's clients may choose (uuid)")
        self.weights = weights_name(params, "adapter_params", logger, is_engine=False)
        self._looked, self._looking = clock.now(), threading.Lock()
        # No capacity: the region evicts by itself, and LMCache does not see its other users.
        super().__init__()
        self.name, self.salt = wanted.name, wanted.salt
        self.lease_timeout = _seconds(params, "lease_timeout", 60.0)
        self.close_timeout = _seconds(params, "close_timeout", 30.0)
        # The size of an object is known only with the first one.
        self._attachment = Attachment(wanted, "lmcache", None, logger)
        self.region = self._attachment.region
        self.errors = 0
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._spaces: dict[bytes, cenote.Namespace] = {}
        # Last layout of each shard's objects, for lookups without a layout.
        self._layouts: dict[_Shard, list[Any]] = {}
        self._kept: dict[ObjectKey, deque[_Kept]] = {}
        # Leases with their deadlines, in order of deadline. They end then if LMCache never unlocks
        # them.
        self._ends: OrderedDict[int, tuple[Deadline, list[ObjectKey], cenote.Lease]] = OrderedDict()
        self._tasks = 0
        self._stored: dict[int, L2StoreResult] = {}
        self._found: dict[int, Bitmap] = {}
        self._loaded: dict[int, Bitmap] = {}
        self._store_event, self._lookup_event, self._load_event = (create_event_notifier() for _ in range(3))
        self._storing = ThreadPoolExecutor(1, "cenote-store", initializer=place_thread, initargs=(self.region,))
        self._loading = ThreadPoolExecutor(1, "cenote-load", initializer=place_thread, initargs=(self.region,))
        # Lookups that wait for blocks from the cold tier or peers, each at most for their deadlines.
        self._promoting = ThreadPoolExecutor(4, "cenote-promote") if self.region.promotes else None
        self._running: set[Future[None]] = set()
        self._closed = False

    def get_store_event_fd(self) -> int:
        return int(self._store_event.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookup_event.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._load_event.fileno())

    # --- stores: on a thread, because they copy ---

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        task = self._next_task()

        def store() -> None:
            done = self._store(keys, objects)
            with self._lock:
                self._stored[task] = L2StoreResult(done is not None, done or 0)
            self._store_event.notify()

        self._start(self._storing, store)
        return task

    @serving(lambda: None)
    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int | None:
        """Returns the number of bytes written; None if an object is missing from the region."""
        spaces: dict[int, tuple[cenote.Namespace, list[tuple[ObjectKey, MemoryObj]]]] = {}
        for key, item in zip(keys, objects, strict=True):
            space = self._space_of(key, item)
            spaces.setdefault(space.id, (space, []))[1].append((key, item))
        sizes: dict[ObjectKey, int] = {}
        for space, items in spaces.values():
            names = [_name(space, key) for key, _ in items]
            # LMCache does not pass an object's position in the prompt. The objects of one task are
            # of one prompt, in order.
            outcomes = space.publish_all(names, range(len(items)), [item.byte_array for _, item in items])
            for (key, item), outcome in zip(items, outcomes, strict=True):
                if outcome in ("published", "duplicate"):
                    sizes[key] = item.get_size() if outcome == "published" else 0
        stored = [key for key in keys if key in sizes]
        if stored:
            self._notify_keys_stored(stored, [sizes[key] for key in stored])
        return sum(sizes.values()) if len(stored) == len(keys) else None

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._lock:
            done, self._stored = self._stored, {}
        return done

    # --- lookups: reads of memory, in the calling thread ---

    def submit_lookup_and_lock_task(
        self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc] | None = None
    ) -> int:
        task, layouts = self._next_task(), group_layout_descs or {}

        def look_up() -> None:
            found = self._look_up(keys, layouts)
            with self._lock:
                self._found[task] = _bitmap(len(keys), found)
            self._lookup_event.notify()

        promotions = self._promote(keys, layouts)
        if promotions and self._promoting is not None:

            def wait_and_look_up() -> None:
                for promotion in promotions:
                    promotion.wait()
                look_up()

            self._start(self._promoting, wait_and_look_up)
        else:
            look_up()
        return task

    @serving(list)
    def _promote(self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc]) -> list[cenote.Promotion]:
        """Begins to copy missing objects from the cold tier and peers into the region."""
        if self._promoting is None:
            return []
        begun = []
        for space, places in self._shards_of(keys, layouts):
            promotion = space.promote([_name(space, keys[place]) for place in places], all=True)
            begun += [promotion] if promotion is not None else []
        return begun

    @serving(list)
    def _look_up(self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc]) -> list[int]:
        """Indices of the present keys. Pins their blocks until unlock or `lease_timeout`."""
        self._attachment.look()
        self._end_leases()
        found: list[int] = []
        for space, places in self._shards_of(keys, layouts):
            for first, lease in _runs(space, [keys[place] for place in places]):
                run = places[first : first + len(lease)]
                self._keep([keys[place] for place in run], lease)
                found += run
        return found

    def _shards_of(
        self, keys: list[ObjectKey], layouts: dict[int, MemoryLayoutDesc]
    ) -> Iterator[tuple[cenote.Namespace, list[int]]]:
        """The namespaces of these keys, each with its keys' indices. Skips shards of unknown layout."""
        shards: dict[_Shard, list[int]] = {}
        for place, key in enumerate(keys):
            shards.setdefault(_shard(key), []).append(place)
        for shard, places in shards.items():
            # LMCache's layout is a hint and may be empty.
            described = layouts.get(shard[2])
            layout = _layout(described.shapes, described.dtypes) if described is not None else []
            if _bytes(layout) == 0:
                layout = self._layouts.get(shard, [])
                if not layout:
                    continue
            yield self._space(keys[places[0]], layout), places

    def _keep(self, keys: list[ObjectKey], lease: cenote.Lease) -> None:
        with self._lock:
            self._ends[id(lease)] = (Deadline(self.lease_timeout), keys, lease)
            for number, key in enumerate(keys):
                self._kept.setdefault(key, deque()).append((lease, number))

    def _end_leases(self) -> None:
        """Releases leases that LMCache did not unlock in time. Their blocks become evictable."""
        with self._lock:
            while self._ends and next(iter(self._ends.values()))[0].passed:
                _, (_, keys, lease) = self._ends.popitem(last=False)
                for key in keys:
                    self._let_go(key, lease)
                lease.release()

    def _let_go(self, key: ObjectKey, lease: cenote.Lease | None = None) -> None:
        """Drops one lease of this key: the given one, or the oldest.

        Releases a lease with the last of its keys."""
        if (kept := self._kept.get(key)) is None:
            return
        gone = next((one for one in kept if lease is None or one[0] is lease), None)
        if gone is not None:
            kept.remove(gone)
            end = self._ends.get(id(gone[0]))
            if end is not None:
                end[1].remove(key)
                if not end[1]:
                    del self._ends[id(gone[0])]
                    gone[0].release()
        if not kept:
            del self._kept[key]

    def query_lookup_and_lock_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._found.pop(task_id, None)

    @serving(lambda: None)
    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        with self._lock:
            for key in keys:
                self._let_go(key)

    # --- loads: on a thread, because they copy ---

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        task = self._next_task()

        def load() -> None:
            loaded = self._load(keys, objects)
            with self._lock:
                self._loaded[task] = _bitmap(len(keys), loaded)
            self._load_event.notify()

        self._start(self._loading, load)
        return task

    @serving(list)
    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> list[int]:
        """Indices of the keys that were loaded into their objects' memory."""
        loaded = [place for place, (key, item) in enumerate(zip(keys, objects, strict=True)) if self._load_one(key, item)]
        if loaded:
            self._notify_keys_accessed([keys[place] for place in loaded])
        return loaded

    @serving(lambda: False)
    def _load_one(self, key: ObjectKey, item: MemoryObj) -> bool:
        with self._lock:
            kept = self._kept.get(key)
            lease, number = kept[0] if kept else (None, 0)
        if lease is None:
            # The key was not looked up, or its lease has timed out.
            space = self._space_of(key, item)
            lease = space.lookup([_name(space, key)])
        return number < len(lease) and lease.read_into(number, item.byte_array)

    def query_load_result(self, task_id: int) -> Bitmap | None:
        with self._lock:
            return self._loaded.pop(task_id, None)

    # --- status and end ---

    def get_usage(self) -> AdapterUsage:
        """Bytes of LMCache's models in the region, over all its users.

        Reports neither a capacity nor salts. LMCache would evict by them and wait for bytes that
        only the region's own eviction frees."""
        return AdapterUsage(total_bytes_used=self._bytes_used(), total_capacity_bytes=0)

    @serving(lambda: 0)
    def _bytes_used(self) -> int:
        with self._lock:
            ours = {space.id for space in self._spaces.values()}
        return sum(space["bytes"] for space in self.region.info()["namespaces"] if space["id"] in ours)

    def report_status(self) -> dict[str, Any]:
        with self._lock:
            locked = len(self._kept)
        return {
            "is_healthy": not self.region.closed and self.region.degraded is None, "type": "CenoteL2Adapter", "region": self.name, "errors": self.errors,
            "locked_keys": locked, "cold": self.region.cold if not self.region.closed else None,
            "peers": self.region.peers if not self.region.closed else None,
        }  # fmt: skip

    def close(self) -> None:
        """Waits for running tasks up to `close_timeout` and leaves the region.

        Cancels queued tasks."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for pool in filter(None, (self._storing, self._loading, self._promoting)):
            pool.shutdown(wait=False, cancel_futures=True)
        deadline = Deadline(self.close_timeout)
        for future in running:
            if not future.cancelled():
                try:
                    future.result(deadline.left)
                except Exception as error:
                    self.went_wrong("close", error)
        with self._lock:
            for _, _, lease in self._ends.values():
                lease.release()
            self._ends.clear()
            self._kept.clear()
        self.region.close()
        for event in (self._store_event, self._lookup_event, self._load_event):
            event.close()

    def went_wrong(self, where: str, error: BaseException) -> None:
        self.errors += 1
        kind = f"{where}: {type(error).__name__}: {error}"
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("Cenote: %s, which counts as a miss", kind, exc_info=error)

    def _next_task(self) -> int:
        with self._lock:
            self._tasks += 1
            return self._tasks

    def _start(self, pool: ThreadPoolExecutor, work: Any) -> None:
        with self._lock:
            if not self._closed:
                future = pool.submit(work)
                self._running.add(future)
                future.add_done_callback(self._running.discard)

    def _space_of(self, key: ObjectKey, item: MemoryObj) -> cenote.Namespace:
        layout = _layout_of(item)
        if item.get_size() != _bytes(layout):
            raise ValueError(
                f"an object of {item.get_size()} bytes has a layout of {_bytes(layout)}: Cenote stores raw objects only; "
                "turn off LMCache's serialization (`serde`)"
            )
        return self._space(key, layout)

    def _weights(self) -> str:
        """The name of the weights. An engine may load them at any time, so the files must stay as they were hashed."""
        with self._looking:
            if clock.now() - self._looked >= _LOOK_SECONDS:
                self._looked = clock.now()
                self.weights.hold(logger)
            return self.weights.text

    def _space(self, key: ObjectKey, layout: list[Any]) -> cenote.Namespace:
        """The namespace of a model's objects of this layout."""
        size = _bytes(layout)
        facts = {
            "model": key.model_name, "weights": self._weights(), "object group": key.object_group_id, "layout": layout, "tenant salt": self.salt,
        }  # fmt: skip
        identity = b"cenote lmcache v2 " + json.dumps(facts, sort_keys=True).encode()
        with self._lock:
            self._layouts[_shard(key)] = layout
            known = self._spaces.get(identity)
        if known is None:
            label = f"{key.model_name.rstrip('/').rsplit('/', 1)[-1]} {key.object_group_id}"
            known = self._attachment.namespace(identity, size, label=label)
            with self._lock:
                self._spaces[identity] = known
        return known


def _runs(space: cenote.Namespace, keys: list[ObjectKey]) -> Iterator[tuple[int, cenote.Lease]]:
    """Yields runs of present blocks: index of the first key, and the lease.

    LMCache also uses runs after a gap. Each lookup ends at the first missing block. It gives all
    its blocks one recency, so that eviction starts at the end of a prompt."""
    names, at = space.alias(_key_bytes(key) for key in keys), 0
    while at < len(keys):
        lease = space.lookup(names[at:])
        if len(lease) > 0:
            yield at, lease
        at += len(lease) + 1


def _name(space: cenote.Namespace, key: ObjectKey) -> bytes:
    return space.alias([_key_bytes(key)])[0]


def _key_bytes(key: ObjectKey) -> bytes:
    """Key of an object in its namespace. It includes the rank.

    A region may have fewer namespace rows than there are ranks."""
    salt = key.cache_salt.encode()
    return key.kv_rank.to_bytes(8, "little") + len(salt).to_bytes(4, "little") + salt + key.chunk_hash


def _shard(key: ObjectKey) -> _Shard:
    return key.model_name, key.kv_rank, key.object_group_id


def _layout_of(item: MemoryObj) -> list[Any]:
    try:
        return _layout(item.get_shapes(), item.get_dtypes())
    except AssertionError:
        # An object of one tensor has no list of shapes.
        return _layout([item.get_shape()], [item.get_dtype()])


def _layout(shapes: Iterable[Any], dtypes: Iterable[Any]) -> list[Any]:
    return [[list(shape), str(dtype), dtype.itemsize] for shape, dtype in zip(shapes, dtypes, strict=True)]


def _bytes(layout: list[Any]) -> int:
    total = 0
    for shape, _, size in layout:
        for extent in shape:
            size *= extent
        total += size
    return total


def _bitmap(length: int, places: Iterable[int]) -> Bitmap:
    bitmap = Bitmap(length)
    for place in places:
        bitmap.set(place)
    return bitmap


def _seconds(params: dict[str, Any], name: str, otherwise: float) -> float:
    value = params.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"adapter_params: {name} is {value!r}; give a number of at least 0")
    return float(value)
