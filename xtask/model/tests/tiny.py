"""Tiny GGUF files, written by the library that the converter reads with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, FFN = 2, 32, 4, 2, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġa"]
LLAMA = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH), "attn_output": (WIDTH, WIDTH)} | {
    "ffn_gate": (FFN, WIDTH),
    "ffn_up": (FFN, WIDTH),
    "ffn_down": (WIDTH, FFN),
    "attn_norm": (WIDTH,),
    "ffn_norm": (WIDTH,),
}


def tensors(seed: int = 1) -> dict[str, Any]:
    """All tensors of a Llama, by GGUF's names."""
    values = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (len(TOKENS), WIDTH), "output_norm.weight": (WIDTH,)}
    shapes |= {f"blk.{layer}.{part}.weight": shape for layer in range(LAYERS) for part, shape in LLAMA.items()}
    return {name: values.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


SETTINGS: dict[str, Any] = {
    "llama.block_count": LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": WIDTH,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b", "Ġ a"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.chat_template": "{{ messages }}",
}


def write(
    path: Path, settings: Mapping[str, Any] = SETTINGS, values: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> Path:
    """Writes a file. A value is an array of 32-bit floats, or bytes and their type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in settings.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case str():
                writer.add_string(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_array(key, value)
    for name, tensor in (tensors() if values is None else values).items():
        raw, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
