"""What a model is, as its files have it: its configuration and its weights.

The scheduler and every worker make it for themselves, when the weights are loaded, and must come to the same. So nothing is
taken from objects that models change while they load, nor from files that may still be on their way.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub.errors import HFValidationError
from vllm import envs
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_SAMPLES, _SAMPLE_BYTES = 64, 4096

_CONFIGURATIONS = ("config.json", "params.json")
# What becomes of images and videos on their way to the model.
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")

# Ways of loading that take all weights from the model's files, and which these are: of the first pattern that has any.
_ANY = ("*.safetensors", "*.bin", "*.pt")
_FILES = {
    "auto": _ANY,
    "hf": _ANY,
    "pt": ("*.pt",),
    "npcache": ("*.bin", "*.pt"),
    "gguf": ("*.gguf",),
    **dict.fromkeys(
        ("safetensors", "fastsafetensors", "instanttensor", "mistral", "runai_streamer", "sharded_state", "runai_streamer_sharded"),
        ("*.safetensors",),
    ),
}


def model_digest(config: VllmConfig) -> str:
    """A digest of the model's content: its configuration, and of each weight file the size, the header, and samples from all
    over it. Reading terabytes at start-up is not worth what samples would miss. Weights that are in no file are refused."""
    model = config.model_config
    is_dummy = str(config.load_config.load_format) == "dummy"
    files = [] if is_dummy else _weight_files(config)
    digest = hashlib.sha256()
    digest.update(json.dumps(_configuration(config), sort_keys=True, default=str).encode())
    if is_dummy:
        # Named by what would make the same ones.
        digest.update(f"dummy {model.model} {model.revision} {model.seed}".encode())
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            for sample in range(_SAMPLES):
                content.seek(sample * max(size - _SAMPLE_BYTES, 0) // (_SAMPLES - 1))
                digest.update(content.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _configuration(config: VllmConfig) -> dict[str, Any]:
    """The files that say what the model is; where there is none, what vLLM has made of it."""
    model = config.model_config
    place = model.hf_config_path or model.model
    revision = getattr(model, "_hf_config_revision", None) or model.revision
    found = {name: _read(name, place, revision) for name in _CONFIGURATIONS}
    if not any(found.values()):
        found = {"config.json": model.hf_config.to_dict()}
    if model.multimodal_config is not None:
        found |= {name: _read(name, model.model, model.revision) for name in _PROCESSORS}
    return {name: _kv_config(content) for name, content in found.items() if content}


def _read(name: str, place: str, revision: str | None) -> dict[str, Any] | None:
    """A file of a model, from its folder or its repository, if there is one."""
    try:
        return None if Path(place).is_file() else get_hf_file_to_dict(name, place, revision)
    except HFValidationError:
        return None


def _kv_config(config: dict[str, Any]) -> dict[str, Any]:
    """What of a model's configuration is not about where it lies or who wrote it."""
    return {key: value for key, value in config.items() if not key.startswith("_") and key != "transformers_version"}


def _weight_files(config: VllmConfig) -> list[Path]:
    model, load = config.model_config, config.load_config
    # Weights of an object store lie elsewhere than the configuration, of which there is a copy.
    place, load_format = str(model.model_weights or model.model), str(load.load_format)
    patterns = _FILES.get(load_format, ())
    if patterns and Path(place).is_file():
        return [Path(place)]
    folder = _folder(place, model.revision, load.download_dir) if patterns else None
    for pattern in patterns if folder is not None else ():
        if files := sorted(folder.glob(pattern)):
            return files
    raise ValueError(
        f"Cenote names a model by its weights' files, and of {place}, loaded as {load_format}, it finds none on this machine: give "
        "kv_connector_extra_config a model_fingerprint, a text of your own that is another one for other weights"
    )


def _folder(place: str, revision: str | None, download_dir: str | None) -> Path | None:
    """Where the weights lie: in this folder, or in the cache, to which vLLM has downloaded them by now."""
    if Path(place).is_dir():
        return Path(place)
    if envs.VLLM_USE_MODELSCOPE:
        return None
    try:
        # Nothing is asked for, so that parts of the repository which vLLM does not need may be missing.
        found = huggingface_hub.snapshot_download(
            place, revision=revision, cache_dir=download_dir, local_files_only=True, ignore_patterns="*"
        )
    except (OSError, ValueError):
        return None
    return Path(found)
