"""Rows of n-gram tables, read by a GPU out of the registered region with one launch of a kernel."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Protocol

import cenote


@dataclass(frozen=True)
class TablePlace:
    """A table as a device addresses it: row r lies in extent r // extent_rows."""

    region: int
    """Address of the region's first byte."""
    starts: int
    """Address of the extents' offsets in the region, 64-bit numbers."""
    extent_rows: int
    rows: int
    row_bytes: int
    row_values: int
    format: str
    scale: float
    """The table's scale, rounded to bfloat16 (`e4m3` only)."""


@dataclass(frozen=True)
class RowGather:
    """Row numbers of tokens, and where the rows go. Addresses are the device's, strides in elements.

    Token t has the numbers `ids[t * id_strides[0] + h * id_strides[1]]` for each head h. Its rows
    lie one after the other from byte `t * out_stride` of the output. A number outside of
    `first_row .. end_row`, and a head from `known_heads` on, gives zeros."""

    ids: int
    id_bytes: int
    id_strides: tuple[int, int]
    tokens: int
    heads: int
    known_heads: int
    first_row: int
    end_row: int
    out: int
    out_stride: int
    decode: bool
    """Rows become bfloat16; otherwise they stay as they are stored."""


class RowDevice(Protocol):
    """A GPU, and memory of it for tables."""

    @property
    def gpu(self) -> cenote.device.Gpu: ...

    def stream(self) -> int:
        """The engine's current stream, as the calling thread sees it."""
        ...

    def register(self, region: cenote.Region) -> cenote.device.Registration:
        """Page-locks a region. The device sees adjacent memory, also if it is locked in pieces."""
        ...

    def upload(self, data: bytes) -> int:
        """Copies bytes into new memory of the device; `forget` frees it."""
        ...

    def forget(self, address: int) -> None:
        """Frees memory of `upload`."""


class DeviceTable:
    """A table of a region that a device reads without the processor.

    The constructor registers the region's memory with the device, once per process. A table that is
    dropped while a device reads it gives undefined rows: `is_there` tells afterwards."""

    def __init__(self, device: RowDevice, region: cenote.Region, table: cenote.Table) -> None:
        self.device, self.table = device, table
        facts, (starts, extent_rows) = table.facts, table.extents
        self.registered: cenote.device.Registration | None = device.register(region)
        try:
            self._kernel = cenote.device.RowKernel(device.gpu)
            self._starts = device.upload(struct.pack(f"{len(starts)}q", *starts))
        except Exception:
            self.registered.close()
            raise
        self.place = TablePlace(
            self.registered.seen, self._starts, extent_rows, table.rows, table.row_bytes, table.row_values, facts["format"],
            to_bfloat16(facts.get("scale") or 1.0),
        )  # fmt: skip

    def out_bytes(self, decode: bool) -> int:
        """Bytes of a row in the output."""
        return 2 * self.place.row_values if decode else self.place.row_bytes

    def gather(self, ids: tuple[int, int], out: int, tokens: int, heads: int, **how: Any) -> None:
        """Queues a gather of contiguous row numbers on the engine's current stream. `ids` is their address and their size in bytes.

        `how` replaces fields of `RowGather`."""
        if tokens * heads == 0:
            return
        decode = bool(how.get("decode", False))
        given = {
            "id_strides": (heads, 1), "known_heads": heads, "first_row": 0, "end_row": self.place.rows,
            "out_stride": heads * self.out_bytes(decode), "decode": decode,
        } | how  # fmt: skip
        rows = RowGather(ids=ids[0], id_bytes=ids[1], tokens=tokens, heads=heads, out=out, **given)
        if rows.id_bytes not in (4, 8) or not 0 <= rows.first_row <= rows.end_row <= self.place.rows:
            raise ValueError(f"numbers of {rows.id_bytes} bytes, rows {rows.first_row} to {rows.end_row} of {self.place.rows}")
        self._kernel.gather(self.place, rows, self.device.stream())

    def close(self) -> None:
        """Unregisters the memory. No gather may be under way."""
        if self.registered is not None:
            self.device.forget(self._starts)
            self.registered.close()
            self.registered = None


def to_bfloat16(value: float) -> float:
    """Rounds to the nearest bfloat16, ties to even."""
    bits = struct.unpack("I", struct.pack("f", value))[0]
    if bits & 0x7F800000 != 0x7F800000:
        bits += 0x7FFF + (bits >> 16 & 1)
    rounded: float = struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0]
    return rounded
