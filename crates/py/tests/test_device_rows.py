"""Rows that a GPU reads out of the registered region: on the fake driver, and the kernel itself, run on the processor."""

from __future__ import annotations

import array
import dataclasses
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_device import FakeDevice
from tables_of import Made
from test_engram import FORMATS, some_rows

import cenote
from cenote import engram
from cenote.device import DeviceTable, RowGather
from cenote.device.rows import to_bfloat16

TOKENS, HEADS = 9, 6


class Rows:
    """A table, the device's memory with row numbers at its start, and room for rows behind them."""

    def __init__(self, region: cenote.Region, folder: Path, stored: str, values: int, scale: float | None, device: Any = None) -> None:
        self.made = Made(folder, stored, 1000, values, scale=scale)
        engram.load(region, "t", **self.made.how)  # type: ignore[arg-type]
        self.table = engram.Table(region, "t")
        self.device: FakeDevice = device or FakeDevice(1 << 18)
        self.reader = DeviceTable(self.device, region, self.table)
        self.out = self.device.base + (1 << 12)

    def put(self, numbers: list[int], kind: str = "q") -> tuple[int, int]:
        data = array.array(kind, numbers)
        self.device.write(0, data.tobytes())
        return self.device.base, data.itemsize

    def got(self, length: int) -> bytes:
        self.device.run()
        assert self.device.idle()
        assert not self.device.wrong, self.device.wrong
        return self.device.read(1 << 12, length)


@pytest.fixture(params=FORMATS, ids=lambda given: given[0])
def rows(region: cenote.Region, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rows]:
    rows = Rows(region, tmp_path, *request.param)
    yield rows
    rows.reader.close()
    assert not rows.device.locked
    assert not rows.device.uploaded


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("kind", "iq")
def test_a_device_has_the_bytes_of_the_processor(rows: Rows, decode: bool, kind: str) -> None:
    numbers = some_rows(1000, TOKENS * HEADS)
    rows.reader.gather(rows.put(numbers, kind), rows.out, TOKENS, HEADS, decode=decode)
    assert rows.device.calls("cuLaunchKernel") == rows.device.calls("cenote_rows") == 1, "one launch for all rows"
    wanted = rows.table.gather(numbers, dtype="bfloat16" if decode else "stored")
    assert rows.got(len(wanted)) == wanted == (rows.made.decoded(numbers) if decode else rows.made.gathered(numbers))


@pytest.mark.parametrize("decode", [False, True])
def test_rows_of_others_and_heads_beyond_the_last_are_zeros(rows: Rows, decode: bool) -> None:
    """As ranks need them: columns 2 to 6 of 8, of which the last does not exist; rows 100 to 899."""
    row_bytes = rows.reader.out_bytes(decode)
    choose = random.Random(1)
    numbers = [[choose.choice((-1, 50, 100, 899, 900, choose.randrange(1000))) for _ in range(8)] for _ in range(TOKENS)]
    base, size = rows.put([number for row in numbers for number in row])
    stride = 4 * row_bytes + 64
    rows.device.write(1 << 12, b"x" * (TOKENS * stride))
    rows.reader.gather(
        (base + 2 * size, size), rows.out, TOKENS, 4,
        id_strides=(8, 1), known_heads=3, first_row=100, end_row=900, out_stride=stride, decode=decode,
    )  # fmt: skip
    read = rows.made.decoded if decode else rows.made.gathered
    wanted = b""
    for row in numbers:
        for head, number in enumerate(row[2:6]):
            wanted += read([number]) if head < 3 and 100 <= number < 900 else bytes(row_bytes)
        wanted += b"x" * 64
    assert rows.got(len(wanted)) == wanted


def test_what_fails_leaves_nothing(region: cenote.Region, tmp_path: Path) -> None:
    rows = Rows(region, tmp_path, *FORMATS[3])
    ids = rows.put([1])
    for wrong in ({"first_row": -1}, {"end_row": 1001}, {"first_row": 5, "end_row": 4}):
        with pytest.raises(ValueError):
            rows.reader.gather(ids, rows.out, 1, 1, **wrong)
    with pytest.raises(ValueError):
        rows.reader.gather((ids[0], 2), rows.out, 1, 1)
    rows.reader.gather(ids, rows.out, 0, 5)
    # The compiled part checks too: other numbers would let the kernel read memory that is not the table's.
    kernel, place = cenote.device.RowKernel(rows.device.gpu), rows.reader.place
    given: dict[str, Any] = {
        "ids": ids[0], "id_bytes": 8, "id_strides": (1, 1), "tokens": 1, "heads": 1, "known_heads": 1, "first_row": 0, "end_row": 9,
        "out": rows.out, "out_stride": 1024, "decode": False,
    }  # fmt: skip
    for wrong in ({"id_bytes": 2}, {"first_row": -1}):
        with pytest.raises(ValueError, match="row numbers"):
            kernel.gather(place, RowGather(**given | wrong), 0)
    without_rows = dataclasses.replace(place, extent_rows=0)
    with pytest.raises(ValueError, match="extents"):
        kernel.gather(without_rows, RowGather(**given), 0)
    rows.device.write(1 << 12, b"x" * place.row_bytes)
    kernel.gather(without_rows, RowGather(**given | {"end_row": 0}), 0)
    assert rows.got(place.row_bytes) == bytes(place.row_bytes), "a table without rows gives zeros"
    with pytest.raises(ValueError, match="even"):
        rows.reader.gather(ids, rows.out + 1, 1, 1, decode=True)
    rows.device.fail("cuLaunchKernel")
    with pytest.raises(RuntimeError, match="cuLaunchKernel"):
        rows.reader.gather(ids, rows.out, 1, 1)
    assert rows.device.idle()
    rows.reader.close()
    rows.reader.close()
    assert not rows.device.locked

    for call in ("cuMemHostRegister", "cuMemHostGetDevicePointer", "cuModuleLoadData", "cuModuleGetFunction"):
        blind = FakeDevice(64)
        blind.fail(call)
        with pytest.raises(RuntimeError, match=call):
            DeviceTable(blind, region, rows.table)
        assert not blind.locked
        assert not blind.uploaded


def test_scales_round_as_bfloat16() -> None:
    for value, rounded in ((1.0, 1.0), (1.00390625, 1.0), (1.01171875, 1.015625), (-1.0039064, -1.0078125), (3.4e38, float("inf"))):
        assert to_bfloat16(value) == rounded


@pytest.fixture(scope="module")
def on_processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs the kernels' source on the processor (`crates/device/kernels/on_processor.cpp` states its jobs)."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler, so the kernel is not run on the processor")
    program = tmp_path_factory.mktemp("kernels") / "on_processor"
    source = Path(__file__).parents[2] / "device/kernels/on_processor.cpp"
    subprocess.run(["c++", "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-o", program, source], check=True)
    return program


STORED = {"e4m3-ue8m0": 0, "e4m3": 1, "f16": 2, "bf16": 3}
AS_STORED = 4


@pytest.mark.parametrize(("stored", "values", "scale"), FORMATS, ids=lambda given: str(given))
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("kind", "iq")
def test_the_kernel_has_the_bytes_of_the_processor(
    on_processor: Path, tmp_path: Path, stored: str, values: int, scale: float | None, decode: bool, kind: str
) -> None:
    """Rows in three extents, rows of others, heads beyond the last, gaps behind each token."""
    made, in_extent = Made(tmp_path, stored, 1000, values, scale=scale), 400
    row_bytes = 2 * values if decode else made.row_bytes
    choose = random.Random(3)
    numbers = [choose.choice((-1, 99, 100, 899, 900, choose.randrange(1000))) for _ in range(TOKENS * HEADS)]
    memory, places = bytearray(), {}

    def put(name: str, data: bytes) -> None:
        memory.extend(bytes(-len(memory) % 64))
        places[name] = len(memory)
        memory.extend(data)

    for extent in range(3):
        put(f"extent {extent}", made.gathered(list(range(in_extent * extent, min(1000, in_extent * (extent + 1))))))
    put("starts", struct.pack("3q", *(places[f"extent {extent}"] for extent in range(3))))
    put("ids", array.array(kind, numbers).tobytes())
    # An address and gaps of two bytes: rows that are stored as words are copied as bytes.
    for shift, gap in ((0, 64), (2, 6)):
        stride = 4 * row_bytes + gap
        put("out", b"x" * (shift + TOKENS * stride))
        out = places["out"] + shift
        first_id = places["ids"] + struct.calcsize(kind)
        gather = struct.pack(
            "8Q4q Q4I f I", 0, places["starts"], first_id, out, in_extent, TOKENS * 4, 4, 3, HEADS, 1, 100, 900, stride,
            struct.calcsize(kind), made.row_bytes, values, STORED[stored] if decode else AS_STORED, to_bfloat16(scale or 1.0), 0,
        )  # fmt: skip
        for grid in (1, 7):
            job = struct.pack("7Q", 2, grid, grid, 0, 0, 0, len(memory)) + gather + memory
            after = subprocess.run([on_processor], input=job, stdout=subprocess.PIPE, check=True).stdout
            read, wanted = (made.decoded if decode else made.gathered), b""
            for token in range(TOKENS):
                for head, number in enumerate(numbers[token * HEADS + 1 :][:4]):
                    wanted += read([number]) if head < 3 and 100 <= number < 900 else bytes(row_bytes)
                wanted += b"x" * gap
            assert after[out : out + len(wanted)] == wanted
            assert after[: places["out"]] == memory[: places["out"]], "nothing else is written"
