"""Interface of a device with its own memory."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias


class DeviceError(RuntimeError):
    """A device could not execute a call."""


class Stream(enum.Enum):
    """A queue of work for the device, executed in order. Only `Device.wait` orders two streams."""

    ENGINE = "engine"
    """The engine's current stream, as the calling thread sees it."""
    LOADS = "loads"
    SAVES = "saves"


# Destination address, source address, number of bytes.
Copy: TypeAlias = tuple[int, int, int]


class Device(Protocol):
    """A device. Addresses are integers, in the process for host memory and on the device otherwise.

    Every call returns at once and raises if it fails; `query` raises errors that occur later. Any
    thread may call. Only the engine's thread may call with `Stream.ENGINE`."""

    def register(self, address: int, length: int) -> None:
        """Page-locks host memory for access by the device. Raises `DeviceError` on failure."""

    def unregister(self, address: int) -> None:
        """Unlocks the memory that was registered at this address."""

    def allocate(self, length: int) -> int:
        """Allocates page-locked memory; `forget` frees it."""
        ...

    def forget(self, addresses: Sequence[int]) -> None:
        """Drops one use of each memory, of the device or allocated. The last use frees it."""

    def copy_async(self, stream: Stream, copies: Sequence[Copy]) -> None:
        """Copies between device memory and page-locked memory. The copies have no mutual order."""

    def record(self, stream: Stream) -> Any:
        """An event that occurs when all work queued on the stream so far is done."""

    def query(self, event: Any) -> bool:
        """True if the event has occurred."""
        ...

    def wait(self, stream: Stream, event: Any) -> None:
        """Work queued on the stream from now on begins after the event."""
