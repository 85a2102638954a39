"""The files that name a model."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cenote import clock, model_files
from cenote.adapters import files_of as files_of_adapter
from cenote.content import stamps
from cenote.model_files import changed_since, digest_of_folder, files_of, refuse_media, weights_name
from cenote.walk import matching_below

LOGGER = logging.getLogger(__name__)


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


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a folder or file unreadable, also for root."""
    paths: set[Path] = set()
    look, may = Path.iterdir, os.access

    def iterdir(self: Path) -> Any:
        if self in paths:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    monkeypatch.setattr(os, "access", lambda path, mode, **rest: path not in paths and may(path, mode, **rest))
    return paths.add


def test_what_the_engine_may_not_read_names_nothing(folder: Path, forbidden: Callable[[Path], None]) -> None:
    """A model at the root of a volume has `lost+found`, which only root may read: the start ended with it."""
    first = digest_of_folder(folder)
    (folder / "lost+found").mkdir()
    (folder / "secret").mkdir()
    (folder / "notes.xyz").write_text("of root")
    (folder / "dangling").symlink_to(folder / "nothing")
    for name in ("lost+found", "secret", "notes.xyz"):
        forbidden(folder / name)
    assert digest_of_folder(folder) == first
    assert matching_below(folder, "*.py") == [folder / "modeling.py"]
    assert files_of_adapter(str(folder)) == []
    (folder / "adapter_model.safetensors").write_text("")
    assert files_of_adapter(str(folder)) == [folder / "adapter_model.safetensors"]


def test_another_processs_engine_may_read_what_this_one_may_not(folder: Path, forbidden: Callable[[Path], None]) -> None:
    (folder / "lost+found").mkdir()
    forbidden(folder / "lost+found")
    assert digest_of_folder(folder, is_engine=False) == digest_of_folder(folder)
    (folder / "secret").mkdir()
    forbidden(folder / "secret")
    with pytest.raises(ValueError, match=r"model_folder: .*secret.*or give model_fingerprint"):
        weights_name({"model_folder": str(folder)}, "adapter_params", is_engine=False)
    forbidden(folder)
    with pytest.raises(ValueError, match="model_folder"):
        weights_name({"model_folder": str(folder)}, "extra")


def began_after(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the process start after the last change of these files."""
    last = max(max(stamp[3], stamp[4]) for stamp in stamps(files_of(folder)) or []) / 1e9
    monkeypatch.setattr(model_files, "process_began", lambda: last + 1)


def test_files_that_changed_after_the_process_started_name_nothing_that_others_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose checkpoint was overwritten after it was loaded named old KV as the new weights'."""
    given = {"model_folder": str(folder)}
    began_after(folder, monkeypatch)
    name = weights_name(given, "extra").hold(LOGGER)
    assert name == f"files {digest_of_folder(folder)}"
    assert weights_name(given, "extra").hold(LOGGER) == name
    monkeypatch.setattr(model_files, "process_began", lambda: 0.0)
    doubts = [weights_name(given, "extra").hold(LOGGER) for _ in range(2)]
    assert len({name, *doubts}) == 3
    # Another process loads the files, whenever it likes.
    assert weights_name(given, "adapter_params", is_engine=False).hold(LOGGER) == name


@pytest.mark.parametrize("what", CHANGES)
def test_files_that_change_after_the_hash_end_sharing(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    began_after(folder, monkeypatch)
    name = weights_name({"model_folder": str(folder)}, "extra")
    first = name.hold(LOGGER)
    CHANGES[what](folder)
    second = name.hold(LOGGER)
    assert second != first
    assert name.hold(LOGGER) == second, "the engine goes on to find its own blocks"


def test_a_file_of_a_hub_is_exempt_and_a_missing_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("1")
    (tmp_path / "snapshot").mkdir()
    linked, plain = tmp_path / "snapshot" / "model.safetensors", tmp_path / "snapshot" / "config.json"
    linked.symlink_to(tmp_path / "blobs" / "abc")
    plain.write_text("{}")
    assert changed_since([linked], 0.0) is None
    assert changed_since([linked, plain], 0.0) == plain
    assert changed_since([linked, plain], clock.unix() + 1e9) is None
    plain.unlink()
    assert changed_since([linked, plain], clock.unix() + 1e9) == plain


def test_models_that_take_images_are_refused_where_clients_name_them(folder: Path) -> None:
    """SGLang and LMCache pass only keys on, and a client may choose an image's part of a key."""
    refuse_media({}, "extra", folder, "why")
    for file, text in (("preprocessor_config.json", "{}"), ("config.json", json.dumps({"text_config": {}, "vision_config": {"depth": 2}}))):
        kept = (folder / file).read_text() if (folder / file).exists() else None
        (folder / file).write_text(text)
        with pytest.raises(ValueError, match="trust_media_names"):
            refuse_media({}, "extra", folder, "why")
        refuse_media({"trust_media_names": True}, "extra", folder, "why")
        (folder / file).unlink() if kept is None else (folder / file).write_text(kept)
