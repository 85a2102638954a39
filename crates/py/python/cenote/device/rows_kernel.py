"""The kernel that gathers rows out of a registered region, in Triton.

Engram pooling §4.2: one launch for all rows of a batch. A program reads the numbers of a few rows,
computes their places, and copies or decodes them. Decoding is in whole numbers and f32, so that
every device gives the bytes that the processor gives.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from cenote.device.rows import RowGather, TablePlace

FORMATS = {"e4m3-ue8m0": 0, "e4m3": 1, "f16": 2, "bf16": 3}

# Rows of a program: enough loads in flight to hide the latency of the link.
_ROWS = 4

_SPECIALIZE_NOT = [
    "region", "starts", "ids", "out", "extent_rows", "count", "heads", "known_heads", "id_stride_t", "id_stride_h", "first_row",
    "end_row", "out_stride", "scale",
]  # fmt: skip


@triton.jit
def _e4m3(code):  # type: ignore[no-untyped-def]
    """f32 of e4m3 codes: a sign, four bits of exponent with bias 7, three of mantissa."""
    code = code.to(tl.int32)
    sign = (code & 0x80) << 24
    magnitude = code & 0x7F
    normal = (magnitude << 20) + (120 << 23)
    small = (magnitude.to(tl.float32) * 0.001953125).to(tl.int32, bitcast=True)
    bits = tl.where(magnitude < 8, small, normal)
    bits = tl.where(magnitude == 0x7F, 0x7FC00000, bits)
    return (bits | sign).to(tl.float32, bitcast=True)


@triton.jit
def _bf16_bits(value):  # type: ignore[no-untyped-def]
    """Bits of the nearest bf16, ties to even; 7fc0 for every value that is not a number."""
    bits = value.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    rounded = tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
    return rounded.to(tl.uint16)


@triton.jit(do_not_specialize=_SPECIALIZE_NOT)
def gather_kernel(  # type: ignore[no-untyped-def]
    region,
    starts,
    ids,
    out,
    extent_rows,
    count,
    heads,
    known_heads,
    id_stride_t,
    id_stride_h,
    first_row,
    end_row,
    out_stride,
    scale,
    ID_BYTES: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    VALUES: tl.constexpr,
    FORMAT: tl.constexpr,
    DECODE: tl.constexpr,
    WORD: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Rows `program * ROWS ..` of a batch, a row of the table for each token and head."""
    numbers = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = numbers < count
    token = numbers // heads
    head = numbers - token * heads
    place = token * id_stride_t + head * id_stride_h
    known = valid & (head < known_heads)
    if ID_BYTES == 8:
        row = tl.load(ids.to(tl.pointer_type(tl.int64)) + place, mask=known, other=-1)
    else:
        row = tl.load(ids.to(tl.pointer_type(tl.int32)) + place, mask=known, other=-1).to(tl.int64)
    owned = known & (row >= first_row) & (row < end_row)
    row = tl.where(owned, row, 0)
    extent = row // extent_rows
    start = tl.load(starts.to(tl.pointer_type(tl.int64)) + extent, mask=owned, other=0)
    source = region + start + (row - extent * extent_rows) * ROW_BYTES
    columns = tl.arange(0, WIDTH)[None, :]
    if DECODE:
        to = out + token * out_stride + head * (2 * VALUES)
        inside = columns < VALUES
        mask = owned[:, None] & inside
        if FORMAT < 2:
            codes = tl.load(source.to(tl.pointer_type(tl.uint8))[:, None] + columns, mask=mask, other=0)
            if FORMAT == 0:
                scales = source.to(tl.pointer_type(tl.uint8))[:, None] + VALUES + columns // 32
                factor = (tl.load(scales, mask=mask, other=0).to(tl.int32) << 23).to(tl.float32, bitcast=True)
                bits = _bf16_bits(_e4m3(codes) * factor)
            else:
                bits = _bf16_bits(_e4m3(codes) * scale)
        else:
            bits = tl.load(source.to(tl.pointer_type(tl.uint16))[:, None] + columns, mask=mask, other=0)
            if FORMAT == 2:
                bits = _bf16_bits(bits.to(tl.float16, bitcast=True).to(tl.float32))
        # Products of zeros can have a sign or be no number; rows of others are plain zeros.
        bits = tl.where(mask, bits, 0).to(tl.uint16)
        tl.store(to.to(tl.pointer_type(tl.uint16))[:, None] + columns, bits, mask=valid[:, None] & inside)
    else:
        to = out + token * out_stride + head * ROW_BYTES
        inside = columns < ROW_BYTES // WORD
        mask = owned[:, None] & inside
        if WORD == 8:
            words = tl.load(source.to(tl.pointer_type(tl.int64))[:, None] + columns, mask=mask, other=0)
            tl.store(to.to(tl.pointer_type(tl.int64))[:, None] + columns, words, mask=valid[:, None] & inside)
        else:
            codes = tl.load(source.to(tl.pointer_type(tl.uint8))[:, None] + columns, mask=mask, other=0)
            tl.store(to.to(tl.pointer_type(tl.uint8))[:, None] + columns, codes, mask=valid[:, None] & inside)


def launch(table: TablePlace, rows: RowGather) -> None:
    """Queues one kernel on the current stream of the current device."""
    count = rows.tokens * rows.heads
    # Extents begin at lines of 64 bytes, so words of eight bytes are aligned if rows and outputs are.
    is_aligned = table.row_bytes % 8 == 0 and rows.out % 8 == 0 and rows.out_stride % 8 == 0
    word = 8 if is_aligned and not rows.decode else 1
    width = table.row_values if rows.decode else table.row_bytes // word
    grid: Any = (triton.cdiv(count, _ROWS),)
    gather_kernel[grid](
        table.region,
        table.starts,
        rows.ids,
        rows.out,
        table.extent_rows,
        count,
        rows.heads,
        rows.known_heads,
        rows.id_strides[0],
        rows.id_strides[1],
        rows.first_row,
        rows.end_row,
        rows.out_stride,
        table.scale,
        ID_BYTES=rows.id_bytes,
        ROW_BYTES=table.row_bytes,
        VALUES=table.row_values,
        FORMAT=FORMATS[table.format],
        DECODE=rows.decode,
        WORD=word,
        ROWS=_ROWS,
        WIDTH=triton.next_power_of_2(width),
    )
