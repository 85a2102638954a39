"""The files that name a model."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cenote.model_files import digest_of_folder, files_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "encoder").mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"rope_theta": 1, "transformers_version": "1", "_name_or_path": "here"}))
    (made / "modeling.py").write_text("x = 1\n")
    (made / "hf_quant_config.json").write_text("{}")
    (made / "model.safetensors.index.json").write_text("{}")
    (made / "tokenizer.json").write_text("{}")
    (made / "README.md").write_text("words")
    (made / "model-1.safetensors").write_bytes(random.Random(1).randbytes(1 << 20))
    (made / "encoder" / "model.safetensors").write_bytes(b"encoder")
    (made / "pytorch_model.bin").write_bytes(b"the same in another form")
    return made


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda folder: edit(folder / "model-1.safetensors", 5000),
    "weights of a part": lambda folder: (folder / "encoder" / "model.safetensors").write_bytes(b"another"),
    "configuration": lambda folder: (folder / "config.json").write_text('{"rope_theta": 2}'),
    "code": lambda folder: (folder / "modeling.py").write_text("x = 2\n"),
    "quantization": lambda folder: (folder / "hf_quant_config.json").write_text('{"bits": 4}'),
    "index": lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}'),
    "a new kind of file": lambda folder: (folder / "kv_scales.xyz").write_bytes(b"1"),
    "another name": lambda folder: (folder / "model-1.safetensors").rename(folder / "model-2.safetensors"),
}

NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "words": lambda folder: (folder / "README.md").write_text("other words"),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("[]"),
    "another form of the weights": lambda folder: (folder / "pytorch_model.bin").write_bytes(b"1"),
    "the configuration's writer": lambda folder: (folder / "config.json").write_text(
        '{"transformers_version": "2", "rope_theta": 1, "_name_or_path": "there"}'
    ),
    "a training run's checkpoint": lambda folder: shutil.copytree(folder / "encoder", folder / "checkpoint-100"),
    "hidden files": lambda folder: (folder / ".cache").mkdir(),
}


def edit(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("what", CHANGES)
def test_changes_that_affect_kv_change_the_name(folder: Path, what: str) -> None:
    first = digest_of_folder(folder)
    CHANGES[what](folder)
    assert digest_of_folder(folder) != first


@pytest.mark.parametrize("what", NO_CHANGES)
def test_changes_that_do_not_affect_kv_keep_the_name(folder: Path, tmp_path: Path, what: str) -> None:
    first = digest_of_folder(folder)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    NO_CHANGES[what](copy)
    assert digest_of_folder(copy) == first


def test_a_folder_with_a_link_to_itself_is_walked_once(folder: Path) -> None:
    (folder / "loop").symlink_to(folder)
    assert len(files_of(folder)) == len(set(files_of(folder)))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="this folder has no weights"):
        digest_of_folder(tmp_path)
