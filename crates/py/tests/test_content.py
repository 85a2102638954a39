"""Hashes of files, and their cache."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, ManualTime, until

from cenote import CenoteError, clock, content
from cenote._native import file_digests, file_stamps
from cenote.content import TRUSTED, Cache, Content, contents

LONG_AGO = 10_000
# Seconds of manual time. A process waits for another one that hashes longer than half of it, and less than it.
WAIT = 40.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of three pieces, on a file system with trusted times."""
    made = tmp_path / "weights.safetensors"
    made.write_bytes(random.Random(1).randbytes(17 << 20))
    if file_stamps([made])[0][5] not in TRUSTED:
        pytest.skip(f"the file system of {tmp_path} has untrusted times; give another folder with --basetemp")
    return made


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Records the hashed files."""
    made: list[Path] = []

    def digests(paths: list[Path]) -> list[tuple[content.Stamp, bytes]]:
        made.extend(paths)
        return file_digests(paths)

    monkeypatch.setattr(content, "file_digests", digests)
    yield made


def settled(folder: Path) -> Cache:
    """A cache that treats every file as old enough."""
    return Cache(folder, settled_seconds=-LONG_AGO)


def test_every_byte_changes_the_hash(file: Path) -> None:
    first, size = file_digests([file])[0][1], file.stat().st_size
    # Places inside and outside of 64 samples of 4096 bytes.
    places = [0, 5000, size // 2, size - 1, *(random.Random(2).randrange(size) for _ in range(5))]
    for place in places:
        flip(file, place)
        assert file_digests([file])[0][1] != first, place
        flip(file, place)
    assert file_digests([file])[0][1] == first


def flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))


def test_an_unchanged_file_is_hashed_once(file: Path, tmp_path: Path, hashed: list[Path]) -> None:
    first = contents([file], settled(tmp_path / "cache"))
    assert contents([file], settled(tmp_path / "cache")) == first
    assert hashed == [file]


def test_a_changed_file_with_its_old_size_and_mtime_is_hashed_again(file: Path, tmp_path: Path, hashed: list[Path]) -> None:
    before = file.stat()
    first = contents([file], settled(tmp_path / "cache"))[0]
    # Repeat until the kernel's coarse clock has advanced.
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        flip(file, 5000)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = contents([file], settled(tmp_path / "cache"))[0]
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert len(hashed) == 2
    assert again.digest == file_digests([file])[0][1]
    assert again.stamp != first.stamp


def test_a_replaced_file_is_hashed_again(file: Path, tmp_path: Path) -> None:
    first = contents([file], settled(tmp_path / "cache"))[0]
    other = tmp_path / "other"
    other.write_bytes(random.Random(3).randbytes(17 << 20))
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    again = contents([file], settled(tmp_path / "cache"))[0]
    assert again.digest != first.digest


def test_a_recently_changed_file_is_not_cached(
    file: Path, tmp_path: Path, hashed: list[Path], manual_time: ManualTime
) -> None:
    manual_time.began = file.stat().st_ctime
    for _ in range(2):
        contents([file], Cache(tmp_path / "cache"))
    assert hashed == [file, file]
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["lock"]
    manual_time.advance(61)
    for _ in range(2):
        contents([file], Cache(tmp_path / "cache"))
    assert hashed == [file] * 3, "after a minute it is cached"


def test_files_of_untrusted_file_systems_are_not_cached(file: Path, tmp_path: Path) -> None:
    cache = settled(tmp_path / "cache")
    stamp, digest = file_digests([file])[0]
    for kind in (0x01021994, 0x65735546, 0x6969):
        elsewhere = Content(digest, (*stamp[:5], kind))
        cache.put(elsewhere, clock.unix())
        assert cache.get(elsewhere.stamp) is None
    cache.put(Content(digest, stamp), clock.unix())
    assert cache.get(stamp) == Content(digest, stamp)


def damage(record: Path, how: str) -> None:
    text = record.read_bytes()
    if how == "empty":
        record.write_bytes(b"")
    elif how == "cut off":
        record.write_bytes(text[: len(text) // 2])
    elif how == "another digest":
        record.write_bytes(text.replace(b'"digest": "', b'"digest": "00', 1))
    elif how == "too long":
        record.write_bytes(text + b" " * 4096)
    elif how == "not text":
        record.write_bytes(b"\xff\x00" * 100)
    elif how == "writable by others":
        record.chmod(0o666)
    elif how == "a link":
        record.rename(record.with_name("elsewhere"))
        record.symlink_to("elsewhere")
    elif how == "a folder":
        record.unlink()
        record.mkdir()
    elif how == "a pipe":
        record.unlink()
        os.mkfifo(record, 0o600)
    elif how == "of another start of the machine":
        rewrite(record, boot="another")


def rewrite(record: Path, **changes: str) -> None:
    """Replaces a record by a valid one with other values."""
    import json

    told = json.loads(record.read_bytes().rpartition(b"\n")[0])
    text = json.dumps({**told, **changes}).encode()
    record.write_bytes(text + b"\n" + content._check(text))


@pytest.mark.parametrize(
    "how",
    [
        "empty", "cut off", "another digest", "too long", "not text", "writable by others", "a link", "a folder", "a pipe",
        "of another start of the machine",
    ],
)  # fmt: skip
def test_a_malformed_record_counts_as_missing(file: Path, tmp_path: Path, hashed: list[Path], how: str) -> None:
    cache = tmp_path / "cache"
    first = contents([file], settled(cache))
    [record] = [entry for entry in cache.iterdir() if entry.name != "lock"]
    damage(record, how)
    assert contents([file], settled(cache)) == first
    assert hashed == [file, file]


@pytest.mark.parametrize("how", ["writable by others", "a link", "a file", "missing"])
def test_a_folder_that_others_can_write_is_not_used(file: Path, tmp_path: Path, hashed: list[Path], how: str) -> None:
    folder = tmp_path / "cache"
    first = contents([file], settled(folder))
    if how == "writable by others":
        folder.chmod(0o777)
    elif how == "a link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif how == "a file":
        folder.rename(tmp_path / "elsewhere")
        folder.write_text("")
    elif how == "missing":
        folder = tmp_path / "nowhere" / "cache"
    assert contents([file], settled(folder)) == first
    assert hashed == [file, file]


def test_a_waiting_process_uses_the_hashes_of_the_other(
    file: Path, tmp_path: Path, hashed: list[Path], manual_time: ManualTime
) -> None:
    manual_time.began = file.stat().st_ctime
    one, other = settled(tmp_path / "cache"), settled(tmp_path / "cache")
    found: list[list[Content]] = []
    asked = threading.Event()
    look = other.get

    def get(stamp: content.Stamp) -> Content | None:
        found = look(stamp)
        asked.set()
        return found

    other.get = get  # type: ignore[method-assign]
    with one.lock(0):
        waiting = threading.Thread(target=lambda: found.append(contents([file], other)))
        waiting.start()
        # The thread has had a cache miss and waits for the lock.
        assert asked.wait(PATIENCE)
        stamp, digest = file_digests([file])[0]
        one.put(Content(digest, stamp), clock.unix())
    waiting.join(PATIENCE)
    assert found == [[Content(digest, stamp)]]
    assert hashed == []


def test_a_process_hashes_the_file_itself_after_the_timeout(
    file: Path, tmp_path: Path, hashed: list[Path], manual_time: ManualTime
) -> None:
    with settled(tmp_path / "cache").lock(0):
        found = manual_time.expire(lambda _: contents([file], settled(tmp_path / "cache")), timeout=WAIT)
    assert len(found) == 1
    assert hashed == [file]


def test_a_file_that_changes_during_the_read_raises(file: Path) -> None:
    os.truncate(file, 1 << 30)
    done, begun = threading.Event(), threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set():
            number += 1
            os.utime(file, ns=(number, number))
            begun.set()

    changing = threading.Thread(target=change)
    changing.start()
    assert begun.wait(PATIENCE)

    def read() -> str:
        try:
            file_digests([file])
        except CenoteError as error:
            return str(error)
        return ""

    try:
        # The other thread may have rested during a read.
        assert "weights.safetensors: changed while it was read" in until("a read that sees a change", read)
    finally:
        done.set()
        changing.join()


def test_an_error_names_the_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none-such"):
        file_digests([tmp_path / "none-such"])
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match=f"{odd.name}: is not a regular file"):
            file_stamps([odd])
