"""Rows that a device reads out of the registered region: a fake device, and the kernel itself."""

from __future__ import annotations

import array
import dataclasses
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_device import SEEN, FakeDevice
from tables_of import Made
from test_engram import FORMATS, some_rows

import cenote
from cenote import engram
from cenote.device import DeviceTable
from cenote.device.rows import RowGather, TablePlace, to_bfloat16

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
    assert rows.device.gathered == 1, "one kernel for all rows"
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
    rows.device.gathers_until = 0
    with pytest.raises(RuntimeError):
        rows.reader.gather(ids, rows.out, 1, 1)
    assert rows.device.idle()
    rows.reader.close()
    rows.reader.close()
    assert not rows.device.locked

    for call in ("cuMemHostRegister", "cuMemHostGetDevicePointer"):
        blind = FakeDevice(64)
        blind.fail(call)
        with pytest.raises(RuntimeError, match=call):
            DeviceTable(blind, region, rows.table)
        assert not blind.locked
        assert not blind.uploaded


def test_scales_round_as_bfloat16() -> None:
    for value, rounded in ((1.0, 1.0), (1.00390625, 1.0), (1.01171875, 1.015625), (-1.0039064, -1.0078125), (3.4e38, float("inf"))):
        assert to_bfloat16(value) == rounded


class Interpreted(FakeDevice):
    """The kernel, run at once by Triton's interpreter on the processor."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.launched = 0

    def gather_async(self, table: TablePlace, rows: RowGather) -> None:
        from cenote.device.rows_kernel import launch

        self.launched += 1
        # The interpreter has the processor's addresses.
        launch(dataclasses.replace(table, region=table.region - SEEN), rows)


@pytest.fixture
def interpreter() -> None:
    # Chosen when the kernel is defined.
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("the kernel itself runs with TRITON_INTERPRET=1 and Triton installed")
    pytest.importorskip("triton")


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(("stored", "values", "scale"), FORMATS)
@pytest.mark.parametrize("decode", [False, True])
def test_the_kernel_has_the_bytes_of_the_processor(
    region: cenote.Region, tmp_path: Path, stored: str, values: int, scale: float | None, decode: bool
) -> None:
    rows = Rows(region, tmp_path, stored, values, scale, Interpreted(1 << 18))
    assert isinstance(rows.device, Interpreted)
    numbers = some_rows(1000, TOKENS * HEADS)
    for kind in "iq":
        rows.device.write(1 << 12, b"x" * (TOKENS * HEADS * values * 2))
        rows.reader.gather(rows.put(numbers, kind), rows.out, TOKENS, HEADS, decode=decode)
        wanted = rows.table.gather(numbers, dtype="bfloat16" if decode else "stored")
        assert rows.got(len(wanted)) == wanted
    # Rows of others, heads beyond the last, gaps behind each token, an odd address.
    numbers = [choose for at in range(TOKENS) for choose in (-1, 99, 100, 899, 900, at)]
    base, size = rows.put(numbers)
    row_bytes = rows.reader.out_bytes(decode)
    stride = 4 * row_bytes + 6
    rows.device.write(1 << 12, b"x" * (TOKENS * stride))
    rows.reader.gather(
        (base + size, size), rows.out, TOKENS, 4,
        id_strides=(6, 1), known_heads=3, first_row=100, end_row=900, out_stride=stride, decode=decode,
    )  # fmt: skip
    read = rows.made.decoded if decode else rows.made.gathered
    wanted = (bytes(row_bytes) + read([100]) + read([899]) + bytes(row_bytes) + b"x" * 6) * TOKENS
    assert rows.got(len(wanted)) == wanted
    assert rows.device.launched == 3, "one kernel for all rows"
    rows.reader.close()


@pytest.mark.parametrize(("stored", "values", "scale"), FORMATS)
@pytest.mark.parametrize("generation", [80, 90])
def test_the_kernel_compiles_for_gpus(stored: str, values: int, scale: float | None, generation: int) -> None:
    """Without a GPU: its assembler comes with Triton."""
    del scale
    triton = pytest.importorskip("triton", reason="no Triton, so the kernel is not compiled")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton's interpreter is chosen")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cenote.device.rows_kernel import FORMATS as NUMBERS
    from cenote.device.rows_kernel import gather_kernel

    row_bytes = {"e4m3-ue8m0": values // 32 * 33, "e4m3": values}.get(stored, 2 * values)
    for decode, word in ((True, 1), (False, 8), (False, 1)):
        width = triton.next_power_of_2(values if decode else row_bytes // word)
        fixed = {
            "ID_BYTES": 4, "ROW_BYTES": row_bytes, "VALUES": values, "FORMAT": NUMBERS[stored], "DECODE": decode, "WORD": word, "ROWS": 4,
            "WIDTH": width,
        }  # fmt: skip
        kinds = dict.fromkeys(("region", "starts", "ids", "out"), "i64") | {"scale": "fp32"} | dict.fromkeys(fixed, "constexpr")
        signature = {name: kinds.get(name, "i32") for name in gather_kernel.arg_names}
        source = ASTSource(fn=gather_kernel, signature=signature, constexprs=fixed)
        assert triton.compile(source, target=GPUTarget("cuda", generation, 32)).asm["cubin"]
