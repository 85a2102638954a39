"""What is asked of a device with memory of its own."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias


class DeviceError(RuntimeError):
    """A device could not do what it was asked for."""


class Stream(enum.Enum):
    """Work for the device, in order. Between streams there is no order but what `Device.wait` makes."""

    ENGINE = "engine"
    """The engine's own, as of the calling thread."""
    LOADS = "loads"
    SAVES = "saves"


# Where to, where from, how many bytes.
Copy: TypeAlias = tuple[int, int, int]


class Device(Protocol):
    """Addresses are numbers, of the process for its own memory and of the device for the device's. Every call returns at once,
    and raises if it cannot be done; what goes wrong later, `query` raises. Calls may come from any thread, those for
    `Stream.ENGINE` from the engine's only."""

    def register(self, address: int, length: int) -> None:
        """Page-locks memory of the process, so that the device reaches it. Raises `DeviceError` if that cannot be had."""

    def unregister(self, address: int) -> None:
        """Ends that for what was registered at this address."""

    def allocate(self, length: int) -> int:
        """Page-locked memory, there until it is forgotten."""
        ...

    def forget(self, addresses: Sequence[int]) -> None:
        """Whoever had memory there, of the device's or allocated, needs it no more: each has done with it once."""

    def copy_async(self, stream: Stream, copies: Sequence[Copy]) -> None:
        """Copies between the device's memory and page-locked memory. Among themselves they have no order."""

    def record(self, stream: Stream) -> Any:
        """An event that has come when all that the stream was given so far is done."""

    def query(self, event: Any) -> bool:
        """Whether the event has come."""
        ...

    def wait(self, stream: Stream, event: Any) -> None:
        """What the stream is given from now on begins after the event."""
