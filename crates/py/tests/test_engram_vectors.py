"""Rows of a region are those that vLLM's own lookups return from private tables.

`vectors/make_engram.py` ran vLLM's functions and recorded their inputs and results."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tables_of
from fake_device import FakeDevice

import cenote
from cenote import engram
from cenote.device import DeviceTable

VECTORS = json.loads((Path(__file__).parent / "vectors" / "engram.json").read_text())


def load_deepseek(region: cenote.Region | str, name: str, case: dict[str, Any], folder: Path) -> None:
    """The table of a case, as a published checkpoint has it: values and scales."""
    rows, dim = sum(case["sizes"]), case["dim"]
    tensors = {
        "values": ("F8_E4M3", [rows, dim], bytes.fromhex(case["values"])),
        "scales": ("F8_E8M0", [rows, dim // 32], bytes.fromhex(case["scales"])),
    }
    file = tables_of.write(folder / "deepseek.safetensors", tensors)
    engram.load(region, name, weights=file, tensor="values", scales="scales")


def load_qwen(region: cenote.Region | str, name: str, case: dict[str, Any], folder: Path) -> None:
    kind = {"e4m3": "F8_E4M3", "bf16": "BF16"}[case["format"]]
    file = tables_of.write(folder / "qwen.safetensors", {"table": (kind, [case["rows"], case["dim"]], bytes.fromhex(case["table"]))})
    engram.load(region, name, weights=file, tensor="table", scale=case["scale"])


class OnDevice:
    """A table, and a fake device with the row numbers of a case."""

    def __init__(self, region: cenote.Region, name: str, ids: list[list[int]], kind: str) -> None:
        self.table = engram.Table(region, name)
        self.device = FakeDevice(1 << 18)
        self.reader = DeviceTable(self.device, region, self.table)
        self.ids, self.size = ids, struct.calcsize(kind)
        self.device.write(0, struct.pack(f"{len(ids) * len(ids[0])}{kind}", *sum(ids, [])))

    def rows(self, heads: int, first: int, decode: bool, **how: Any) -> str:
        out = self.device.base + (1 << 14)
        ids = (self.device.base + first * self.size, self.size)
        self.reader.gather(ids, out, len(self.ids), heads, id_strides=(len(self.ids[0]), 1), decode=decode, **how)
        self.device.run()
        assert not self.device.wrong
        return self.device.read(1 << 14, len(self.ids) * heads * self.reader.out_bytes(decode)).hex()


@pytest.mark.parametrize("case", VECTORS["deepseek"], ids=lambda case: f"{case['dim']} values, {case['shards']} ranks")
def test_engram_rows_of_each_rank_are_vllms(region: cenote.Region, tmp_path: Path, case: dict[str, Any]) -> None:
    load_deepseek(region, "t", case, tmp_path)
    on = OnDevice(region, "t", case["ids"], "i")
    heads, sizes = -(-len(case["sizes"]) // case["shards"]), case["sizes"]
    for rank, wanted in enumerate(case["ranks"]):
        first = rank * heads
        how = {"known_heads": min(heads, len(sizes) - first), "first_row": sum(sizes[:first]), "end_row": sum(sizes[: first + heads])}
        for form, decode in (("bf16", True), ("packed", False)):
            assert on.rows(heads, first, decode, **how) == wanted[form], (rank, form)
    if case["shards"] == 1:
        # By the processor, without the token that has no rows.
        ids, row = [row for row in case["ids"] if row[0] >= 0], len(sizes) * case["dim"] * 2
        wanted = bytes.fromhex(case["ranks"][0]["bf16"])
        assert on.table.gather(sum(ids, []), dtype="bfloat16") == wanted[:row] + wanted[2 * row :]


@pytest.mark.parametrize("case", VECTORS["qwen"], ids=lambda case: f"{case['format']}, {case['dim']} values")
def test_ple_rows_are_vllms(region: cenote.Region, tmp_path: Path, case: dict[str, Any]) -> None:
    load_qwen(region, "t", case, tmp_path)
    on = OnDevice(region, "t", case["ids"], "q")
    heads, part = len(case["ids"][0]), case["part"]
    assert on.rows(heads, 0, False, first_row=part[0], end_row=part[1]) == case["stored"]
    if part == [0, case["rows"]]:
        assert on.table.gather(sum(case["ids"], [])).hex() == case["stored"]
        assert on.table.gather(sum(case["ids"], []), dtype="bfloat16").hex() == case["bf16"]
