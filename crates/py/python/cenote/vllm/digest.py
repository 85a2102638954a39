"""Digest of a model's files: its configuration, its code, and all of its weights.

The scheduler and every worker compute the digest independently after loading, and the results must
be equal. So the digest excludes objects that models change while they load, and files that may
still be downloading.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub.errors import HFValidationError
from vllm import envs
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from cenote import clock
from cenote.content import Cache, Content
from cenote.model_files import changed_since, digest_of_files, files_of, kv_config, process_began
from cenote.vllm.log import logger_of
from cenote.walk import is_file, matching, matching_below

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

logger = logger_of(__name__)

_CONFIGURATIONS = ("config.json", "params.json")
# Configurations of the preprocessing of images and videos.
_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_SETTINGS = _CONFIGURATIONS + _PROCESSORS

# Load formats that read all weights from the model's files, with the patterns of these files. The
# first pattern that matches a file applies.
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


def model_digest(config: VllmConfig, cache: Cache | None = None) -> str:
    """A digest of the model's content. Raises ValueError if no local files have the weights."""
    return _digest(config.model_config, config.load_config, cache)


def draft_digest(config: VllmConfig, cache: Cache | None = None) -> str | None:
    """A digest of the draft model's content; None without a separate draft model.

    The draft model's layers store KV in the same blocks as the model's layers."""
    speculative = config.speculative_config
    draft = speculative.draft_model_config if speculative is not None else None
    if draft is None or draft.model == config.model_config.model:
        return None
    return _digest(draft, speculative.draft_load_config or config.load_config, cache)


def changed_while_loading(config: VllmConfig) -> Path | None:
    """A file of the models that may have changed after this process started; None if there is none."""
    load, speculative = config.load_config, config.speculative_config
    models = [(config.model_config, load)]
    if speculative is not None and (draft := speculative.draft_model_config) is not None:
        models.append((draft, speculative.draft_load_config or load))
    files: set[Path] = set()
    for model, how in models:
        if str(how.load_format) == "dummy":
            continue
        folder, weights = _model_files(model, how)
        files |= {*weights, *(folder / name for name in _SETTINGS if is_file(folder / name))}
        if model.hf_config_path and (other := _folder(model.hf_config_path, model.revision, how.download_dir)) is not None:
            files |= set(files_of(other))
        if model.trust_remote_code:
            for place in _code_elsewhere(_configuration(model)):
                files |= set(_code_files(place, model, how))
    return changed_since(sorted(files), process_began())


def _digest(model: ModelConfig, load: LoadConfig, cache: Cache | None) -> str:
    facts: dict[str, Any] = {"configuration": _configuration(model)}
    if str(load.load_format) == "dummy":
        # Model, revision and seed determine dummy weights.
        facts["dummy"] = [model.model, model.revision, model.seed]
        return digest_of_files(Path(), [], facts, cache)
    folder, files = _model_files(model, load)
    if any(file.name.startswith("consolidated") for file in files):
        # The folder may hold the weights in two forms, and the load format selects one.
        facts["load format"] = str(load.load_format)
    facts["pattern"] = (load.model_loader_extra_config or {}).get("pattern") if isinstance(load.model_loader_extra_config, dict) else None
    own = set(files)
    if model.hf_config_path and (other := _folder(model.hf_config_path, model.revision, load.download_dir)) is not None:
        facts["configuration's folder"] = _digest_others(other, own, cache)
    if model.trust_remote_code:
        facts["code"] = {place: _digest_code(place, model, load, cache) for place in _code_elsewhere(facts["configuration"])}
    began = clock.now()
    cache = cache or Cache()

    def tell(found: list[Content]) -> None:
        size, seconds = sum(content.size for content in found) / 1e9, clock.now() - began
        logger.info("Cenote: digest of %s: %d files, %.2f GB, %d cached, %.2f s", model.model, len(found), size, cache.hits, seconds)

    return digest_of_files(folder, files, facts, cache, tell)


def _configuration(model: ModelConfig) -> dict[str, Any]:
    """The model's configuration files; vLLM's `hf_config` if there is none."""
    place = model.hf_config_path or model.model
    revision = getattr(model, "_hf_config_revision", None) or model.revision
    found = {name: _read(name, place, revision) for name in _CONFIGURATIONS}
    if not any(found.values()):
        found = {"config.json": model.hf_config.to_dict()}
    if model.multimodal_config is not None:
        found |= {name: _read(name, model.model, model.revision) for name in _PROCESSORS}
    return {name: kv_config(content) for name, content in found.items() if content}


def _read(name: str, place: str, revision: str | None) -> dict[str, Any] | None:
    """A JSON file of a model, from its folder or its repository; None if absent."""
    try:
        return None if Path(place).is_file() else get_hf_file_to_dict(name, place, revision)
    except HFValidationError:
        return None


def _model_files(model: ModelConfig, load: LoadConfig) -> tuple[Path, list[Path]]:
    """The folder of the weights, and its files that count. Raises ValueError if there are none."""
    # For an object store, vLLM copies the configuration; `model_weights` is the original location.
    place, load_format = str(model.model_weights or model.model), str(load.load_format)
    patterns = _FILES.get(load_format, ())
    if patterns and Path(place).is_file():
        file = Path(place)
        # The image encoder is in a separate file of the same folder.
        beside = [other for other in matching(file.parent, "*mmproj*") if other != file]
        return file.parent, sorted([file, *beside])
    folder = _folder(place, model.revision, load.download_dir) if patterns else None
    if folder is not None and any(next(folder.glob(pattern), None) for pattern in patterns):
        ignored = load.ignore_patterns
        files = files_of(folder, [ignored] if isinstance(ignored, str) else list(ignored or ()), patterns)
        # The facts already contain these files, without the keys that do not affect KV.
        return folder, [file for file in files if file.parent != folder or file.name not in _SETTINGS]
    raise ValueError(
        f"Cenote names a model by its weight files, but finds none of {place} (load format {load_format}) on this machine: set "
        "model_fingerprint in kv_connector_extra_config to a text of your choice, different for different weights"
    )


def _digest_others(folder: Path, own: set[Path], cache: Cache | None) -> str:
    """A digest of code and settings in a configuration's folder, excluding its unused weights."""
    found = [file for file in files_of(folder) if file.suffix in (".py", ".json") and file.name not in _CONFIGURATIONS]
    return digest_of_files(folder, [file for file in found if file not in own], {}, cache)


def _code_elsewhere(configuration: dict[str, Any]) -> Iterable[str]:
    """Other repositories with code that the configuration names as `repository--module.Class`."""

    def names(value: Any) -> Iterable[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from names(each)

    maps = [content.get("auto_map") for content in configuration.values()]
    return sorted({name.split("--")[0] for name in names(maps) if "--" in name})


def _digest_code(place: str, model: ModelConfig, load: LoadConfig, cache: Cache | None) -> str:
    folder, code = _code_folder(place, model, load), _code_files(place, model, load)
    if not code:
        raise ValueError(
            f"Cenote names a model by its files, but the code of {place}, which {model.model} runs, is not in the hub's cache of this "
            "machine: set model_fingerprint in kv_connector_extra_config to a text of your choice, different for different code"
        )
    return digest_of_files(folder or Path(), code, {}, cache)


def _code_folder(place: str, model: ModelConfig, load: LoadConfig) -> Path | None:
    return _folder(place, model.code_revision, None) or _folder(place, model.code_revision, load.download_dir)


def _code_files(place: str, model: ModelConfig, load: LoadConfig) -> list[Path]:
    folder = _code_folder(place, model, load)
    return matching_below(folder, "*.py") if folder is not None else []


def _folder(place: str, revision: str | None, download_dir: str | None) -> Path | None:
    """The folder of the weights: this folder, or the snapshot that vLLM has downloaded; or None."""
    if Path(place).is_dir():
        return Path(place)
    if envs.VLLM_USE_MODELSCOPE:
        return None
    try:
        # Ignore all files, so that parts of the repository that vLLM does not need may be missing.
        found = huggingface_hub.snapshot_download(
            place, revision=revision, cache_dir=download_dir, local_files_only=True, ignore_patterns="*"
        )
    except (OSError, ValueError):
        return None
    return Path(found)
