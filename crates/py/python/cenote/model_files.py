"""The files of a model's folder that can affect its KV, and one digest of them all. No engine.

Every file counts, except known kinds that cannot affect KV. So a new kind of file costs sharing but
never causes wrong KV."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cenote import clock, walk
from cenote.adapters import server_clock_seconds
from cenote.content import Cache, Content, Stamp, contents, stamps
from cenote.walk import matches

# Names cover token ids, so tokenizers do not count, but for models that read the text of tokens
# (`reads_text`).
_TOKENIZERS = (
    "tokenizer*", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json", "special_tokens_map.json", "tekken.json", "spiece.model",
    "*.tiktoken",
)  # fmt: skip
# Settings of sampling and training.
_NOT_KV = (
    "chat_template*", "generation_config.json", "training_args.bin", "trainer_state.json", "optimizer*", "scheduler*", "rng_state*",
    "events.out.*", "all_results.json", "eval_results.json", "train_results.json",
)  # fmt: skip
_FOR_PEOPLE = (
    "readme*", "license*", "notice*", "use_policy*", "*.md", "*.pdf", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.mp4",
    "*.log", "*.lock", "*.tmp", "*.pyc",
)  # fmt: skip
# Weights in formats of other frameworks.
_FOREIGN = ("*.msgpack", "*.h5", "*.onnx", "*.onnx_data", "*.ot", "*.tflite", "*.mlmodel", "*.mlpackage")
_IGNORED = _TOKENIZERS + _NOT_KV + _FOR_PEOPLE + _FOREIGN
_IGNORED_FOLDERS = ("checkpoint-*", "global_step*", "runs", "wandb", "onnx", "openvino", "coreml", "__pycache__")

# Engines load one form of the weights: the first of these patterns that matches a file.
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")

_CONFIGURATIONS = ("config.json", "params.json")

# Files and keys of configurations of models that take images, audio or videos.
_OF_MEDIA_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "image_processor*.json")
_OF_MEDIA = ("vision", "visual", "vit_", "image_", "video_", "audio", "mm_", "img_", "speech", "thinker_config")

_logger = logging.getLogger(__name__)


def files_of(
    folder: Path, ignored: Sequence[str] = (), weights: Sequence[str] = WEIGHTS, *, is_engine: bool = True
) -> list[Path]:
    """The files that count, sorted by path. `ignored` are patterns of paths within the folder.

    `is_engine`: as for `walk.entries`."""

    def below(here: Path, seen: set[str]) -> Iterator[Path]:
        entries = [entry for entry in walk.entries(here, folder, is_engine=is_engine) if not entry.name.startswith(".")]
        entries = [entry for entry in entries if not any(fnmatch(str(entry.relative_to(folder)), pattern) for pattern in ignored)]
        files = [entry for entry in entries if walk.is_file(entry, is_engine=is_engine) and not matches(entry, _IGNORED)]
        read = next((pattern for pattern in weights if any(matches(file, [pattern]) for file in files)), None)
        yield from (file for file in files if not matches(file, WEIGHTS) or read is None or matches(file, [read]))
        for entry in entries:
            if os.path.isdir(entry) and not matches(entry, _IGNORED_FOLDERS) and os.path.realpath(entry) not in seen:
                yield from below(entry, seen | {os.path.realpath(entry)})

    return sorted(below(folder, {os.path.realpath(folder)}))


def kv_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys for its location and the program that wrote it."""
    return {key: value for key, value in config.items() if not key.startswith("_") and key != "transformers_version"}


def reads_text(config: Mapping[str, Any]) -> bool:
    """True if a model's KV depends on the text of its tokens: n-gram tables whose rows are found by
    normalized text (DeepSeek's Engram)."""
    return bool(config.get("engram_layer_ids")) or any(isinstance(part, Mapping) and reads_text(part) for part in config.values())


def takes_media(folder: Path) -> bool:
    """True if a model's folder has configurations of images, audio or videos."""
    if walk.matching(folder, *_OF_MEDIA_FILES):
        return True
    return any(_has_media(json.loads(file.read_bytes())) for file in walk.matching(folder, *_CONFIGURATIONS))


def _has_media(config: Any) -> bool:
    if not isinstance(config, Mapping):
        return False
    return any(key.startswith(_OF_MEDIA) and value or _has_media(value) for key, value in config.items())


def refuse_media(settings: Mapping[str, Any], where: str, folder: Path, why: str) -> None:
    """Raises ValueError for a model that takes images, audio or videos, unless the settings trust their names.

    For engines in which clients may name them, and which pass only the result of that on. `why` says how."""
    if settings.get("trust_media_names") is not True and takes_media(folder):
        raise ValueError(
            f"{where}: the model in {folder} takes images, audio or videos, and {why}, so one request's KV would answer another: give "
            '"trust_media_names": true if every client is trusted to give different content different names, or if the engine takes none'
        )


def digest_of_tokenizer(folder: Path) -> str:
    """A digest of the files that give tokens their text. Raises ValueError if there are none."""
    files = walk.matching(folder, *_TOKENIZERS)
    if not files:
        raise ValueError(f"{folder}: this folder has no tokenizer, and the rows of the model's n-gram tables depend on it")
    return digest_of_files(folder, files, {})


def digest_of_files(
    folder: Path, files: Sequence[Path], facts: Mapping[str, Any], cache: Cache | None = None, tell: Callable[[list[Content]], None] | None = None
) -> str:
    """A digest of these facts, and of the relative paths and all content of the files.

    Raises OSError if a file cannot be read, and CenoteError if a file changes while it is read."""
    found = contents(files, cache)
    if tell is not None:
        tell(found)
    listed = [[str(file.relative_to(folder)), content.size, content.digest.hex()] for file, content in zip(files, found, strict=True)]
    named = json.dumps({"facts": facts, "files": listed}, sort_keys=True, default=str)
    return hashlib.sha256(b"cenote model v2 " + named.encode()).hexdigest()


def changed_since(files: Sequence[Path], began: float) -> Path | None:
    """A file that may have changed after `began`, in seconds since the epoch; None if there is none.

    An engine that started then may have loaded other content of such a file than what is there now. Files in a
    hub's cache are exempt, because engines themselves download them after their start."""
    files = [file for file in files if not (file.is_symlink() and file.resolve().parent.name == "blobs")]
    found = stamps(files)
    if found is None:
        return next((file for file in files if not file.is_file()), files[0])
    for file, stamp in zip(files, found, strict=True):
        if max(stamp[3], stamp[4]) / 1e9 + server_clock_seconds(stamp) > began:
            return file
    return None


def process_began() -> float:
    """When this process started, in seconds since the epoch. An engine loads its model later."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return clock.unix() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


def _folder_files(folder: Path, is_engine: bool) -> list[Path]:
    files = files_of(folder, is_engine=is_engine)
    if not any(matches(file, [*WEIGHTS, "*.gguf"]) for file in files):
        raise ValueError(f"{folder}: this folder has no weights; give the folder from which the engine loads its model")
    return files


def digest_of_folder(folder: Path, cache: Cache | None = None, *, is_engine: bool = True) -> str:
    """A digest of the model in a folder, for engines that pass only the model's name.

    `is_engine`: as for `files_of`. Raises OSError if a file cannot be read, and ValueError for a folder without
    weights."""
    files = _folder_files(folder, is_engine)
    facts: dict[str, Any] = {}
    for name in _CONFIGURATIONS:
        file = folder / name
        if file in files:
            files.remove(file)
            facts[name] = kv_config(json.loads(file.read_bytes()))
            if reads_text(facts[name]):
                facts["tokenizer"] = digest_of_tokenizer(folder)
    return digest_of_files(folder, files, facts, cache)


@dataclass
class WeightsName:
    """The name of the weights that an engine has loaded, for engines that pass only the model's name.

    The bytes that are loaded must be those that were hashed. Each of these findings ends sharing with others: a
    file that changed after this process started, and one that changed after it was hashed (`hold`)."""

    text: str
    folder: Path | None = None
    is_engine: bool = True
    files: tuple[Path, ...] = ()
    stamps: tuple[Stamp, ...] = ()

    def hold(self, logger: logging.Logger) -> str:
        """The name, if the files are those that were hashed; otherwise a name that no other process has.

        Call it after the engine has loaded its model, or again and again if that may come later."""
        if self.folder is not None and self._state() != (self.files, self.stamps):
            self._doubt(f"{self.folder} has changed after it was hashed", logger)
        return self.text

    def _state(self) -> tuple[tuple[Path, ...], tuple[Stamp, ...]] | None:
        assert self.folder is not None
        try:
            files = files_of(self.folder, is_engine=self.is_engine)
            found = stamps(files)
        except OSError:
            return None
        return None if found is None else (tuple(files), tuple(found))

    def _doubt(self, why: str, logger: logging.Logger) -> None:
        logger.warning("Cenote: this instance shares nothing with others, because %s: restart it", why)
        self.text, self.folder = f"{self.text} in doubt {secrets.token_hex(16)}", None


def weights_name(
    settings: Mapping[str, Any], where: str, logger: logging.Logger = _logger, *, is_engine: bool = True
) -> WeightsName:
    """The name of the weights from the settings. `is_engine`: this process loads them.

    Raises ValueError, with the settings to give, if the settings do not name the weights."""
    text, folder = settings.get("model_fingerprint"), settings.get("model_folder")
    if bool(text) == bool(folder):
        raise ValueError(
            f'{where}: name the weights by either "model_folder" (the folder that the engine loads; Cenote reads it at start) or '
            '"model_fingerprint" (a text of your choice, different for different weights): with the model\'s name alone, engines '
            "with other weights would load this engine's KV"
        )
    if text:
        return WeightsName(f"text {text}")
    path = Path(str(folder))
    try:
        # Looked at before the hash: what changes later differs from these stamps.
        files = _folder_files(path, is_engine)
        found = stamps(files)
        name = WeightsName(f"files {digest_of_folder(path, is_engine=is_engine)}", path, is_engine, tuple(files), tuple(found or ()))
    except PermissionError as error:
        raise ValueError(
            f"{where}: model_folder: {error}; let this process read what the engine reads, or give model_fingerprint"
        ) from error
    except OSError as error:
        raise ValueError(f"{where}: model_folder: {error}") from error
    # The start of another process is not known here: docs/guides/lmcache.md has the rule for it.
    if is_engine and (young := changed_since(files, process_began())) is not None:
        name._doubt(f"{young} changed after the process started", logger)
    return name
