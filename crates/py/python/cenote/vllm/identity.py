"""Who may share blocks with whom: everything in which two workers must agree, in one fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import vllm
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from cenote.vllm.settings import Settings

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def model_digest(config: VllmConfig) -> str:
    """A digest of the model's content: its configuration, and of each weight file the size, the header, and samples from all
    over it. Reading terabytes at start-up is not worth what samples would miss."""
    model = config.model_config
    digest = hashlib.sha256()
    digest.update(json.dumps(_kv_config(model.hf_config.to_dict()), sort_keys=True, default=str).encode())
    folder = Path(model.model)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin")) if folder.is_dir() else []
    load_format = str(config.load_config.load_format)
    if load_format == "dummy" or not files:
        # No weights on disk, or none that we may look at: named by what would make the same ones.
        digest.update(f"{load_format} {model.model} {model.revision} {model.seed}".encode())
        return digest.hexdigest()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            for sample in range(_SAMPLES):
                content.seek(sample * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _kv_config(config: dict[str, Any]) -> dict[str, Any]:
    """What of a model's configuration is not about where it lies or who wrote it."""
    return {key: value for key, value in config.items() if not key.startswith("_") and key != "transformers_version"}


def _positions(config: VllmConfig) -> int | None:
    """Where it decides how all positions are encoded (LongRoPE's short or long factors), the longest context."""
    model = config.model_config
    is_long = '"longrope"' in json.dumps(model.hf_config.to_dict(), default=str)
    return int(model.max_model_len) if is_long else None


def layout(config: VllmConfig) -> str:
    """How an attention backend lays out a block's bytes, as far as we need not look inside: only the same backend of the same
    vLLM on the same instruction set reads them. GPUs of different kinds may be given different ones, whose order vLLM names."""
    if current_platform.is_cpu():
        kind = torch.backends.cpu.get_cpu_capability()
    else:
        kind = f"{current_platform.get_device_capability()} {config.cache_config.kv_cache_layout}"
    return " ".join((f"vllm-{vllm.__version__}", current_platform.device_type, platform.machine(), kind))


def fingerprint(
    config: VllmConfig, settings: Settings, digest: str, group: dict[str, Any], tp_rank: int, pp_rank: int
) -> bytes:
    """The identity of one rank's blocks of one KV cache group."""
    cache, parallel = config.cache_config, config.parallel_config
    backend = getattr(getattr(config, "attention_config", None), "backend", None)
    facts = {
        "model": settings.model_fingerprint or digest,
        "model dtype": str(config.model_config.dtype),
        "cache dtype": str(cache.cache_dtype),
        "layout": layout(config),
        "codec": settings.codec_identity(),
        "backend": str(backend),
        # Which an engine may do to weights as it loads them.
        "quantization": [str(config.model_config.quantization), str(config.model_config.quantization_config)],
        "positions": _positions(config),
        "hash": cache.prefix_caching_hash_algo,
        "group": group,
        "tensor parallel": [tp_rank, parallel.tensor_parallel_size],
        "pipeline parallel": [pp_rank, parallel.pipeline_parallel_size],
        "tenant salt": settings.tenant_salt,
    }
    return b"cenote vllm v3 " + json.dumps(facts, sort_keys=True).encode()


def check_hashes(config: VllmConfig) -> None:
    """Refuses what would never hit: hashes that another process cannot make again."""
    cache = config.cache_config
    if not cache.enable_prefix_caching:
        raise ValueError("Cenote names blocks by vLLM's prefix hashes, and prefix caching is off: give --enable-prefix-caching")
    algorithm = str(cache.prefix_caching_hash_algo)
    if algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in os.environ:
        raise ValueError(
            f"--prefix-caching-hash-algo {algorithm} starts from a random number in every process, so that no two instances "
            "would ever share a block: set PYTHONHASHSEED to the same number everywhere, or use sha256"
        )
