"""A fake device that executes work late, in pieces and in any permitted order; it fails on demand.

- Permitted: any order of the copies of one call, pieces between other streams' work, stalled
  streams.
- Required: the calls of a stream in order, waits, and events only after all earlier work.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tables_of import decode
from waiting import until

from cenote.device import DeviceError, RowGather, Stream, TablePlace
from cenote.device.interface import Copy

# The device sees registered memory at other addresses than the processor.
SEEN = 1 << 60


@dataclass
class Event:
    came: bool = False


@dataclass
class _Copies:
    left: list[Copy]


@dataclass
class _Gather:
    table: TablePlace
    rows: RowGather
    left: list[int]


@dataclass
class _Wait:
    event: Event


class FakeDevice:
    """A device with `size` bytes of memory at `base`."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.memory = (ctypes.c_uint8 * size)()
        self.base = ctypes.addressof(self.memory)
        self.lock = threading.RLock()
        self.streams: dict[Stream, deque[_Copies | _Gather | _Wait | Event | Callable[[], None]]] = {s: deque() for s in Stream}
        self.held: set[Stream] = set()
        self.locked: dict[int, int] = {}
        self.allocated: list[ctypes.Array[ctypes.c_uint8]] = []
        self.forgotten: list[int] = []
        # Faults: longest possible registration, and number of successful calls of `copy_async` and
        # `query`.
        self.register_max: int | None = None
        self.copies_until: int | None = None
        self.queries_until: int | None = None
        self.gathers_until: int | None = None
        self.calls = {"copy": 0, "query": 0, "gather": 0}
        self.uploaded: list[ctypes.Array[ctypes.c_char]] = []
        self.wrong: list[str] = []
        self.watch: Callable[[Copy], None] | None = None

    # --- the interface `Device` ---

    def register(self, address: int, length: int) -> None:
        with self.lock:
            if self.register_max is not None and length > self.register_max:
                raise DeviceError(f"{length} bytes cannot be locked")
            assert address not in self.locked
            self.locked[address] = length

    def unregister(self, address: int) -> None:
        with self.lock:
            del self.locked[address]
            if any(isinstance(call, _Copies | _Gather) for stream in self.streams.values() for call in stream):
                self.wrong.append("memory was unregistered under a copy")

    def allocate(self, length: int) -> int:
        self.allocated.append((ctypes.c_uint8 * length)())
        address = ctypes.addressof(self.allocated[-1])
        self.locked[address] = length
        return address

    def forget(self, addresses: Sequence[int]) -> None:
        with self.lock:
            if any(isinstance(call, _Copies | _Gather) for stream in self.streams.values() for call in stream):
                self.wrong.append("memory was forgotten under a copy")
            for address in addresses:
                self.forgotten.append(address)
                self.uploaded = [each for each in self.uploaded if ctypes.addressof(each) != address]
                for memory in [each for each in self.allocated if ctypes.addressof(each) == address]:
                    self.allocated.remove(memory)
                    del self.locked[address]

    def copy_async(self, stream: Stream, copies: Sequence[Copy]) -> None:
        with self.lock:
            self._count("copy", self.copies_until)
            for to, start, length in copies:
                host = to if stream is Stream.SAVES else start
                if not any(at <= host and host + length <= at + size for at, size in self.locked.items()):
                    self.wrong.append(f"{length} bytes at {host:#x} are not page-locked as a whole")
            self.streams[stream].append(_Copies(list(copies)))

    def upload(self, data: bytes) -> int:
        self.uploaded.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self.uploaded[-1])

    def seen(self, address: int) -> int:
        if not any(at <= address < at + size for at, size in self.locked.items()):
            raise DeviceError(f"{address:#x} is not registered")
        return address + SEEN

    def gather_async(self, stream: Stream, table: TablePlace, rows: RowGather) -> None:
        with self.lock:
            self._count("gather", self.gathers_until)
            self.streams[stream].append(_Gather(table, rows, list(range(rows.tokens * rows.heads))))

    def record(self, stream: Stream) -> Event:
        with self.lock:
            event = Event()
            self.streams[stream].append(event)
            return event

    def query(self, event: Event) -> bool:
        with self.lock:
            self._count("query", self.queries_until)
            for _ in range(self.random.randrange(20)):
                self._step()
            return event.came

    def wait(self, stream: Stream, event: Event) -> None:
        with self.lock:
            self.streams[stream].append(_Wait(event))

    def _count(self, call: str, until: int | None) -> None:
        self.calls[call] += 1
        if until is not None and self.calls[call] > until:
            raise DeviceError(f"{call} number {self.calls[call]} fails on purpose")

    # --- controls for tests ---

    def engine(self, work: Callable[[], None]) -> None:
        """Queues work on the engine's stream."""
        with self.lock:
            self.streams[Stream.ENGINE].append(work)

    def write(self, at: int, content: bytes) -> None:
        ctypes.memmove(self.base + at, content, len(content))

    def read(self, at: int, length: int) -> bytes:
        return ctypes.string_at(self.base + at, length)

    def run(self) -> None:
        """Executes all work that is not held or waiting."""
        with self.lock:
            while self._step():
                pass

    def run_until(self, what: str, so: Callable[[], bool]) -> None:
        """Executes work until another thread makes `so` true."""

        def look() -> bool:
            self.run()
            return so()

        until(what, look)

    def idle(self) -> bool:
        """True if no stream has work left."""
        return not any(self.streams.values())

    def _step(self) -> bool:
        able = [stream for stream, calls in self.streams.items() if calls and stream not in self.held and self._may(calls[0])]
        if not able:
            return False
        calls = self.streams[self.random.choice(able)]
        match calls[0]:
            case _Copies(left) if left:
                self._copy_some(left)
                return True
            case _Gather(table, rows, left) if left:
                self._gather_one(table, rows, left.pop(self.random.randrange(len(left))))
                return True
            case Event() as event:
                event.came = True
            case _Wait() | _Copies() | _Gather():
                pass
            case work:
                work()
        calls.popleft()
        return True

    @staticmethod
    def _may(call: object) -> bool:
        return call.event.came if isinstance(call, _Wait) else True

    def _copy_some(self, left: list[Copy]) -> None:
        place = self.random.randrange(len(left))
        to, start, length = left.pop(place)
        now = min(length, self.random.choice((64, 192, 1024, length)))
        if self.watch is not None:
            self.watch((to, start, length))
        ctypes.memmove(to, start, now)
        if now < length:
            left.append((to + now, start + now, length - now))


    def _gather_one(self, table: TablePlace, rows: RowGather, number: int) -> None:
        """One row, by one row's arithmetic."""
        token, head = divmod(number, rows.heads)
        at = rows.ids + rows.id_bytes * (token * rows.id_strides[0] + head * rows.id_strides[1])
        (row,) = struct.unpack({4: "i", 8: "q"}[rows.id_bytes], ctypes.string_at(at, rows.id_bytes)) if head < rows.known_heads else (-1,)
        if rows.first_row <= row < rows.end_row:
            extent, within = divmod(row, table.extent_rows)
            (start,) = struct.unpack("q", ctypes.string_at(table.starts + 8 * extent, 8))
            place = table.region - SEEN + start + within * table.row_bytes
            if not any(at <= place and place + table.row_bytes <= at + size for at, size in self.locked.items()):
                self.wrong.append(f"row {row} at {place:#x} is not page-locked")
                return
            content = ctypes.string_at(place, table.row_bytes)
            content = decode(table.format, content, table.scale) if rows.decode else content
        else:
            content = bytes(2 * table.row_values if rows.decode else table.row_bytes)
        ctypes.memmove(rows.out + token * rows.out_stride + head * len(content), content, len(content))

