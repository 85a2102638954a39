"""Test models: Llama with random weights. A cache must never change their tokens."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

sys.path.append(str(Path(__file__).parents[1]))
from waiting import PATIENCE_WITH_ENGINES

WORDS = 1000
SIZES = {
    # hidden, layers, heads, kv heads, intermediate
    "tiny": (256, 4, 4, 2, 512),
    "mid": (1024, 8, 16, 4, 3072),
    "windows": (256, 4, 4, 2, 512),
    "eagle": (256, 1, 4, 2, 512),
}
# `eagle` is a draft head for `tiny`: one layer that predicts from the hidden states of `tiny`.
# Attention window, in tokens, of three of the four layers of `windows`. vLLM makes a KV cache group
# of each layer.
WINDOW = 128


def make(folder: Path, size: str, seed: int = 0) -> Path:
    """Writes a Hugging Face folder: configuration, tokenizer, random weights in bfloat16."""
    hidden, layers, heads, kv_heads, intermediate = SIZES[size]
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    head = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": WORDS, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu",
    }  # fmt: skip
    if size == "windows":
        kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
        config |= {"layer_types": kinds, "sliding_window": WINDOW}
    if size == "eagle":
        config["architectures"] = ["EagleLlamaForCausalLM"]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    numbers = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        # Larger than trained weights, so that the tokens depend on all KV.
        return (torch.randn(rows, columns, generator=numbers) * 1.5 / columns**0.5).to(torch.bfloat16)

    weights = {"model.embed_tokens.weight": matrix(WORDS, hidden) * hidden**0.5, "lm_head.weight": matrix(WORDS, hidden)}
    weights["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part, rows, columns in (
            ("self_attn.q_proj", heads * head, hidden), ("self_attn.k_proj", kv_heads * head, hidden),
            ("self_attn.v_proj", kv_heads * head, hidden), ("self_attn.o_proj", hidden, heads * head),
            ("mlp.gate_proj", intermediate, hidden), ("mlp.up_proj", intermediate, hidden),
            ("mlp.down_proj", hidden, intermediate),
        ):  # fmt: skip
            weights[f"{name}.{part}.weight"] = matrix(rows, columns)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    if size == "eagle":
        weights = {name.removeprefix("model."): weight for name, weight in weights.items() if "layers." in name}
        del weights["layers.0.input_layernorm.weight"]
        weights["fc.weight"] = matrix(hidden, 2 * hidden)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def prompt(length: int, seed: int) -> list[int]:
    """Random token ids, determined by the seed."""
    return random.Random(seed).choices(range(3, WORDS), k=length)


def make_elsewhere(folder: Path, size: str) -> str:
    """Makes a model in another process.

    Torch starts threads, and a process with threads must not fork."""
    subprocess.run([sys.executable, __file__, folder, size], check=True, timeout=PATIENCE_WITH_ENGINES)
    return str(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2])
