"""What vLLM itself keeps for each layer of many architectures, for the tests of `cenote plan kv`.

    python plan_specs.py ../../../plan/tests/plan/vllm.json

Models are made without memory for weights, from the defaults of transformers' configuration classes, and
asked for their KV cache specifications. What vLLM no longer serves is made of its specification classes.
`test_plan_specs.py` compares the file with this vLLM's answers."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A kernel of Kimi's for GPUs, whose module this installation lacks.
os.environ.setdefault("VLLM_KIMI_K3_GEMM_AR", "0")


@dataclass(frozen=True)
class Architecture:
    """A class of models, and what differs from its defaults; None: the key is left out."""

    name: str
    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    """vLLM's class, if transformers has none for this type."""
    device: str = "meta"
    has_prefix_cache: bool | None = None
    made: Callable[[dict[str, Any]], Iterator[Any]] | None = None
    """Makes the specifications from the configuration, if vLLM no longer has the model."""
    base: str | None = None
    """The type whose defaults count, if transformers has no such type."""

    def config(self) -> dict[str, Any]:
        """The configuration as a file has it."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

        defaults = json.loads(_class(self.base or self.model_type)().to_json_string())
        defaults["model_type"] = self.model_type
        config = {key: value for key, value in {**defaults, **self.changes}.items() if self.changes.get(key, 0) is not None}
        config["architectures"] = [self.architecture or CLASSES[self.model_type]]
        config.pop("transformers_version", None)
        return {"torch_dtype": "bfloat16", **config}


def _class(model_type: str) -> Any:
    """Transformers' own class of a configuration: vLLM registers others."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    module = importlib.import_module(f"transformers.models.{model_type_to_module_name(model_type)}")
    return getattr(module, CONFIG_MAPPING_NAMES[model_type])


def _minimax_01(config: dict[str, Any]) -> Iterator[Any]:
    """As vLLM had it up to 0.23: lightning attention's matrix of each head in the model's type, or attention."""
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    heads, size, dtype = config["num_attention_heads"], config["head_dim"], getattr(torch, config["torch_dtype"])
    shapes = MambaStateShapeCalculator.linear_attention_state_shape(heads, 1, size)
    dtypes = MambaStateDtypeCalculator.linear_attention_state_dtype(dtype, "auto")
    for kind in config["attn_type_list"]:
        if kind == 1:
            yield FullAttentionSpec(block_size=16, num_kv_heads=config["num_key_value_heads"], head_size=size, dtype=dtype)
        else:
            yield MambaSpec(block_size=16, shapes=shapes, dtypes=dtypes)


def _block(group: int | None) -> dict[str, Any]:
    """A block of Nemotron-NAS with so many query heads for each KV head, or without attention."""
    return {
        "attention": {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False},
        "ffn": {"ffn_mult": 2.625, "no_op": False, "replace_with_linear": False},
    }


def _fp8(**more: Any) -> dict[str, Any]:
    """Weights and KV in FP8, as llm-compressor writes it."""
    bits = {"num_bits": 8, "type": "float", "symmetric": True}
    scheme = {"weights": {**bits, "strategy": "channel", "dynamic": False},
              "input_activations": {**bits, "strategy": "token", "dynamic": True}, "targets": ["Linear"]}  # fmt: skip
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": scheme}, "ignore": ["lm_head"],
        "kv_cache_scheme": {**bits, "strategy": "tensor", "dynamic": False}, **more,
    }  # fmt: skip


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
        "arcee", "cohere2_moe", "cwm", "gpt_bigcode", "gpt_neox", "jais2", "mellum", "minicpm3", "ministral3", "olmo3", "phi", "qwen3_5_moe_text",
        "seed_oss", "smollm3", "starcoder2", "vaultgemma",
    )),
    # The text model's keys are nested.
    Architecture("Mistral-3", "mistral3", {}, "Mistral3ForConditionalGeneration"),
    Architecture("Qwen2.5-VL", "qwen2_5_vl", {}, "Qwen2_5_VLForConditionalGeneration"),
    Architecture("Qwen3-VL", "qwen3_vl", {}, "Qwen3VLForConditionalGeneration"),
    Architecture("HY-V4", "hy_v4", {}, "HYV4ForCausalLM"),
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
    Architecture("Kimi-Linear as published", "kimi_linear", {
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 27, 4), 27], "kda_layers": [layer for layer in range(1, 27) if layer % 4],
            "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        },
        "layer_types": None, "linear_head_dim": None, "linear_num_heads": None, "linear_conv_kernel_dim": None, "mla_use_nope": True,
        "head_dim": 72, "mlp_layer_types": None, "first_k_dense_replace": 1, "moe_layer_freq": 1, "use_grouped_topk": True,
    }, "KimiLinearForCausalLM", has_prefix_cache=False),
    Architecture("MiniMax-Text-01 as published", "minimax_text_01", {
        "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "attn_type_list": ([0] * 7 + [1]) * 10, "layer_types": None, "block_size": None, "rotary_dim": 64,
        "layernorm_full_attention_alpha": 3.5565588200778455, "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_alpha": 3.5565588200778455, "layernorm_linear_attention_beta": 1.0,
    }, "MiniMaxText01ForCausalLM", base="minimax", made=_minimax_01),
    Architecture("Nemotron-NAS as published", "nemotron-nas", {
        "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": None, "head_dim": None,
        "intermediate_size": None, "block_configs": [_block(8)] * 49 + [_block(None)] * 31,
    }, "DeciLMForCausalLM", base="llama"),
    Architecture("Nemotron-NAS of several groups", "nemotron-nas", {
        "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": None, "intermediate_size": None,
        "block_configs": [_block(8), _block(4), _block(None), _block(16)],
    }, "DeciLMForCausalLM", base="llama"),
    Architecture("DeepSeek-V4-Flash as published", "deepseek_v4", {
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "num_hash_layers": 3, "topk_method": "noaux_tc", "layer_types": None,
        "compress_rates": None, "mlp_layer_types": None, "partial_rotary_factor": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }, "DeepseekV4ForCausalLM"),
    Architecture("Llama with KV in FP8", "llama", {"quantization_config": _fp8()}),
    Architecture("Gemma-3 with KV in FP8", "gemma3_text", {"quantization_config": _fp8()}, "Gemma3ForCausalLM"),
    Architecture("Qwen3-Next with KV in FP8", "qwen3_next", {"quantization_config": _fp8()}),
    Architecture("DeepSeek-V3 with KV in FP8", "deepseek_v3", {"quantization_config": _fp8()}),
    Architecture("Llama with KV in FP8, by ModelOpt", "llama", {"quantization_config": {
        "quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "ignore": ["lm_head"],
    }}),
    Architecture("LongCat-Flash", "longcat_flash", {"mla_scale_q_lora": True, "mla_scale_kv_lora": True, "zero_expert_type": "identity"}, "LongcatFlashForCausalLM"),
]  # fmt: skip


def prepare(folder: Path) -> None:
    """Lets this processor answer for models that it cannot run, and without a process for each class.

    The group of this one process meets in a file of the folder. A processor with AMX or with bf16 in AVX-512
    answers as others do: for its own kernels vLLM keeps states as float32, whatever the model says."""
    import torch
    from transformers import AutoConfig
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
    AutoConfig.register("nemotron-nas", _nas_class())
    init_distributed_environment(1, 0, f"file://{folder}/store", 0, backend="gloo")


def _nas_class() -> Any:
    """Nemotron-NAS's class comes with its checkpoints: blocks are objects."""
    from transformers import LlamaConfig

    class NemotronNas(LlamaConfig):  # type: ignore[misc]
        model_type = "nemotron-nas"

        def __init__(self, block_configs: list[dict[str, Any]] | None = None, **keys: Any) -> None:
            super().__init__(**keys)
            parts = [{part: SimpleNamespace(**keys) for part, keys in block.items()} for block in block_configs or []]
            self.block_configs = [SimpleNamespace(**block) for block in parts]

        def to_dict(self) -> dict[str, Any]:
            return {key: value for key, value in super().to_dict().items() if key != "block_configs"}

    return NemotronNas


def specs(one: Architecture) -> Iterator[Any]:
    """vLLM's specifications of the layers that keep something of their own."""
    if one.made is not None:
        yield from one.made(one.config())
        return
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import destroy_model_parallel, ensure_model_parallel_initialized
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(one.config()))
        engine = EngineArgs(model=folder, skip_tokenizer_init=True, load_format="dummy", max_model_len=1024, enforce_eager=True,
                            enable_prefix_caching=one.has_prefix_cache)  # fmt: skip
        config = engine.create_engine_config()
        with set_current_vllm_config(config):
            destroy_model_parallel()
            ensure_model_parallel_initialized(1, 1)
            torch.set_default_dtype(config.model_config.dtype)
            try:
                with torch.device(one.device), mock.patch.multiple(torch.cuda, Stream=mock.Mock, Event=mock.Mock):
                    model = initialize_model(config)
            finally:
                torch.set_default_dtype(torch.float32)
        for layer in config.compilation_config.static_forward_context.values():
            if isinstance(layer, AttentionLayerBase) and not getattr(layer, "kv_sharing_target_layer_name", None):
                # None: other layers of the model have what this one reads.
                if (spec := layer.get_kv_cache_spec(config)) is not None:
                    yield spec
        del model


def row(spec: Any) -> tuple[str, int, int]:
    """Kind, bytes of a token, of a state or of a run, and tokens of a window, a chunk or a run."""
    from vllm.utils.torch_utils import get_dtype_size
    from vllm.v1 import kv_cache_interface as interface

    if isinstance(spec, interface.MambaSpec):
        states = zip(spec.shapes, spec.dtypes, strict=True)
        return "state", sum(prod(shape) * get_dtype_size(dtype) for shape, dtype in states), 0
    if spec.tokens_per_state > 1:
        return "run", spec.num_heads * spec.state_content_size_bytes, spec.tokens_per_state
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
