"""Loads of blocks from the region to the device, layer by layer.

The engine uses a block only after its checksum matched.

- Direct: the device copies a pinned block, then the CPU sums the block in place. No process writes
  a pinned block. The checksum's key covers the block and the use of its slot. So a checksum that
  matches after the copy also matched during the copy.
- Staged: the CPU copies and sums in one pass, and the device copies only the blocks that matched.

A cancelled load cannot revoke copies that the device already has. The engine's stream waits for
them, so later writes of the engine into these blocks come last.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cenote import _native
from cenote.clock import Deadline
from cenote.device.interface import Stream

if TYPE_CHECKING:
    import cenote
    from cenote.device.memory import DeviceMemory


class DeviceLoad:
    """A load in progress, with the interface of `cenote.Load`, for the engine's thread."""

    def __init__(self, memory: DeviceMemory, blocks: Sequence[int]) -> None:
        self.memory, self.blocks = memory, list(blocks)
        self.bell = threading.Condition()
        # Copies begin after the work on these blocks that the engine has queued so far.
        self.ready = memory.device.record(Stream.ENGINE)
        self.parts = 0
        self.stopped = False
        # A part has failed, and the device may still execute its copies.
        self.lost = False
        # Per layer: the number of parts not yet queued on the device, and the events after the
        # queued parts.
        self._to_issue: list[int] = []
        self._events: list[list[Any]] = [[] for _ in range(memory.num_layers)]
        self._failed: list[int] = []

    def begin(self, parts: Sequence[_Part]) -> None:
        """Hands the parts to the threads."""
        self.parts, self._to_issue = len(parts), [len(parts)] * self.memory.num_layers
        for part in parts:
            self.memory.copier.start(part)

    # --- called by the engine ---

    def wait_layer(self, layer: int, timeout: float | None) -> bool:
        """Makes the engine's stream wait for this layer of all blocks.

        Returns False if the copies were not queued within `timeout` seconds, or if the load has
        failed or was cancelled."""
        deadline = Deadline(timeout)
        with self.bell:
            if not deadline.wait_for(self.bell, lambda: self.stopped or self._to_issue[layer] == 0) or self.stopped:
                return False
            events = list(self._events[layer])
        try:
            for event in events:
                self.memory.device.wait(Stream.ENGINE, event)
        except Exception as error:
            self.memory.tell(error)
            return False
        return True

    def wait(self, timeout: float | None) -> bool:
        """Waits until the load has ended. Returns False after `timeout` seconds."""
        deadline = Deadline(timeout)
        with self.bell:
            return deadline.wait_for(self.bell, lambda: self.done)

    @property
    def done(self) -> bool:
        """True if all parts have ended, or the load was cancelled."""
        return self.stopped or self.parts == 0

    def failed(self) -> list[int]:
        """Indices of the invalid blocks in the load; all indices until all parts have ended.

        Later work of the engine on these blocks comes after the remaining copies."""
        with self.bell:
            if self.lost:
                self.memory.fence(Stream.LOADS)
            whole = self.parts == 0 and not self.stopped
            return sorted(self._failed) if whole else list(range(len(self.blocks)))

    def cancel(self) -> None:
        """Cancels the load. Later work of the engine comes after the remaining copies."""
        with self.bell:
            if self.done:
                return
            self.stopped = True
            self.bell.notify_all()
            self.memory.fence(Stream.LOADS)

    def __len__(self) -> int:
        return len(self.blocks)

    # --- called by parts ---

    def issue(self, layer: int, places: Sequence[tuple[int, int]]) -> bool:
        """Queues the copies of a layer of some blocks. Returns False if the load was cancelled."""
        with self.bell:
            if self.stopped:
                return False
            self.memory.copy_in(layer, places)
            self._events[layer].append(self.memory.device.record(Stream.LOADS))
            self._to_issue[layer] -= 1
            self.bell.notify_all()
            return True

    def skip(self, layers: range, numbers: Sequence[int]) -> None:
        """Records the failure of a part: waits skip its layers, and its blocks are invalid."""
        with self.bell:
            self.lost = True
            for layer in layers:
                self._to_issue[layer] -= 1
            self._failed.extend(numbers)
            self.bell.notify_all()

    def end_part(self, failed: Sequence[int]) -> None:
        with self.bell:
            self._failed.extend(failed)
            self.parts -= 1
            self.bell.notify_all()


class _Part:
    """Some blocks of a load. `places` pair addresses in page-locked memory with device blocks."""

    def __init__(self, load: DeviceLoad, first: int, count: int) -> None:
        self.load, self.memory = load, load.memory
        self.numbers = range(first, first + count)
        self.blocks = load.blocks[first : first + count]
        self.issued = 0
        self.ended = False

    def run(self) -> Iterator[bool]:
        raise NotImplementedError

    def broke(self, error: Exception) -> None:
        self.memory.tell(error)
        self._lose()

    def _lose(self) -> None:
        if not self.ended:
            self.ended = True
            self.load.skip(range(self.issued, self.memory.num_layers), list(self.numbers))
            self.issued = self.memory.num_layers
            self.load.end_part([])

    def _copy(self, places: Sequence[tuple[int, int]]) -> Iterator[bool]:
        """Queues the copies of all layers and waits until the device has executed them.

        Waits even after an error, because the device may have earlier layers."""
        device = self.memory.device
        try:
            device.wait(Stream.LOADS, self.load.ready)
            for layer in range(self.memory.num_layers):
                if not self.load.issue(layer, places):
                    break
                self.issued = layer + 1
                yield True
        except Exception as error:
            self.memory.tell(error)
            self._lose()
        last = device.record(Stream.LOADS)
        while not device.query(last):
            yield False

    def _end(self, failed: list[int]) -> None:
        if not self.ended:
            self.ended = True
            self.load.end_part(failed)


class RegionPart(_Part):
    """A part that the device copies directly from the region."""

    def __init__(self, load: DeviceLoad, first: int, views: Sequence[cenote.BlockView]) -> None:
        super().__init__(load, first, len(views))
        # The views keep the blocks pinned.
        self.views = list(views)

    def run(self) -> Iterator[bool]:
        places = [(view.extent[0], block) for view, block in zip(self.views, self.blocks, strict=True)]
        yield from self._copy(places)
        failed = []
        every = _native._failing_loads()
        for number, view in zip(self.numbers, self.views, strict=True):
            if self.load.stopped or self.ended:
                break
            if not view.verify() or (every and number % every == 0):
                failed.append(number)
            yield True
        self.views.clear()
        self._end(failed)


class StagedPart(_Part):
    """A part that passes through the staging memory."""

    def __init__(self, load: DeviceLoad, first: int, lease: cenote.Lease) -> None:
        super().__init__(load, first, len(lease))
        self.lease = lease
        self.slots: list[int] = []

    def run(self) -> Iterator[bool]:
        staging = self.memory.staging
        assert staging is not None
        while not (slots := staging.take(len(self.blocks))) and not self.load.stopped:
            yield False
        self.slots = slots
        if slots:
            host = staging.memory.load(self.lease, slots)
            while not host.done and not self.load.stopped:
                yield False
            host.cancel()
            lost = set(host.failed())
            whole = [place for place in range(len(self.blocks)) if place not in lost]
            yield from self._copy([(staging.address(slots[place]), self.blocks[place]) for place in whole])
            staging.give_back(slots)
            self._end([self.numbers[place] for place in sorted(lost)])
        else:
            self.lease.release()
            self._end(list(self.numbers))
