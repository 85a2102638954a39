"""Engram rows that the GPU reads out of the region, beside a gather from its own memory. All rows are compared."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from pathlib import Path

import cenote
from cenote import engram
from gpu.cards import Card, Cuda
from gpu.report import Report, Skip, rate

ROWS, VALUES = 1 << 20, 256
# Tokens and heads of a batch.
BATCHES = ((32, 16), (512, 8), (2048, 16), (8192, 16), (32768, 16))


def measure(report: Report, card: Card, region: cenote.Region) -> None:
    """Gathers rows of 512 bytes in bf16."""
    if not isinstance(card, Cuda):
        raise Skip("the tests' driver runs no kernels")
    torch = card.torch
    from cenote.device import DeviceTable

    content = random.Random(1).randbytes(2 * VALUES * 4096) * (ROWS // 4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "table.safetensors")
        header = json.dumps({"table": {"dtype": "BF16", "shape": [ROWS, VALUES], "data_offsets": [0, len(content)]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + content)
        engram.load(region, "bench", weights=path, tensor="table")
    table = engram.Table(region, "bench")
    own = torch.frombuffer(bytearray(content), dtype=torch.int16).view(ROWS, VALUES).to(card.where)
    reader = DeviceTable(card.device, region, table)
    try:
        for tokens, heads in BATCHES:
            ids = torch.randint(0, ROWS, (tokens, heads), dtype=torch.int32, device=card.where)
            out = torch.zeros(tokens * heads, VALUES, dtype=torch.int16, device=card.where)
            flat, stream = ids.view(-1).long(), torch.cuda.current_stream()
            pooled = card.seconds(lambda ids=ids, out=out: reader.gather((ids.data_ptr(), 4), out.data_ptr(), *ids.shape), stream, 10)
            local = card.seconds(lambda flat=flat: torch.index_select(own, 0, flat), stream, 10)
            size = 2 * VALUES * tokens * heads
            report.add(
                "rows", rows=tokens * heads, us=round(1e6 * pooled, 1), GBps=rate(size, pooled), gpu_memory_us=round(1e6 * local, 1),
                equal=bool(torch.equal(out, own[flat])),
            )  # fmt: skip
    finally:
        card.synchronize()
        reader.close()
        engram.drop(region, "bench")
