"""vLLM with Cenote, with its own connectors and with none: first tokens, decoding, and what a hit does to others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.goals import LENGTHS
from gpu.report import Report

# Llama-3-8B's shape, with random weights.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "bos_token_id": 128000, "eos_token_id": 128001,
}  # fmt: skip
# A model for a rehearsal on a processor.
TINY = LLAMA | {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "torch_dtype": "float32",
}  # fmt: skip
ENGINES = ("none", "cenote", "offloading", "simple")
# Host memory of each connector.
POOL_GIB = 16


def measure(report: Report, name: str, region: str, rehearse: bool) -> None:
    """Runs one engine in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(TINY if rehearse else LLAMA))
        settings = _settings(folder, name, region, rehearse)
        command = [sys.executable, "-m", "gpu.engine", json.dumps(settings)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as words:
            try:
                status = subprocess.run(command, stdout=out, stderr=words, timeout=max(report.left, 1), env=environment).returncode
            except subprocess.TimeoutExpired:
                status = None
            out.seek(0)
            words.seek(0)
            records, said = out.read().splitlines(), words.read().splitlines()
    for line in records:
        if line.startswith("@"):
            report.add("serving", engine=name, **json.loads(line[1:]))
    if status != 0:
        print("\n".join(said[-40:]), file=sys.stderr)
    if status is None:
        raise TimeoutError(f"vLLM with {name} did not end within the time of this run; see --seconds")
    if status != 0:
        errors = [line for line in said if "Error" in line]
        raise RuntimeError(f"vLLM with {name} ended with {status}: {errors[-1] if errors else 'it named no error'}")


def _settings(model: str, name: str, region: str, rehearse: bool) -> dict[str, Any]:
    pool = {"cpu_bytes_to_use": POOL_GIB << 30}
    cenote = {"region": region, "create_size": "256MiB" if rehearse else f"{POOL_GIB}GiB", "model_fingerprint": "bench"}
    transfer = {
        "none": None,
        "cenote": {
            "kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both",
            "kv_connector_extra_config": cenote,
        },
        "offloading": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": pool},
        "simple": {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both", "kv_connector_extra_config": pool},
    }[name]  # fmt: skip
    if rehearse:
        engine = {"dtype": "float32", "max_model_len": 2048, "enforce_eager": True, "block_size": 32}
        sizes = {"lengths": [256, 512], "sequences": 2, "prompt": 64, "hit": 512}
        return {"model": model, "transfer": transfer, "engine": engine, "sizes": sizes, "settle_seconds": 0.05}
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32]}
    engine = {
        "dtype": "bfloat16", "max_model_len": 40000, "block_size": 16, "kv_cache_memory_bytes": 6 << 30, "compilation_config": graphs,
        "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    sizes = {"lengths": list(LENGTHS), "sequences": 32, "prompt": 1000, "hit": 16384}
    return {"model": model, "transfer": transfer, "engine": engine, "sizes": sizes, "settle_seconds": 0.4}
