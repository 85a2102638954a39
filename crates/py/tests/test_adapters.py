"""An adapter's name covers the content that an engine has loaded; otherwise it has no name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from waiting import PATIENCE, ManualTime

from cenote import clock
from cenote._native import file_stamps
from cenote.adapters import Adapter, Adapters, Loaded, files_of, is_older
from cenote.content import TRUSTED

SOON = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    (made / "adapter_config.json").write_text('{"r": 8}')
    (made / "adapter_model.safetensors").write_bytes(b"weights")
    if file_stamps([made / "adapter_config.json"])[0][5] not in TRUSTED:
        pytest.skip(f"the file system of {tmp_path} has untrusted times; give another folder with --basetemp")
    return made


def engine(facts: str = "bfloat16") -> Adapters:
    """Adapters of an engine that starts after all files written so far."""
    made = Adapters(facts)
    made.since = clock.unix() + SOON
    return made


def named(adapters: Adapters, folder: Path, name: str = "a") -> Adapter | None:
    found = adapters.get(name, str(folder))
    if isinstance(found, Future):
        found.result(PATIENCE)
        found = adapters.get(name, str(folder))
    assert not isinstance(found, Future)
    return found


def digest(adapters: Adapters, folder: Path, name: str = "a") -> bytes:
    found = named(adapters, folder, name)
    assert found is not None
    return found.digest


def test_adapters_of_equal_content_have_one_name(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert digest(engine(), folder) == digest(engine(), copy, "b")


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json", "new_embeddings.bin"])
def test_an_overwritten_adapter_has_another_name_in_the_next_engine(folder: Path, name: str) -> None:
    first = digest(engine(), folder)
    (folder / name).write_bytes(b"others")
    assert digest(engine(), folder) != first


def test_a_name_covers_settings_that_affect_the_adapter(folder: Path) -> None:
    assert digest(engine("float32"), folder) != digest(engine(), folder)


def rewrite(file: Path, content: bytes) -> None:
    """Rewrites a file until its ctime changes, because the kernel's clock is coarse."""
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        file.write_bytes(content)


def test_an_adapter_that_changes_after_the_engines_start_has_no_name(folder: Path) -> None:
    adapters, weights = engine(), folder / "adapter_model.safetensors"
    first = named(adapters, folder)
    assert first is not None
    assert first.holds()
    rewrite(weights, b"others")
    assert not first.holds()
    assert adapters.known("a", str(folder)) == first
    assert named(adapters, folder) is None
    assert adapters.known("a", str(folder)) is None
    # Still unnamed: the engine's own cache may hold blocks of both contents.
    rewrite(weights, b"weights")
    assert named(adapters, folder) is None


def test_an_adapter_with_removed_files_has_no_name(folder: Path) -> None:
    adapters = engine()
    assert named(adapters, folder) is not None
    shutil.rmtree(folder)
    assert named(adapters, folder) is None


def test_an_adapter_younger_than_the_engine_has_no_name(folder: Path, manual_time: ManualTime) -> None:
    # The engine starts at the instant of the last change, in which its clock and the kernel's may differ.
    manual_time.began = max(file.stat().st_ctime for file in folder.iterdir())
    adapters = Adapters()
    assert named(adapters, folder) is None
    # An old mtime does not help, because any program may set it.
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert named(Adapters(), folder) is None


def test_times_of_untrusted_file_systems_do_not_count() -> None:
    stamp = (1, 2, 3, 0, 0)
    assert is_older((*stamp, 0xEF53), 1000.0)
    assert is_older((*stamp, 0x6969), 1000.0)
    assert not is_older((*stamp, 0x6969), 100.0)
    assert not is_older((*stamp, 0x65735546), 1000.0)
    assert not is_older((*stamp, 0x01021994), 1000.0)


def test_an_adapter_without_files_has_no_name(folder: Path, tmp_path: Path) -> None:
    assert named(engine(), tmp_path / "none-such") is None
    (folder / "adapter_model.safetensors").unlink()
    assert named(engine(), folder) is None

    def fails(path: str) -> list[Path]:
        raise ValueError(path)

    assert named(Adapters(find=fails), folder) is None


def test_a_change_of_the_file_that_locates_an_adapter_ends_its_name(folder: Path, tmp_path: Path) -> None:
    reference = tmp_path / "main"
    reference.write_text("commit")
    adapters = engine()
    adapters.find = lambda path: [folder, reference]
    assert digest(adapters, folder) == digest(engine(), folder)
    rewrite(reference, b"another")
    assert named(adapters, folder) is None


def noted(change: Callable[[Path], object] | None, folder: Path) -> tuple[Loaded, Adapter]:
    """A worker that has loaded the adapter, with `change` applied during the load."""
    adapter, loaded = named(engine(), folder), Loaded()
    assert adapter is not None
    before = loaded.look(str(folder))
    if change is not None:
        change(folder)
    loaded.note(1, str(folder), before)
    return loaded, adapter


def test_a_worker_records_its_loaded_adapters(folder: Path, tmp_path: Path) -> None:
    loaded, adapter = noted(None, folder)
    assert loaded.is_only(1, str(folder), adapter)
    assert not loaded.is_another(1, str(folder), adapter)
    # A second load of the same adapter, after an eviction.
    loaded.note(1, str(folder), loaded.look(str(folder)))
    assert loaded.is_only(1, str(folder), adapter)
    # A number without loads has neither this adapter nor another.
    assert not loaded.is_only(2, str(folder), adapter)
    assert not loaded.is_another(2, str(folder), adapter)
    # A load in place from another path: earlier requests compute with it from now on.
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    loaded.note(1, str(other), loaded.look(str(other)))
    for path in (folder, other):
        assert not loaded.is_only(1, str(path), adapter)
        assert loaded.is_another(1, str(path), adapter)


def test_an_adapter_that_changes_during_its_load_is_recorded_as_another(folder: Path) -> None:
    loaded, adapter = noted(lambda folder: rewrite(folder / "adapter_model.safetensors", b"others"), folder)
    assert loaded.is_another(1, str(folder), adapter)
    assert not loaded.is_only(1, str(folder), adapter)


def test_a_link_moved_after_the_load_is_another_adapter(folder: Path, tmp_path: Path) -> None:
    """Both adapters are older than the engine. It loaded the first; a name covers the second."""
    second = Path(shutil.copytree(folder, tmp_path / "second"))
    (second / "adapter_model.safetensors").write_bytes(b"second")
    current = tmp_path / "current"
    current.symlink_to(folder)
    loaded = Loaded()
    loaded.note(1, str(current), loaded.look(str(current)))
    current.unlink()
    current.symlink_to(second)
    adapter = named(engine(), current)
    assert adapter is not None
    assert loaded.is_another(1, str(current), adapter)
    assert files_of(str(current))
