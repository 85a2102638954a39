"""A model's folder, which appears whole or not at all."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from pypi_model import configs, tokenizers, weights
from pypi_model.catalogue import Model
from pypi_model.errors import ModelError
from pypi_model.source import Source

# Raised when the converter writes other files, so that folders of earlier converters are made again.
FORMAT = 1
_ORIGIN = "origin.json"


def _origin(model: Model) -> dict[str, object]:
    return {"format": FORMAT, "gguf": model.gguf, "sha256": model.sha256, "licence": model.licence}


def is_whole(target: Path, model: Model) -> bool:
    """Whether `target` was made from this model by a converter of this format."""
    try:
        return bool(json.loads((target / _ORIGIN).read_bytes()) == _origin(model))
    except (OSError, ValueError):
        return False


def make(target: Path, model: Model, gguf: Path, licence: bytes) -> None:
    """Converts a GGUF file into the folder `target`. Raises ModelError for one that cannot be converted.

    The folder is a draft beside `target` until it is renamed. A folder of another origin is not replaced."""
    if target.exists() or target.is_symlink():
        raise ModelError(f"{target} exists, and is not the model that this command makes; move it away or delete it")
    draft = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        # Drafts begin as this user's alone.
        draft.chmod(0o755)
        convert(gguf, draft)
        (draft / model.licence_file).write_bytes(licence)
        _write_json(draft / _ORIGIN, _origin(model))
        _sync(draft)
        # Fails if another process has made the folder meanwhile: a folder with content is not replaced.
        try:
            draft.rename(target)
        except OSError:
            if not is_whole(target, model):
                raise
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(draft)


def convert(gguf: Path, into: Path) -> None:
    """Writes weights, configuration and tokenizer of a GGUF file into a folder."""
    source = Source(gguf)
    weights.write(source, into / "model.safetensors")
    (into / "model.safetensors").chmod(0o644)
    texts = tokenizers.of(source)
    _write_json(into / "config.json", configs.of(source))
    _write_json(into / "generation_config.json", configs.generation_of(source))
    _write_json(into / "tokenizer.json", texts.tokenizer)
    _write_json(into / "tokenizer_config.json", texts.config)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    """Content reaches the disk before the name does, so that a power failure leaves no folder with holes."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
