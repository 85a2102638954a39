"""Small models of today's families, with random weights. vLLM runs each of them on processors.

The sizes are small, and the kinds of layers are those of the published models."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 1000
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A model, and how vLLM runs it here."""

    name: str
    config: dict[str, Any]
    groups: str
    """vLLM's KV cache groups, for the table of the guide."""
    engine: dict[str, Any] = field(default_factory=dict)
    """Settings of vLLM."""
    needs: str | None = None
    """A module that the model's code imports."""
    @property
    def has_states(self) -> bool:
        """True if it has recurrent layers."""
        return any(kind in self.groups for kind in ("Mamba", "delta", "convolution"))

    def make(self, folder: Path) -> str:
        """Writes the configuration. The weights are random and determined by vLLM's seed."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1))
        return str(folder)

    def settings(self) -> dict[str, Any]:
        """Settings of vLLM: no tokenizer, weights from the seed."""
        return {
            "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16", "block_size": None,
            "max_model_len": 4096, "max_num_seqs": 4, **self.engine,
        }  # fmt: skip


def _mamba2(**more: Any) -> dict[str, Any]:
    return {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, **more}


# vLLM's scan for processors ignores states inside of a chunk, so a step has one block.
_CHUNKS = {"max_num_batched_tokens": 128, "max_num_seqs": 1}

_GEMMA4 = COMMON | {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "num_hidden_layers": 4, "intermediate_size": 512, "head_dim": 64,
    "global_head_dim": 128, "num_global_key_value_heads": 2, "sliding_window": 128, "rms_norm_eps": 1e-6,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "tie_word_embeddings": True, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0, "enable_moe_block": False, "use_double_wide_mlp": False,
}  # fmt: skip

FAMILIES = [
    Family(
        "LFM2",
        COMMON | {
            "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "num_hidden_layers": 4, "conv_L_cache": 3, "conv_bias": False,
            "intermediate_size": 512, "block_dim": 256, "block_ff_dim": 512, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": False, "conv_dim": 256, "layer_types": ["conv", "conv", "full_attention", "conv"], "norm_eps": 1e-5,
            "rope_theta": 1e6, "tie_word_embeddings": True,
        },
        "short convolution, full",
    ),
    Family(
        "Granite-4",
        COMMON | _mamba2() | {
            "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "num_hidden_layers": 4,
            "layer_types": ["mamba", "mamba", "attention", "mamba"], "intermediate_size": 512, "shared_intermediate_size": 512,
            "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "nope", "attention_multiplier": 0.125,
            "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "rms_norm_eps": 1e-5,
        },
        "Mamba2, full",
        _CHUNKS,
    ),
    Family(
        "Falcon-H1",
        COMMON | {
            "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "num_hidden_layers": 3, "intermediate_size": 512,
            "mamba_d_ssm": 512, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_d_conv": 4,
            "mamba_expand": 2, "mamba_chunk_size": 128, "head_dim": 64, "rms_norm_eps": 1e-5, "mamba_rms_norm": False,
        },
        "full, Mamba2",
        _CHUNKS,
    ),
    Family(
        "Nemotron-H",
        COMMON | {
            "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*M",
            "intermediate_size": 512, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 1, "conv_kernel": 4,
            "expand": 2, "chunk_size": 128, "head_dim": 64, "attention_head_dim": 64, "mlp_hidden_act": "relu2", "layer_norm_epsilon": 1e-5,
        },
        "Mamba2, full",
        _CHUNKS,
    ),
    Family(
        "Qwen3-Next",
        COMMON | {
            "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_hidden_layers": 4, "intermediate_size": 512,
            "full_attention_interval": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "head_dim": 64, "num_experts": 4, "num_experts_per_tok": 2,
            "decoder_sparse_step": 1, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128, "rms_norm_eps": 1e-6,
            "partial_rotary_factor": 0.25, "rope_theta": 1e6, "mlp_only_layers": [],
        },
        "gated delta net, full",
    ),
    Family(
        "Qwen3.5",
        COMMON | {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": 4, "intermediate_size": 512,
            "full_attention_interval": 4, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "head_dim": 64, "rms_norm_eps": 1e-6,
        },
        "gated delta net, full",
        needs="torchvision",
    ),
    Family(
        "gpt-oss",
        COMMON | {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 4, "intermediate_size": 256,
            "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 128, "head_dim": 64, "rms_norm_eps": 1e-5,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "rope_theta": 150000.0,
        },
        "sliding window, full, sinks",
    ),
    Family(
        "Gemma3",
        COMMON | {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6, "intermediate_size": 512,
            "head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 6, "query_pre_attn_scalar": 64, "rms_norm_eps": 1e-6,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "tie_word_embeddings": True,
        },
        "sliding window, full",
    ),
    Family("Gemma4", _GEMMA4, "sliding window, full of another size"),
    Family("Gemma4, one group", _GEMMA4, "full of two sizes", {"disable_hybrid_kv_cache_manager": True}),
    Family(
        "Llama4",
        COMMON | {
            "architectures": ["Llama4ForCausalLM"], "model_type": "llama4_text", "num_hidden_layers": 4, "intermediate_size": 256,
            "intermediate_size_mlp": 512, "num_local_experts": 4, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "head_dim": 64,
            "attention_chunk_size": 256, "no_rope_layers": [1, 1, 1, 0], "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "layer_types": ["chunked_attention"] * 3 + ["full_attention"], "use_qk_norm": True, "attn_temperature_tuning": False,
        },
        "chunked local, full",
        {"disable_hybrid_kv_cache_manager": False},
    ),
    Family(
        "DeepSeek-V3",
        COMMON | {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 2, "intermediate_size": 512,
            "kv_lora_rank": 512, "q_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 128, "first_k_dense_replace": 1,
            "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
            "num_key_value_heads": 4, "rms_norm_eps": 1e-6,
        },
        "MLA",
    ),
]  # fmt: skip


def family(name: str) -> Family:
    return next(family for family in FAMILIES if family.name == name)


# Spread of weights by parts of their names, in units of 1 / sqrt(inputs); the first that matches.
_SPREADS = (("embed", 1.0), ("q_proj", 4.0), ("k_proj", 4.0), ("qkv", 4.0), ("o_proj", 8.0), ("out_proj", 8.0), ("o_b_proj", 8.0))


def amplify() -> None:
    """Makes vLLM's dummy weights such that tokens depend on all KV and states, in this process.

    Trained weights read the past; vLLM's small random ones see the last token alone."""
    import torch
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        numbers = torch.Generator().manual_seed(7)
        for name, weight in model.named_parameters():
            if not weight.is_floating_point():
                continue
            if name.endswith("A_log") or name.endswith(".A"):
                # States forget slowly: half of a token is left after some hundred others.
                weight.data.fill_(-6.0 if name.endswith("A_log") else -0.0025)
            elif weight.dim() < 2:
                weight.data.fill_(1.0 if "norm" in name or name.endswith(".D") else 0.0)
            else:
                spread = next((spread for part, spread in _SPREADS if part in name), 1.5)
                inputs = weight[0].numel()
                weight.data.copy_((torch.randn(weight.shape, generator=numbers) * spread / inputs**0.5).to(weight.dtype))

    DummyModelLoader.load_weights = load_weights  # type: ignore[method-assign]
