"""Files with small n-gram tables, and their rows by arithmetic of this file's own."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path

SIZES = {"BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "F32": 4, "I64": 8}


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """Writes a safetensors file: a header in JSON behind its length, then all bytes."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        assert math.prod(shape) * SIZES[dtype] == len(data), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))
    return path


def noise(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(count)


class Made:
    """A table in a file."""

    def __init__(self, folder: Path, stored: str, rows: int, values: int, seed: int = 1, scale: float | None = None) -> None:
        self.stored, self.rows, self.values, self.scale = stored, rows, values, scale
        self.path = folder / f"{stored}-{rows}-{seed}.safetensors"
        width = 1 if stored.startswith("e4m3") else 2
        content = noise(rows * values * width, seed)
        self.how: dict[str, object] = {"weights": self.path, "tensor": "table"}
        if stored == "e4m3-ue8m0":
            # Scales of bytes 0 to 255, so that some products are no numbers.
            scales = noise(rows * values // 32, seed + 1)
            write(self.path, {"table": ("F8_E4M3", [rows, values], content), "scales": ("F8_E8M0", [rows, values // 32], scales)})
            self.how["scales"] = "scales"
            blocks = values // 32
            self.stored_rows = [content[at * values :][:values] + scales[at * blocks :][:blocks] for at in range(rows)]
        else:
            write(self.path, {"table": ({"e4m3": "F8_E4M3", "f16": "F16", "bf16": "BF16"}[stored], [rows, values], content)})
            if scale is not None:
                self.how["scale"] = scale
            self.stored_rows = [content[at * values * width :][: values * width] for at in range(rows)]

    @property
    def row_bytes(self) -> int:
        return len(self.stored_rows[0])

    def gathered(self, rows: list[int]) -> bytes:
        return b"".join(self.stored_rows[row] for row in rows)

    def decoded(self, rows: list[int]) -> bytes:
        return b"".join(decode(self.stored, self.stored_rows[row], self.scale) for row in rows)


def decode(stored: str, row: bytes, scale: float | None) -> bytes:
    """bf16 of a stored row, by exact arithmetic and one rounding."""
    if stored == "bf16":
        return row
    if stored == "f16":
        return b"".join(bf16(value) for (value,) in struct.iter_unpack("<e", row))
    if stored == "e4m3":
        assert scale is not None
        factor = struct.unpack("<f", b"\0\0" + bf16(scale))[0]
        return b"".join(bf16(e4m3(code) * factor) for code in row)
    values = len(row) * 32 // 33
    scales = [0.0 if byte == 0 else math.inf if byte == 255 else 2.0 ** (byte - 127) for byte in row[values:]]
    return b"".join(bf16(e4m3(code) * scales[at // 32]) for at, code in enumerate(row[:values]))


def e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    value = mantissa / 512 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -value if code & 128 else value


def bf16(value: float) -> bytes:
    """The nearest bf16, ties to even; 7fc0 for what is no number."""
    if math.isnan(value):
        return b"\xc0\x7f"
    try:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        bits = struct.unpack("<I", struct.pack("<f", math.copysign(math.inf, value)))[0]
    if bits & 0x7F800000 != 0x7F800000:
        bits += 0x7FFF + (bits >> 16 & 1)
    return struct.pack("<H", bits >> 16)
