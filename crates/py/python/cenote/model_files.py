"""The files of a model's folder that can affect its KV, and one digest of them all. No engine.

Every file counts, except known kinds that cannot affect KV. So a new kind of file costs sharing but
never causes wrong KV."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cenote.content import Cache, Content, contents

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


def files_of(folder: Path, ignored: Sequence[str] = (), weights: Sequence[str] = WEIGHTS) -> list[Path]:
    """The files that count, sorted by path. `ignored` are patterns of paths within the folder."""
    return sorted(_files_of(folder, folder, ignored, weights, {os.path.realpath(folder)}))


def _files_of(root: Path, folder: Path, ignored: Sequence[str], weights: Sequence[str], seen: set[str]) -> Iterator[Path]:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    entries = [entry for entry in entries if not any(fnmatch(str(entry.relative_to(root)), pattern) for pattern in ignored)]
    files = [entry for entry in entries if entry.is_file() and not _matches(entry, _IGNORED)]
    read = next((pattern for pattern in weights if any(_matches(file, [pattern]) for file in files)), None)
    yield from (file for file in files if not _matches(file, WEIGHTS) or read is None or _matches(file, [read]))
    for entry in entries:
        if entry.is_dir() and not _matches(entry, _IGNORED_FOLDERS) and os.path.realpath(entry) not in seen:
            yield from _files_of(root, entry, ignored, weights, seen | {os.path.realpath(entry)})


def _matches(path: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(path.name.lower(), pattern) for pattern in patterns)


def kv_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys for its location and the program that wrote it."""
    return {key: value for key, value in config.items() if not key.startswith("_") and key != "transformers_version"}


def reads_text(config: Mapping[str, Any]) -> bool:
    """True if a model's KV depends on the text of its tokens: n-gram tables whose rows are found by
    normalized text (DeepSeek's Engram)."""
    return bool(config.get("engram_layer_ids")) or any(isinstance(part, Mapping) and reads_text(part) for part in config.values())


def digest_of_tokenizer(folder: Path) -> str:
    """A digest of the files that give tokens their text. Raises ValueError if there are none."""
    files = sorted(entry for entry in folder.iterdir() if entry.is_file() and _matches(entry, _TOKENIZERS))
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


def digest_of_folder(folder: Path, cache: Cache | None = None) -> str:
    """A digest of the model in a folder, for engines that pass only the model's name.

    Raises OSError if a file cannot be read, and ValueError for a folder without weights."""
    files = files_of(folder)
    if not any(_matches(file, [*WEIGHTS, "*.gguf"]) for file in files):
        raise ValueError(f"{folder}: this folder has no weights; give the folder from which the engine loads its model")
    facts = {}
    for name in _CONFIGURATIONS:
        file = folder / name
        if file in files:
            files.remove(file)
            facts[name] = kv_config(json.loads(file.read_bytes()))
            if reads_text(facts[name]):
                facts["tokenizer"] = digest_of_tokenizer(folder)
    return digest_of_files(folder, files, facts, cache)


def weights_name(settings: Mapping[str, Any], where: str) -> str:
    """The name of the weights from the settings, for engines that pass only the model's name.

    Raises ValueError, with the settings to give, if the settings do not name the weights."""
    text, folder = settings.get("model_fingerprint"), settings.get("model_folder")
    if bool(text) == bool(folder):
        raise ValueError(
            f'{where}: name the weights by either "model_folder" (the folder that the engine loads; Cenote reads it at start) or '
            '"model_fingerprint" (a text of your choice, different for different weights): with the model\'s name alone, engines '
            "with other weights would load this engine's KV"
        )
    if text:
        return f"text {text}"
    try:
        return f"files {digest_of_folder(Path(str(folder)))}"
    except OSError as error:
        raise ValueError(f"{where}: model_folder: {error}") from error
