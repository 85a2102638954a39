"""What a model is, as its files have it: its configuration, its code, and all of its weights.

The scheduler and every worker make it for themselves, when the weights are loaded, and must come to the same. So nothing is
taken from objects that models change while they load, nor from files that may still be on their way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from huggingface_hub.errors import HFValidationError
from vllm import envs
from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

from cenote.adapters import keeps_times
from cenote.content import Cache, Content, stamps
from cenote.model_files import digest_of_files, files_of, kv_config
from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

logger = logger_of(__name__)

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


def model_digest(config: VllmConfig, cache: Cache | None = None) -> str:
    """A digest of the model's content. Weights that are in no file are refused."""
    return _digest(config.model_config, config.load_config, cache)


def draft_digest(config: VllmConfig, cache: Cache | None = None) -> str | None:
    """A digest of the content of the draft model, whose layers keep KV beside the model's; None where there is none."""
    speculative = config.speculative_config
    draft = speculative.draft_model_config if speculative is not None else None
    if draft is None or draft.model == config.model_config.model:
        return None
    return _digest(draft, speculative.draft_load_config or config.load_config, cache)


def changed_while_loading(config: VllmConfig) -> Path | None:
    """A file of the model that has changed since this process began, so that vLLM may have loaded other content. Files in a hub's
    cache are exempt, because vLLM itself downloads them after its start."""
    if str(config.load_config.load_format) == "dummy":
        return None
    _, files = _model_files(config.model_config, config.load_config)
    files = [file for file in files if not (file.is_symlink() and file.resolve().parent.name == "blobs")]
    began = _process_began()
    for file, stamp in zip(files, stamps(files) or [], strict=False):
        if keeps_times(stamp) and max(stamp[3], stamp[4]) / 1e9 > began:
            return file
    return None


def _process_began() -> float:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def _digest(model: ModelConfig, load: LoadConfig, cache: Cache | None) -> str:
    facts: dict[str, Any] = {"configuration": _configuration(model)}
    if str(load.load_format) == "dummy":
        # Named by what would make the same ones.
        facts["dummy"] = [model.model, model.revision, model.seed]
        return digest_of_files(Path(), [], facts, cache)
    folder, files = _model_files(model, load)
    if any(file.name.startswith("consolidated") for file in files):
        # The folder may hold the weights in two forms, and the way of loading chooses one.
        facts["load format"] = str(load.load_format)
    facts["pattern"] = (load.model_loader_extra_config or {}).get("pattern") if isinstance(load.model_loader_extra_config, dict) else None
    own = set(files)
    if model.hf_config_path and (other := _folder(model.hf_config_path, model.revision, load.download_dir)) is not None:
        facts["configuration's folder"] = _digest_others(other, own, cache)
    if model.trust_remote_code:
        facts["code"] = {place: _digest_code(place, model, load, cache) for place in _code_elsewhere(facts["configuration"])}
    began = time.monotonic()
    cache = cache or Cache()

    def tell(found: list[Content]) -> None:
        size, seconds = sum(content.size for content in found) / 1e9, time.monotonic() - began
        logger.info("Cenote: %s is named by %d files of %.2f GB, %d known, in %.2f s", model.model, len(found), size, cache.hits, seconds)

    return digest_of_files(folder, files, facts, cache, tell)


def _configuration(model: ModelConfig) -> dict[str, Any]:
    """The files that say what the model is; where there is none, what vLLM has made of it."""
    place = model.hf_config_path or model.model
    revision = getattr(model, "_hf_config_revision", None) or model.revision
    found = {name: _read(name, place, revision) for name in _CONFIGURATIONS}
    if not any(found.values()):
        found = {"config.json": model.hf_config.to_dict()}
    if model.multimodal_config is not None:
        found |= {name: _read(name, model.model, model.revision) for name in _PROCESSORS}
    return {name: kv_config(content) for name, content in found.items() if content}


def _read(name: str, place: str, revision: str | None) -> dict[str, Any] | None:
    """A file of a model, from its folder or its repository, if there is one."""
    try:
        return None if Path(place).is_file() else get_hf_file_to_dict(name, place, revision)
    except HFValidationError:
        return None


def _model_files(model: ModelConfig, load: LoadConfig) -> tuple[Path, list[Path]]:
    """The files that count, and the folder that they are named in."""
    # Weights of an object store lie elsewhere than the configuration, of which there is a copy.
    place, load_format = str(model.model_weights or model.model), str(load.load_format)
    patterns = _FILES.get(load_format, ())
    if patterns and Path(place).is_file():
        file = Path(place)
        # The encoder of images lies beside it.
        beside = [other for other in file.parent.glob("*mmproj*") if other != file and other.is_file()]
        return file.parent, sorted([file, *beside])
    folder = _folder(place, model.revision, load.download_dir) if patterns else None
    if folder is not None and any(next(folder.glob(pattern), None) for pattern in patterns):
        ignored = load.ignore_patterns
        files = files_of(folder, [ignored] if isinstance(ignored, str) else list(ignored or ()), patterns)
        # These were read already, without what does not count in them.
        known = [*_CONFIGURATIONS, *_PROCESSORS]
        return folder, [file for file in files if file.parent != folder or file.name not in known]
    raise ValueError(
        f"Cenote names a model by its weights' files, and of {place}, loaded as {load_format}, it finds none on this machine: give "
        "kv_connector_extra_config a model_fingerprint, a text of your own that is another one for other weights"
    )


def _digest_others(folder: Path, own: set[Path], cache: Cache | None) -> str:
    """Code and settings beside a configuration. The weights of that folder are not loaded."""
    found = [file for file in files_of(folder) if file.suffix in (".py", ".json") and file.name not in _CONFIGURATIONS]
    return digest_of_files(folder, [file for file in found if file not in own], {}, cache)


def _code_elsewhere(configuration: dict[str, Any]) -> Iterable[str]:
    """Repositories of others whose code the model's configuration names, as `repository--module.Class`."""

    def names(value: Any) -> Iterable[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from names(each)

    maps = [content.get("auto_map") for content in configuration.values()]
    return sorted({name.split("--")[0] for name in names(maps) if "--" in name})


def _digest_code(place: str, model: ModelConfig, load: LoadConfig, cache: Cache | None) -> str:
    folder = _folder(place, model.code_revision, None) or _folder(place, model.code_revision, load.download_dir)
    code = sorted(folder.rglob("*.py")) if folder is not None else []
    if not code:
        raise ValueError(
            f"Cenote names a model by its files, and the code of {place}, which {model.model} runs, is not in the hub's cache of this "
            "machine: give kv_connector_extra_config a model_fingerprint, a text of your own that is another one for other code"
        )
    return digest_of_files(folder or Path(), code, {}, cache)


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
