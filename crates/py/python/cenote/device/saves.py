"""Saves of blocks from the device to the region, layer by layer as the engine computes them.

- Direct: the device writes reserved memory of the region, then the CPU sums and publishes it.
- Staged: the device writes the staging memory, then the CPU publishes from there.

A save frees reserved memory only after the device has finished its copies. The engine's stream
waits for the copies, so the engine may reuse the blocks when the step is over.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cenote.device.interface import Stream

if TYPE_CHECKING:
    import cenote
    from cenote.device.memory import DeviceMemory

# Seconds that the engine waits at the end of a step until all copies are queued on the device.
_ISSUE_SECONDS = 5.0

# Blocks that are summed and published in one turn of the copier thread.
_PUBLISHED_TOGETHER = 8


class DeviceSave:
    """A save in progress, with the interface of `cenote.Save`, for the engine's thread."""

    def __init__(
        self,
        memory: DeviceMemory,
        namespace: cenote.Namespace,
        hashes: cenote.Hashes,
        depths: Sequence[int],
        blocks: Sequence[int],
        names: Sequence[int],
        parent: int,
    ) -> None:
        self.memory, self.namespace, self.hashes = memory, namespace, hashes
        self.depths, self.blocks, self.names, self.parent = list(depths), list(blocks), list(names), parent
        self.bell = threading.Condition()
        # Announced layers without queued copies. Each has the event after which the device may read
        # it.
        self._ready: deque[tuple[int, Any]] = deque()
        self._announced = 0
        self._issued = 0
        self.stopped = False
        self.wanted = False
        # Destinations of the device's copies: reserved blocks (direct) or staging slots (staged).
        self.fillings: list[cenote.Filling] = []
        self.slots: list[int] = []

    # --- called by the engine ---

    def layer(self, layer: int) -> None:
        """Announces this layer and all earlier ones.

        They are computed when the engine's stream has done the work queued so far."""
        event = self.memory.device.record(Stream.ENGINE)
        with self.bell:
            self._ready.extend((number, event) for number in range(self._announced, layer + 1))
            self._announced = max(self._announced, layer + 1)

    def finish(self) -> dict[str, int]:
        """Ends the step. The blocks are published after the device has copied them.

        Returns the counts per outcome of blocks from earlier saves."""
        if self._announced < self.memory.num_layers:
            self.layer(self.memory.num_layers - 1)
        all_issued = self.memory.num_layers
        with self.bell:
            if self.bell.wait_for(lambda: self.stopped or self._issued == all_issued, _ISSUE_SECONDS) and not self.stopped:
                self.wanted = True
            else:
                self.stopped = True
            self.memory.fence(Stream.SAVES)
        return self.memory.take_outcomes()

    def abort(self) -> None:
        """Drops all blocks of the save."""
        with self.bell:
            if self.wanted or self.stopped:
                return
            self.stopped = True
            self.memory.fence(Stream.SAVES)

    def __len__(self) -> int:
        return len(self.blocks)

    # --- called by a copier thread ---

    def run(self) -> Iterator[bool]:
        device = self.memory.device
        try:
            places = self._places()
            while self._issued < self.memory.num_layers and not self.stopped:
                yield self._issue(places)
        except Exception as error:
            self.memory.tell(error)
            self._stop()
        last = device.record(Stream.SAVES)
        while not device.query(last):
            yield False
        # The engine may still abort the save at the step's end.
        while not self.wanted and not self.stopped:
            yield False
        if self.wanted:
            try:
                yield from self._publish()
            except Exception as error:
                self.memory.tell(error)
        left = len(self.fillings) + len(self.slots)
        self._give_back()
        self.memory.add_outcomes({"failed": left})

    def broke(self, error: Exception) -> None:
        self.memory.tell(error)
        self.memory.add_outcomes({"failed": len(self.fillings) + len(self.slots)})
        self._stop()

    def _stop(self) -> None:
        with self.bell:
            self.stopped = True
            self.bell.notify_all()

    def _places(self) -> list[tuple[int, int]]:
        """Reserves memory. Returns the address and the device block of each block to be saved."""
        staging = self.memory.staging
        if staging is not None:
            # Keep the first blocks: a block is useless without its predecessors.
            self.slots = staging.take_most(len(self.blocks))
            self.memory.add_outcomes({"no_room": len(self.blocks) - len(self.slots)})
            return [(staging.address(slot), block) for slot, block in zip(self.slots, self.blocks, strict=False)]
        places = []
        begun = self.namespace.begin_all(self.hashes, self.depths, names=self.names, parent=self.parent)
        for number, filling in enumerate(begun):
            if filling is None:
                there = self.namespace.count([self.hashes[number]]) == 1
                self.memory.add_outcomes({"duplicate" if there else "no_room": 1})
                continue
            self.fillings.append(filling)
            places.append((filling.extent[0], self.blocks[number]))
        return places

    def _issue(self, places: Sequence[tuple[int, int]]) -> bool:
        """Queues the copies of the next layer, if the layer was announced."""
        with self.bell:
            if self.stopped or not self._ready:
                return False
            layer, event = self._ready.popleft()
            self.memory.device.wait(Stream.SAVES, event)
            self.memory.copy_out(layer, places)
            self._issued += 1
            self.bell.notify_all()
            return True

    def _publish(self) -> Iterator[bool]:
        while self.fillings:
            # In order, because a block is useless without its predecessors, and a few at a time,
            # because other work of this thread waits meanwhile.
            first = self.fillings[:_PUBLISHED_TOGETHER]
            del self.fillings[: len(first)]
            self.memory.add_outcomes(Counter(self.namespace.publish_filled(first)))
            yield True
        staging, count = self.memory.staging, len(self.slots)
        if staging is not None and count > 0:
            save = staging.memory.save(
                self.namespace, self.hashes[:count], self.depths[:count], self.slots, names=self.names[:count], parent=self.parent
            )
            outcomes = save.finish()
            staging.give_back(self.slots)
            self.slots = []
            self.memory.add_outcomes(outcomes)

    def _give_back(self) -> None:
        for filling in self.fillings:
            filling.abort()
        self.fillings = []
        if self.slots and self.memory.staging is not None:
            self.memory.staging.give_back(self.slots)
        self.slots = []
