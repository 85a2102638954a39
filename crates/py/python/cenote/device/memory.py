"""An engine's KV memory on a device, and the page-locked memory for copies of the device."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import cenote
from cenote.device.copier import Copier
from cenote.device.interface import Copy, Device, Stream
from cenote.device.loads import DeviceLoad, RegionPart, StagedPart
from cenote.device.saves import DeviceSave
from cenote.start import place_thread

if TYPE_CHECKING:
    from cenote.device.layout import PageLayout

# Blocks of one part of a load: a prompt of 2,000 tokens in blocks of 16. The device gets a layer of a
# part in one call.
_PART_BLOCKS = 128
_LINE = 64

# Memories that a device may still write after `close`. The list keeps them until the process ends.
_LEFT: list[object] = []


class Registered:
    """A region page-locked for a device, as a whole or in pieces. All users share one instance."""

    _all: ClassVar[dict[tuple[int, int], Registered]] = {}
    _lock = threading.Lock()

    def __init__(self, device: Device, address: int, length: int, piece_bytes: int) -> None:
        self.device, self.address, self.piece_bytes = device, address, max(length, 1)
        self.pieces: list[int] = []
        self.users = 1
        try:
            self._register(length, length)
        except Exception:
            self.piece_bytes = piece_bytes
            self._register(length, piece_bytes)

    @classmethod
    def share(cls, device: Device, address: int, length: int, piece_bytes: int) -> Registered:
        """The instance for this device and this memory, with one more user."""
        with cls._lock:
            key = (id(device), address)
            if key in cls._all:
                cls._all[key].users += 1
            else:
                cls._all[key] = cls(device, address, length, piece_bytes)
            return cls._all[key]

    def leave(self) -> None:
        """Removes one user. The last user unregisters the pages."""
        with self._lock:
            self.users -= 1
            if self.users == 0:
                del self._all[id(self.device), self.address]
                self._end()

    def _register(self, length: int, piece: int) -> None:
        try:
            for at in range(self.address, self.address + length, piece):
                self.device.register(at, min(piece, self.address + length - at))
                self.pieces.append(at)
        except Exception:
            self._end()
            raise

    def _end(self) -> None:
        while self.pieces:
            self.device.unregister(self.pieces.pop())

    def split(self, copy: Copy, host: int) -> list[Copy]:
        """Splits a copy at the borders of registered pieces.

        `host` is the index of the host address in `copy`: 0 for the destination, 1 for the
        source."""
        to, start, length = copy
        parts = []
        while length > 0:
            left = self.piece_bytes - (copy[host] + copy[2] - length - self.address) % self.piece_bytes
            now = min(left, length)
            parts.append((to, start, now))
            to, start, length = to + now, start + now, length - now
        return parts


class Staging:
    """Page-locked slots. Each slot holds one block with the layout of the region."""

    def __init__(self, device: Device, page_bytes: Sequence[int], size: int, threads: int) -> None:
        self.block_bytes = sum(page_bytes)
        self.count = size // self.block_bytes
        if self.count == 0:
            raise ValueError(f"{size} bytes of staging memory, but one block has {self.block_bytes}")
        self.base = device.allocate(self.count * self.block_bytes)
        layers, at = [], self.base
        for length in page_bytes:
            layers.append((at, self.block_bytes, length))
            at += length
        self.memory = cenote.KvMemory(layers, self.count, device, load_threads=threads)
        self._lock = threading.Lock()
        self._free = list(range(self.count))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def address(self, slot: int) -> int:
        """Address of a slot."""
        return self.base + slot * self.block_bytes

    def take(self, count: int) -> list[int]:
        """Takes `count` slots, or none if fewer are free."""
        with self._lock:
            return self._take(count) if count <= len(self._free) else []

    def take_most(self, count: int) -> list[int]:
        """Takes up to `count` slots."""
        with self._lock:
            return self._take(count)

    def _take(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give_back(self, slots: Sequence[int]) -> None:
        with self._lock:
            self._free.extend(slots)


class DeviceMemory:
    """KV memory on a device: blocks, each with one page per layer.

    It has the interface of `cenote.KvMemory`, for the engine's thread. `layers` has per layer the
    address of the first block and the layout of a block.

    The constructor registers the region's memory with the device, once per process, as a whole or
    in pieces of `piece_bytes`. If that fails, if the region is sealed, or if `staged` is set,
    blocks pass through `staging_bytes` of page-locked memory, and `why_staged` states the reason."""

    def __init__(
        self,
        device: Device,
        region: cenote.Region,
        layers: Sequence[tuple[int, PageLayout]],
        *,
        staging_bytes: int = 256 << 20,
        staged: bool = False,
        piece_bytes: int = 1 << 30,
        threads: int = 1,
        told: Callable[[Exception], None] | None = None,
    ) -> None:
        if not layers or len({layout.num_blocks for _, layout in layers}) != 1 or threads < 1:
            counts = sorted({layout.num_blocks for _, layout in layers})
            raise ValueError(f"{len(layers)} layers of {counts} blocks and {threads} threads")
        page_bytes = [layout.page_bytes for _, layout in layers]
        for number, length in enumerate(page_bytes):
            if length % _LINE != 0:
                raise ValueError(f"layer {number}: a page of {length} bytes is not a multiple of {_LINE}")
        self.device, self.region = device, region
        self.num_layers, self.num_blocks = len(layers), layers[0][1].num_blocks
        self.block_bytes = sum(page_bytes)
        # Per layer: address of the first block, stride between blocks, and runs. A run has its
        # offset in the device's block, its offset in the payload, and its length.
        self._layers: list[tuple[int, int, list[tuple[int, int, int]]]] = []
        at = 0
        for address, layout in layers:
            runs = []
            for offset, length in layout.runs:
                runs.append((offset, at, length))
                at += length
            self._layers.append((address, layout.stride, runs))
        self._told = told
        self._outcomes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.registered: Registered | None = None
        self.staging: Staging | None = None
        self.why_staged = "requested" if staged else ""
        if region.info()["seal"] != "none":
            self.why_staged = "the region is sealed"
        if not self.why_staged:
            try:
                self.registered = Registered.share(device, *region.extent, piece_bytes)
            except Exception as error:
                self.why_staged = f"the region cannot be page-locked: {error}"
        if self.registered is None:
            self.staging = Staging(device, page_bytes, staging_bytes, threads)
        self.copier = Copier(threads, lambda: place_thread(region))
        self._closed = False

    def save(
        self,
        namespace: cenote.Namespace,
        hashes: cenote.Hashes,
        depths: Sequence[int],
        blocks: Sequence[int],
        *,
        names: Sequence[int] | None = None,
        parent: int = 0,
    ) -> DeviceSave:
        """Begins to publish blocks, layer by layer. Skips present blocks and those without room."""
        names = [0] * len(hashes) if names is None else names
        self._check(blocks)
        if not len(hashes) == len(depths) == len(blocks) == len(names):
            raise ValueError(f"{len(hashes)} hashes, {len(depths)} depths, {len(blocks)} blocks, {len(names)} names")
        if namespace.block_bytes != self.block_bytes:
            raise ValueError(f"this memory's blocks have {self.block_bytes} bytes, but the namespace's have {namespace.block_bytes}")
        save = DeviceSave(self, namespace, hashes, depths, blocks, names, parent)
        self.copier.start(save)
        return save

    def load(self, lease: cenote.Lease, blocks: Sequence[int]) -> DeviceLoad:
        """Begins to load the blocks of a lease into `blocks`. The call consumes the lease.

        Only the engine's stream may use the blocks before the load has ended."""
        self._check(blocks)
        if len(lease) != len(blocks):
            raise ValueError(f"a lease of {len(lease)} blocks cannot be loaded into {len(blocks)} blocks")
        load = DeviceLoad(self, blocks)
        parts: list[RegionPart | StagedPart] = []
        if self.staging is None:
            # The copies are verified when they have ended.
            views = [lease.view(number, verify=False) for number in range(len(lease))]
            lease.release()
            for view in views:
                if view.extent[1] != self.block_bytes:
                    raise ValueError(f"a block of {view.extent[1]} bytes, but this memory's blocks have {self.block_bytes}")
            parts += [RegionPart(load, first, views[first : first + _PART_BLOCKS]) for first in range(0, len(views), _PART_BLOCKS)]
        else:
            size = max(1, min(_PART_BLOCKS, self.staging.count // 2))
            parts += [StagedPart(load, first, lease.split(size)) for first in range(0, len(blocks), size)]
        load.begin(parts)
        return load

    def close(self, timeout: float = 5.0) -> bool:
        """Ends all jobs and removes this memory from the device, within `timeout` seconds.

        Returns False after the timeout. Then the memory that the device may still use stays
        page-locked until the process ends."""
        if not self.copier.close(timeout):
            _LEFT.append(self)
            return False
        if self._closed:
            return True
        self._closed = True
        memory = [address for address, _, _ in self._layers]
        if self.registered is not None:
            self.registered.leave()
        if self.staging is not None:
            self.staging.memory.close()
            memory.append(self.staging.base)
        self.device.forget(memory)
        return True

    # --- for loads and saves ---

    def copy_in(self, layer: int, places: Sequence[tuple[int, int]]) -> None:
        """Queues the copies of a layer from page-locked memory to the device."""
        self._copy(Stream.LOADS, [(there, here, length) for here, there, length in self._runs(layer, places)], 1)

    def copy_out(self, layer: int, places: Sequence[tuple[int, int]]) -> None:
        """Queues the copies of a layer from the device to page-locked memory."""
        self._copy(Stream.SAVES, self._runs(layer, places), 0)

    def _copy(self, stream: Stream, copies: list[Copy], host: int) -> None:
        if self.registered is not None and len(self.registered.pieces) > 1:
            copies = [part for copy in copies for part in self.registered.split(copy, host)]
        if copies:
            self.device.copy_async(stream, copies)

    def _runs(self, layer: int, places: Sequence[tuple[int, int]]) -> list[Copy]:
        """Per run: address in page-locked memory, address on the device, length."""
        address, stride, runs = self._layers[layer]
        return [
            (place + in_payload, address + block * stride + offset, length)
            for place, block in places
            for offset, in_payload, length in runs
        ]

    def fence(self, stream: Stream) -> None:
        """Orders all later work of the engine's stream after the work queued on this stream."""
        try:
            self.device.wait(Stream.ENGINE, self.device.record(stream))
        except Exception as error:
            # A device that fails here fails every call, so the engine detects the fault itself.
            self.tell(error)

    def tell(self, error: Exception) -> None:
        """Reports an error that was a miss."""
        if self._told is not None:
            self._told(error)

    def add_outcomes(self, outcomes: Mapping[str, int]) -> None:
        with self._lock:
            self._outcomes.update(outcomes)

    def take_outcomes(self) -> dict[str, int]:
        """Counts of save outcomes since the last call, by name."""
        with self._lock:
            taken, self._outcomes = +self._outcomes, Counter()
        return dict(taken)

    def _check(self, blocks: Sequence[int]) -> None:
        if blocks and (min(blocks) < 0 or max(blocks) >= self.num_blocks):
            raise ValueError(f"block {max(blocks)} is outside of this memory of {self.num_blocks} blocks")
        if len(set(blocks)) != len(blocks):
            raise ValueError("a block is named twice")
