"""Tensors under Hugging Face's names, written as bfloat16 in one safetensors file."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import TensorSpec, serialize_file

from pypi_model.errors import ModelError
from pypi_model.source import Source

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3 = _LLAMA | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
PARTS = {"llama": _LLAMA, "gemma3": _GEMMA3}


def named(source: Source, name: str) -> str:
    """Hugging Face's name of a tensor. Raises ModelError for one that the architecture does not have."""
    part, _, suffix = name.rpartition(".")
    if suffix == "weight" and part in _WHOLE:
        return f"{_WHOLE[part]}.weight"
    match name.split("."):
        case ["blk", layer, part, "weight"] if layer.isdecimal() and int(layer) < source.size("block_count"):
            if (known := PARTS[source.architecture].get(part)) is not None:
                return f"model.layers.{int(layer)}.{known}.weight"
    raise ModelError(f"{source.name} has a tensor {name}, which {source.architecture} models here do not have")


def converted(source: Source, name: str, values: Any) -> Any:
    """Values as Hugging Face's code expects them; GGUF stores some in another form."""
    part = name.split(".")[-2]
    if source.architecture == "llama" and part in ("attn_q", "attn_k"):
        heads = source.size("attention.head_count" if part == "attn_q" else "attention.head_count_kv")
        return _halves(source, name, values, heads)
    if source.architecture == "gemma3" and part.endswith("norm"):
        # GGUF has the factor, Hugging Face its difference to one.
        return values - 1
    return values


def _halves(source: Source, name: str, values: Any, heads: int) -> Any:
    """Rows of a projection to rotated heads: GGUF has both rows of a pair side by side, Hugging Face the first
    rows of all pairs and then the second ones."""
    rows, columns = values.shape
    if rows % (2 * heads) != 0:
        raise ModelError(f"{source.name}: {name} has {rows} rows, which {heads} heads cannot share in pairs")
    return values.reshape(heads, rows // heads // 2, 2, columns).transpose(0, 2, 1, 3).reshape(rows, columns)


def bfloat16(values: Any) -> Any:
    """Finite 32-bit floats as the bits of bfloat16, rounded to the nearest and to even in the middle."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(source: Source, path: Path) -> None:
    """Writes all tensors."""
    if source.architecture not in PARTS:
        raise ModelError(f"{source.name} is a model of the architecture {source.architecture}; known are {', '.join(PARTS)}")
    tensors: dict[str, Any] = {}
    for name, values in source.tensors():
        new = named(source, name)
        if new in tensors:
            raise ModelError(f"{source.name} has the tensor {name} twice")
        tensors[new] = bfloat16(converted(source, name, values))
    layers = range(source.size("block_count"))
    wanted = {f"model.layers.{layer}.{part}.weight" for layer in layers for part in PARTS[source.architecture].values()}
    wanted |= {"model.embed_tokens.weight", "model.norm.weight"}
    if missing := sorted(wanted - tensors.keys()):
        raise ModelError(f"{source.name} lacks {len(missing)} tensors, {missing[0]} among them; download it again")
    # The addresses in `specs` are those of `tensors`, which outlives the call.
    specs = {name: _spec(bits) for name, bits in tensors.items()}
    serialize_file(specs, str(path), {"format": "pt"})


def _spec(bits: Any) -> TensorSpec:
    return TensorSpec(dtype="bfloat16", shape=list(bits.shape), data_ptr=bits.ctypes.data, data_len=bits.nbytes)
