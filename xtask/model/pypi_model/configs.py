"""`config.json` and `generation_config.json`."""

from typing import Any

from pypi_model.errors import ModelError
from pypi_model.source import Source

# transformers' defaults for Gemma 3, which GGUF leaves to llama.cpp's code.
_GEMMA3_PATTERN = 6
_GEMMA3_LOCAL_BASE = 10_000.0


def of(source: Source) -> dict[str, Any]:
    """The configuration of a model."""
    heads, width = source.size("attention.head_count"), source.size("embedding_length")
    tokens = len(source.need("tokenizer.ggml.tokens"))
    shared = {
        "hidden_size": width,
        "intermediate_size": source.size("feed_forward_length"),
        "num_hidden_layers": source.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": source.size("attention.head_count_kv"),
        "vocab_size": tokens,
        "max_position_embeddings": source.size("context_length"),
        "rms_norm_eps": source.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": source.real("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in source.names(),
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        **generation_of(source),
    }
    if source.architecture == "llama":
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | shared | _llama(source, width // heads)
    return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"} | shared | _gemma3(source)


def _llama(source: Source, head_dim: int) -> dict[str, Any]:
    source.refuse_settings("llama.rope.scaling.", "llama.expert_", "llama.attention.sliding_window")
    given = source.get("llama.attention.key_length", head_dim)
    if source.get("llama.rope.dimension_count", given) != given:
        raise ModelError(f"{source.name} rotates a part of each head; this converter knows models that rotate all of it")
    return {"head_dim": given, "hidden_act": "silu", "mlp_bias": False}


def _gemma3(source: Source) -> dict[str, Any]:
    source.refuse_settings("gemma3.rope.scaling.", "gemma3.final_logit_softcapping", "gemma3.attn_logit_softcapping")
    head_dim, layers = source.size("attention.key_length"), range(source.size("block_count"))
    is_full = [(layer + 1) % _GEMMA3_PATTERN == 0 for layer in layers]
    return {
        "head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": head_dim,
        "sliding_window": source.size("attention.sliding_window"),
        "layer_types": ["full_attention" if full else "sliding_attention" for full in is_full],
        "rope_local_base_freq": _GEMMA3_LOCAL_BASE,
    }


def generation_of(source: Source) -> dict[str, Any]:
    """The tokens with which texts begin and end."""
    begin, end = source.need("tokenizer.ggml.bos_token_id"), source.need("tokenizer.ggml.eos_token_id")
    return {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": source.get("tokenizer.ggml.padding_token_id", end)}
