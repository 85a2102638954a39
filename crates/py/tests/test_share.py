"""The process that holds a shared region's memory: a peer may reach all of that memory, so it has no secret and few rights."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing import Share, connected, create, lives
from waiting import until

import cenote

# Equal bytes, as in the keys of other tests, are in the memory of every program.
KEY = hashlib.sha256(b"a key of these tests").digest()
VARIABLE = b"an-unusual-value-of-a-variable-74e1"


def own_key(folder: Path) -> str:
    path = folder / "key"
    path.touch(0o600)
    path.write_text(KEY.hex())
    return str(path)


def held_by(share: Share) -> int:
    return until("a process with the memory", lambda: share.holders)[0]


def memory_of(process: int) -> Iterator[bytes]:
    """All private memory of a process, which may end meanwhile."""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            begin, end = (int(number, 16) for number in place.split("-"))
            if rights.startswith("r") and "p" in rights and "[v" not in line:
                memory.seek(begin)
                try:
                    yield memory.read(end - begin)
                except OSError:
                    continue  # Reserved, and never touched.


def has(process: int, secret: bytes) -> bool:
    return any(secret in part for part in memory_of(process))


@pytest.fixture
def shared(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    create(name)
    monkeypatch.setenv("UNUSUAL", VARIABLE.decode())
    with Share(name, own_key(tmp_path)) as share:
        yield share


@pytest.mark.skipif(os.getuid() != 0, reason="the memory of the process with the key is closed to its own user")
def test_the_process_with_the_memory_has_no_secret(shared: Share) -> None:
    held = held_by(shared)
    # The search finds what is there.
    assert has(shared.process.pid, KEY) and has(shared.process.pid, VARIABLE)
    for secret in (KEY, KEY.hex().encode(), VARIABLE):
        assert not has(held, secret)


def test_the_process_with_the_memory_may_do_little(shared: Share) -> None:
    status = Path(f"/proc/{held_by(shared)}/status").read_text()
    facts = {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}
    assert (facts["Seccomp"], facts["NoNewPrivs"]) == (["2"], ["1"])


def test_the_process_with_the_memory_is_started_again(shared: Share, name: str, tmp_path: Path) -> None:
    create(f"{name}-near")
    settings = shared.settings(own_key(tmp_path))
    try:
        with cenote.Region.open(f"{name}-near", worker="reader", **settings) as region:
            connected(region)
            first = held_by(shared)
            os.kill(first, signal.SIGKILL)
            until("another process", lambda: held_by(shared) != first)
            connected(region)
    finally:
        Path("/dev/shm", f"{name.removeprefix('shm:')}-near").unlink(missing_ok=True)


def test_the_process_with_the_memory_ends_with_the_other(shared: Share) -> None:
    held = held_by(shared)
    shared.kill()
    assert not lives(held)


@pytest.mark.skipif(os.getuid() != 0, reason="another user needs root")
def test_the_process_with_the_memory_may_be_another_user(name: str, tmp_path: Path) -> None:
    create(name)
    # The group may read the region, and the user is in no other.
    path = Path("/dev/shm", name.removeprefix("shm:"))
    os.chown(path, 0, 65533)
    path.chmod(0o640)
    with Share(name, own_key(tmp_path), user="65534:65533") as share:
        status = Path(f"/proc/{held_by(share)}/status").read_text()
        facts = {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}
        assert facts["Uid"] == ["65534"] * 4 and facts["Gid"] == ["65533"] * 4 and facts["Groups"] == []
        create(f"{name}-near")
        try:
            with cenote.Region.open(f"{name}-near", worker="reader", **share.settings(own_key(tmp_path))) as region:
                connected(region)
        finally:
            Path("/dev/shm", f"{name.removeprefix('shm:')}-near").unlink(missing_ok=True)
