"""Codecs on vLLM's GPU pages: they must separate the values of heads in every layout of vLLM."""

from __future__ import annotations

import array
import json
import struct
import sys
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cenote.vllm import codecs
from cenote.vllm.memory import device_memory
from cenote.vllm.parts import Share
from cenote.vllm.settings import Settings
from cenote.vllm.shards import Part
from engines import in_child
from test_groups import groups, mamba
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

import cenote

sys.path.append(str(Path(__file__).parents[1]))
from fake_device import FakeDevice, on_storages
from waiting import PATIENCE

LAYERS, BLOCKS, HEADS, TOKENS, DIM = 3, 8, 2, 16, 64
COUNT = 5
WHOLE = Share(0, 1, 1, 0, 1)
# Magnitudes of the two heads. The quantization step of the first would erase the second.
SIZES, STEP = [1.0, 1e-4], 0.05
# Half a step plus the rounding to 16 bits, relative to a head's largest value. The largest value is
# at least three times the magnitude.
BOUND = 0.51 * STEP / 3 + 1 / 128


def caches(layout: KVCacheLayout, seed: int) -> torch.Tensor:
    """A tensor [layer, block, head, token, key and value] that is stored in this layout."""
    sizes, steps = (LAYERS, BLOCKS, HEADS, TOKENS, 2 * DIM), layout.stride_order
    numbers = torch.randn(sizes, generator=torch.Generator().manual_seed(seed)) * torch.tensor(SIZES).view(HEADS, 1, 1)
    memory = torch.empty([sizes[axis] for axis in steps], dtype=torch.bfloat16)
    tensor = memory.permute([steps.index(axis) for axis in range(5)])
    tensor.copy_(numbers)
    return tensor


def profile(file: Path) -> Path:
    """A profile in the format of `cenote profile`, with steps proportional to the magnitudes."""
    curve = [-6 + 12 * point / 2000 for point in range(2001)]
    sizes = [size for size in SIZES for _ in range(DIM)]
    sides = [("means", [0.0] * HEADS * DIM), ("deviations", sizes), ("steps", [STEP * size for size in sizes])]
    sides += [(name, curve) for name in ("values", "centered", "normal")]
    header: dict[str, object] = {
        "__metadata__": {"format": "cenote-profile", "version": "1", "model": "00" * 32, "tokens": "1", "prompts": "1"}
    }
    content = b""
    for name, numbers in sides:
        data = array.array("f", numbers * (2 * LAYERS)).tobytes()
        ends = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "F32", "shape": [LAYERS, 2, len(numbers)], "data_offsets": ends}
        content += data
    said = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(said)) + said + content)
    return file


def on_a_device(region: cenote.Region, tensor: torch.Tensor, part: Part, settings: Settings) -> tuple[FakeDevice, Any]:
    device = FakeDevice(64)
    layers = {page.layer: tensor[number] for number, page in enumerate(part.group.pages)}
    return device, device_memory(partial(on_storages, device), layers, part, settings, region)


def worst_heads(region: cenote.Region, layout: KVCacheLayout, connector: dict[str, Any]) -> list[float]:
    """Saves blocks from one tensor and loads them into another.

    Returns the largest error of each head, relative to its largest value."""
    settings = Settings.of({"region": "shm:none", "codec": "qpack:1", **connector})
    config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(kv_cache_layout=layout),
    )
    spec = FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=DIM, dtype=torch.bfloat16)
    [group] = groups(spec, layers=LAYERS)
    arguments = codecs.page_codec(config, settings, group, WHOLE)
    assert arguments is not None
    codec = cenote.Codec(**arguments)
    assert codec.block_bytes == group.block_bytes == spec.page_size_bytes * LAYERS
    blocks = region.namespace(f"{layout} {connector}".encode(), spec.page_size_bytes * LAYERS, codec=codec)
    names = blocks.hash_tokens(list(range(TOKENS * COUNT)), TOKENS)

    saved, loaded = caches(layout, 1), caches(layout, 2)
    there, here = [6, 1, 4, 0, 3], [2, 7, 5, 3, 1]
    part = Part(group, WHOLE, 0, blocks, True)
    device, memory = on_a_device(region, saved, part, settings)
    memory.save([(blocks, names, range(COUNT), there, None, 0)])
    device.run_until("the published blocks", lambda: blocks.count(names) == COUNT)
    assert memory.close(PATIENCE)
    device, memory = on_a_device(region, loaded, part, settings)
    load = memory.load(blocks.lookup(names), here)
    device.run_until("the end of the load", lambda: load.done)
    assert load.failed() == []
    assert memory.close(PATIENCE)

    expected, found = saved[:, there].float(), loaded[:, here].float()
    errors = (found - expected).abs().amax((0, 1, 3, 4)) / expected.abs().amax((0, 1, 3, 4))
    return list(map(float, errors))


def round_trips(_: Connection, region: str, folder: Path, name: str) -> None:
    codecs.current_platform = SimpleNamespace(is_cuda=lambda: True)
    layout = KVCacheLayout[name]
    steps = {"codec_profile": str(profile(folder / "profile"))}
    right, wrong = ("NHD", "HND") if name.endswith("NHC") else ("HND", "NHD")
    with cenote.Region.open(region, worker="test") as shared:
        assert max(worst_heads(shared, layout, steps)) <= BOUND
        # The `layout` setting overrides vLLM's. With a wrong order, heads get each other's steps.
        assert max(worst_heads(shared, layout, {**steps, "layout": {"order": right, "kv": "joint"}})) <= BOUND
        for mistaken in ({"order": wrong}, {"order": right, "kv": "split"}):
            assert worst_heads(shared, layout, {**steps, "layout": mistaken})[1] > 10 * BOUND


@pytest.mark.parametrize("name", [layout.name for layout in KVCacheLayout])
def test_each_head_is_within_its_own_error_bound(region: str, tmp_path: Path, name: str) -> None:
    # In a child: torch starts threads here, and other tests fork, which threads forbid.
    in_child(round_trips, region, tmp_path, name)


def kinds_stored_as_they_are(_: Connection) -> list[dict[str, Any] | None]:
    codecs.current_platform = SimpleNamespace(is_cuda=lambda: True)
    settings = Settings.of({"region": "shm:none", "codec": "int8"})
    config: Any = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(kv_cache_layout=KVCacheLayout.LBNHC),
    )
    shape: dict[str, Any] = {"block_size": TOKENS, "num_kv_heads": HEADS, "head_size": DIM}
    specs = [mamba(), *(FullAttentionSpec(dtype=dtype, **shape) for dtype in (torch.uint8, torch.float8_e4m3fn, torch.float16))]
    return [codecs.page_codec(config, settings, group, WHOLE) for spec in specs for group in groups(spec)]


def test_states_and_kv_of_8_bits_stay_as_they_are() -> None:
    state, integers, floats, halves = in_child(kinds_stored_as_they_are)
    assert (state, integers, floats) == (None, None, None)
    assert halves["dtype"] == "f16"
