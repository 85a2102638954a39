"""Rows of the region on a real GPU. `test_device_rows.py` has a fake device and the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tables_of import Made
from test_engram import FORMATS, some_rows

import cenote
from cenote import engram
from cenote.device import DeviceTable

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no PyTorch, so no GPU is tested")

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch knows")


@on_a_gpu
@pytest.mark.parametrize(("stored", "values", "scale"), FORMATS)
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_a_gpu_has_the_bytes_of_the_processor(
    region: cenote.Region, tmp_path: Path, stored: str, values: int, scale: float | None, decode: bool, graph: bool
) -> None:
    from cenote.device.cuda import CudaDevice

    made = Made(tmp_path, stored, 3000, values, scale=scale)
    engram.load(region, "t", **made.how)  # type: ignore[arg-type]
    table = engram.Table(region, "t")
    rows = some_rows(3000, 512 * 8)
    ids = torch.tensor(rows, dtype=torch.int32, device="cuda")
    device = CudaDevice.of(ids.device)
    reader = DeviceTable(device, region, table)
    out = torch.zeros(len(rows) * reader.out_bytes(decode), dtype=torch.uint8, device="cuda")

    def gather() -> None:
        reader.gather((ids.data_ptr(), 4), out.data_ptr(), 512, 8, decode=decode)

    gather()
    if graph:
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            gather()
        out.zero_()
        rows = rows[::-1]
        ids.copy_(torch.tensor(rows, dtype=torch.int32))
        captured.replay()
    wanted = table.gather(rows, dtype="bfloat16" if decode else "stored")
    assert bytes(out.cpu().numpy().tobytes()) == wanted
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(20):
        gather()
    ended.record()
    torch.cuda.synchronize()
    seconds = began.elapsed_time(ended) / 20e3
    rate = len(rows) / seconds
    print(f"{stored}, decode {decode}: {rate / 1e6:.1f} million rows/s, {rate * table.row_bytes / 1e9:.1f} GB/s")
    reader.close()
