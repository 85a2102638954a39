"""What vLLM itself keeps for each layer of many architectures, for the tests of `cenote plan kv`.

    python plan_specs.py ../../../plan/tests/plan/vllm.json

Models are made without memory for weights, from the defaults of transformers' configuration classes, and
asked for their KV cache specifications. `test_plan_specs.py` compares the file with this vLLM's answers."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Architecture:
    """A class of models, and what differs from its defaults; None: the key is left out."""

    name: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    """vLLM's class, if transformers has none for this type."""
    device: str = "meta"

    def config(self) -> dict[str, Any]:
        """The configuration as a file has it."""
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

        defaults = json.loads(AutoConfig.for_model(self.model_type).to_json_string())
        config = {key: value for key, value in {**defaults, **self.changes}.items() if self.changes.get(key, 0) is not None}
        config["architectures"] = [self.architecture or CLASSES[self.model_type]]
        config.pop("transformers_version", None)
        return {"torch_dtype": "bfloat16", **config}


def _small(layers: int) -> dict[str, Any]:
    """Sizes for a model that needs memory."""
    return {
        "num_hidden_layers": layers, "hidden_size": 256, "intermediate_size": [512] * layers, "vocab_size": 512,
        "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 16, "activation_sparsity_pattern": [0.0] * layers,
    }  # fmt: skip


_NEMOTRON = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"

ARCHITECTURES = [
    *(Architecture(kind, kind) for kind in (
        "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma", "gemma2", "gpt_oss",
        "deepseek_v2", "deepseek_v3", "granite", "granitemoe", "falcon_h1", "falcon_mamba", "mamba", "mamba2", "falcon",
        "gpt2", "gptj", "opt", "stablelm", "cohere", "cohere2", "exaone4", "exaone_moe", "olmoe",
        "zamba2", "phi3", "jamba", "ernie4_5", "ernie4_5_moe", "glm4", "axk1", "hyperclovax", "granitemoe_swa", "granite_swa", "laguna",
    )),
    Architecture("Nemotron", "nemotron", {"num_key_value_heads": 8}),
    Architecture("Trinity", "afmoe", {"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1}),
    Architecture("Qwen3.5", "qwen3_5_text", {"mamba_ssm_dtype": "float32"}, "Qwen3_5ForCausalLM"),
    Architecture("Gemma-2 as published", "gemma2", {"layer_types": None}),
    Architecture("Gemma-3", "gemma3_text", {}, "Gemma3ForCausalLM"),
    Architecture("Gemma-3-27B as published", "gemma3_text", {
        "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "hidden_size": 5376,
        "intermediate_size": 21504, "sliding_window": 1024, "layer_types": None, "_sliding_window_pattern": None,
    }, "Gemma3ForCausalLM"),
    Architecture("Gemma-3n", "gemma3n_text", {**_small(10), "num_kv_shared_layers": 4, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2},
                 "Gemma3nForCausalLM", "cpu"),
    Architecture("Gemma-4", "gemma4_text", {}, "Gemma4ForCausalLM"),
    Architecture("Gemma-4 with shared layers", "gemma4_text", {"num_kv_shared_layers": 12}, "Gemma4ForCausalLM"),
    Architecture("Llama-4", "llama4_text", {}, "Llama4ForCausalLM"),
    Architecture("Llama-4 as published", "llama4_text", {"layer_types": None, "no_rope_layers": []}, "Llama4ForCausalLM"),
    Architecture("DeepSeek-V3.2", "deepseek_v32", {}, "DeepseekV32ForCausalLM"),
    Architecture("GLM-4.5", "glm4_moe", {"head_dim": 128}),
    Architecture("GLM-4.7-Flash", "glm4_moe_lite", {"first_k_dense_replace": 1}),
    Architecture("GLM-5", "glm_moe_dsa", {}, "GlmMoeDsaForCausalLM"),
    Architecture("Granite-4", "granitemoehybrid", {"layer_types": (["mamba"] * 9 + ["attention"]) * 3 + ["mamba"] * 2}),
    Architecture("LFM2", "lfm2", {"block_dim": 2560, "conv_dim": 2560, "layer_types": (["conv"] * 3 + ["full_attention"]) * 8, "full_attn_idxs": None}),
    Architecture("Nemotron-H as published", "nemotron_h", {
        "layers_block_type": None, "num_hidden_layers": len(_NEMOTRON), "hybrid_override_pattern": _NEMOTRON,
    }),
    Architecture("MiniMax-M2", "minimax_m2", {"rotary_dim": 64, "scoring_func": "sigmoid", "use_routing_bias": True}),
    Architecture("MiMo-V2-Flash", "mimo_v2_flash", {
        "hybrid_layer_pattern": [0, 1, 1, 1, 1] * 9 + [0, 1, 1], "num_hidden_layers": 48, "layer_types": None, "moe_layer_freq": [0] + [1] * 47,
        "mlp_layer_types": None, "swa_num_key_value_heads": 8, "swa_num_attention_heads": 64, "swa_head_dim": 192, "swa_v_head_dim": 128,
        "head_dim": 192, "v_head_dim": 128, "num_key_value_heads": 4, "num_attention_heads": 64, "sliding_window_size": 128,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False, "swa_rope_theta": 10000, "layernorm_epsilon": 1e-5,
        "attention_value_scale": None, "partial_rotary_factor": 0.334,
    }, "MiMoV2FlashForCausalLM"),
    Architecture("LongCat-Flash", "longcat_flash", {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity"}, "LongcatFlashForCausalLM"),
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Lets this processor answer for models that it cannot run, and without a process for each class.

    The group of this one process meets in a file of the folder. A processor with AMX or with bf16 in AVX-512
    answers as others do: for its own kernels vLLM keeps states as float32, whatever the model says."""
    import torch
    from vllm.distributed import init_distributed_environment
    from vllm.model_executor.models import registry
    from vllm.platforms import cpu

    for instructions in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        setattr(torch.cpu, instructions, lambda: False)
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
    straight = cpu.CpuPlatform.get_attn_backend_cls.__func__  # type: ignore[attr-defined]

    def choose(cls: Any, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None) -> str:
        # The sparse kind keeps what the dense one keeps; its index is a layer of its own.
        return str(straight(cls, selected_backend, attn_selector_config._replace(use_sparse=False), num_heads))

    cpu.CpuPlatform.get_attn_backend_cls = classmethod(choose)  # type: ignore[assignment]
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, backend="gloo")


def specs(one: Architecture) -> Iterator[Any]:
    """vLLM's specifications of the layers that keep something of their own."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, ensure_model_parallel_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(one.config()))
        engine = EngineArgs(model=folder, skip_tokenizer_init=True, load_format="dummy", max_model_len=1024, enforce_eager=True)
        config = engine.create_engine_config()
        with set_current_vllm_config(config):
            destroy_model_parallel()
            ensure_model_parallel_initialized(1, 1)
            torch.set_default_dtype(config.model_config.dtype)
            try:
                with torch.device(one.device):
                    model = initialize_model(config)
            finally:
                torch.set_default_dtype(torch.float32)
        for layer in config.compilation_config.static_forward_context.values():
            if isinstance(layer, AttentionLayerBase) and not getattr(layer, "kv_sharing_target_layer_name", None):
                yield layer.get_kv_cache_spec(config)
        del model


def row(spec: Any) -> tuple[str, int, int]:
    """Kind, bytes of a token or of a state, and tokens of a window or chunk."""
    from vllm.utils.torch_utils import get_dtype_size
    from vllm.v1 import kv_cache_interface as interface

    if isinstance(spec, interface.MambaSpec):
        states = zip(spec.shapes, spec.dtypes, strict=True)
        return "state", sum(prod(shape) * get_dtype_size(dtype) for shape, dtype in states), 0
    bytes_of_token = spec.unpadded_page_size_bytes // spec.block_size
    if isinstance(spec, interface.SlidingWindowSpec):
        return "window", bytes_of_token, spec.sliding_window
    if isinstance(spec, interface.ChunkedLocalAttentionSpec):
        return "chunk", bytes_of_token, spec.attention_chunk_size
    if not isinstance(spec, interface.FullAttentionSpec):
        raise TypeError(f"{type(spec).__name__} has no row")
    return "full", bytes_of_token, 0


def answer(one: Architecture) -> dict[str, Any]:
    """An entry of the file: layers of each kind, as vLLM counts them."""
    rows = sorted(Counter(row(spec) for spec in specs(one)).items())
    layers = [{"kind": kind, "bytes": size, "tokens": tokens, "layers": count} for (kind, size, tokens), count in rows]
    return {"name": one.name, "layers": layers, "config": one.config()}


def write(file: Path) -> None:
    import vllm

    entries = []
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for one in ARCHITECTURES:
            print(one.name, file=sys.stderr, flush=True)
            entries.append(json.dumps(answer(one)))
    version = vllm.__version__.split("+")[0]
    file.write_text(f'{{"vllm": "{version}", "architectures": [\n' + ",\n".join(entries) + "\n]}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
