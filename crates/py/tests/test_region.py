"""Creation, opening and refusal of regions."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE

import cenote
from conftest import SMALL


def test_an_error_names_the_missing_region(name: str) -> None:
    with pytest.raises(cenote.RegionMissing, match=name.removeprefix("shm:")):
        cenote.Region.open(name)
    with pytest.raises(cenote.RegionMissing, match="no/such/file"):
        cenote.Region.open("/no/such/file")
    with pytest.raises(ValueError, match="shm"):
        cenote.Region.open("shm:")


def test_a_file_that_is_not_a_region_is_refused(name: str) -> None:
    Path("/dev/shm", name.removeprefix("shm:")).write_bytes(b"x" * (1 << 20))
    with pytest.raises(cenote.RegionMismatch, match="not a Cenote region"):
        cenote.Region.open(name)


def test_another_seed_is_refused(name: str) -> None:
    cenote.Region.create(name, "4MiB", **SMALL, hash_seed=bytes(range(32)))
    cenote.Region.open(name, hash_seed=bytes(range(32))).close()
    with pytest.raises(cenote.RegionMismatch, match="seed"):
        cenote.Region.open(name, hash_seed=bytes(32))


def test_a_region_is_created_once(name: str) -> None:
    cenote.Region.create(name, "4MiB", **SMALL)
    with pytest.raises(cenote.CenoteError, match="exists"):
        cenote.Region.create(name, "4MiB", **SMALL)
    cenote.Region.create(name, "4MiB", exist_ok=True)
    assert os.stat("/dev/shm/" + name.removeprefix("shm:")).st_mode & 0o777 == 0o600


def test_settings_that_differ_from_an_existing_region_are_returned(name: str) -> None:
    assert cenote.Region.create(name, "4MiB", **SMALL, exist_ok=True) == []
    assert cenote.Region.create(name, "4MiB", **SMALL, exist_ok=True) == []
    assert cenote.Region.create(name, 4 << 20, exist_ok=True) == []
    different = {"chunk_size": "1MiB", "min_block": "8KiB", "max_hosts": 3, "pins_per_worker": 224, "events": 32}
    found = cenote.Region.create(name, "8MiB", **different, mode=0o660, eviction="sieve", hash_seed=bytes(32), exist_ok=True)
    assert found == [
        ("size", "8 MiB", "4 MiB"),
        ("chunk_size", "1 MiB", "256 KiB"),
        ("min_block", "8 KiB", "4 KiB"),
        ("max_hosts", "3", "2"),
        ("pins_per_worker", "224", "112"),
        ("mode", "0660", "0600"),
        ("hash_seed", "the one given", "another one"),
        ("events", "32", "64"),
        ("eviction", "sieve", "lru"),
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": "4 parsecs"}, "size: `4 parsecs` is not a size"),
        ({"size": "4MiB", "chunk_size": "x"}, "chunk_size: `x` is not a size"),
        ({"size": "4MiB", "chunk_size": 12345}, "chunk size 12345 is not a power of two"),
        ({"size": "64KiB"}, "size: 64 KiB has no room for a chunk of 2 MiB"),
        ({"size": "4MiB", "max_hosts": 65}, "65 host slots; a region has 1 to 64"),
        ({"size": "4MiB", "flush": "magic"}, "magic"),
        ({"size": "4MiB", "eviction": "fifo"}, "fifo"),
    ],
)
def test_settings_are_validated_even_if_the_region_exists(name: str, wrong: dict[str, Any], said: str) -> None:
    cenote.Region.create(name, "4MiB", **SMALL)
    with pytest.raises((ValueError, cenote.CenoteError), match=said):
        cenote.Region.create(name, **wrong, exist_ok=True)


def test_an_error_names_the_missing_folder_and_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(cenote.CenoteError, match=f"mkdir -p {tmp_path}/none"):
        cenote.Region.create(f"{tmp_path}/none/kv", "4MiB", **SMALL)


def test_invalid_settings_create_no_region(name: str) -> None:
    for wrong in ({"size": "4 parsecs"}, {"size": 1 << 20, "chunk_size": 12345}, {"size": 1 << 20, "flush": "magic"}):
        with pytest.raises((ValueError, cenote.CenoteError)):
            cenote.Region.create(name, **wrong)
    assert not Path("/dev/shm", name.removeprefix("shm:")).exists()


def test_a_closed_region_raises_on_use(region: cenote.Region) -> None:
    blocks = region.namespace(b"model", 4096)
    region.close()
    region.close()
    assert region.closed
    with pytest.raises(cenote.CenoteError, match="closed"):
        blocks.lookup([b"1" * 16])


def test_a_forked_child_must_open_the_region_itself(region: cenote.Region) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            region.counters()
            said = "nothing"
        except cenote.CenoteError as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert "open it in the child" in said
    assert region.check()["is_clean"]


def test_info_lists_workers_and_namespaces(region: cenote.Region) -> None:
    region.namespace(b"model", 4096, label="demo", block_tokens=16, num_layers=2)
    info = region.info()
    assert [worker["name"] for worker in info["workers"]] == ["test"]
    assert [row["label"] for row in info["namespaces"]] == ["demo"]
    assert region.counters()["pool_lookups_total"] == 0
    assert region.check(payloads=True)["is_clean"]


def test_objects_are_kept_by_key(region: cenote.Region) -> None:
    assert region.get_object("weights/epoch") is None
    region.put_object("weights/epoch", b"1")
    region.put_object("weights/epoch", b"2")
    assert region.get_object("weights/epoch") == b"2"


def test_another_process_finds_published_blocks(region: cenote.Region) -> None:
    blocks = region.namespace(b"model", 4096)
    names = blocks.hash_tokens(list(range(64)), 16)
    for depth in range(4):
        assert blocks.publish(names[depth], depth, bytes([depth]) * 4096) == "published"
    program = f"""
import cenote
with cenote.Region.open({region.name!r}, worker="other") as region:
    blocks = region.namespace(b"model", 4096)
    with blocks.lookup(blocks.hash_tokens(list(range(64)), 16)) as lease:
        page = bytearray(4096)
        print([lease.read_into(at, page) and page[0] for at in range(len(lease))])
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert said.stdout.strip() == "[0, 1, 2, 3]"


def test_a_killed_process_leaks_no_pins_and_no_reservations(region: cenote.Region) -> None:
    program = f"""
import os, signal, cenote
region = cenote.Region.open({region.name!r}, worker="victim")
blocks = region.namespace(b"model", 4096)
lease = blocks.lookup(blocks.hash_tokens(list(range(16)), 16))
half = blocks.begin(bytes(15) + b"1", 0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    blocks = region.namespace(b"model", 4096)
    names = blocks.hash_tokens(list(range(16)), 16)
    assert blocks.publish(names[0], 0, bytes(4096)) == "published"
    assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE).returncode == -9
    region.gc()
    report = region.check(payloads=True)
    assert report["is_clean"], report
    assert (report["reserved"], report["pinned"]) == (0, 0)


def test_a_thread_stays_on_processors_that_it_may_use(region: cenote.Region) -> None:
    usable, placed = os.sched_getaffinity(0), []

    def place() -> None:
        node = region.bind_thread()
        placed.append((node, os.sched_getaffinity(0)))

    thread = threading.Thread(target=place)
    thread.start()
    thread.join()
    [(node, now)] = placed
    assert now < usable if node is not None else now == usable
    region.close()
    assert region.bind_thread() is None


def test_several_prompts_of_32k_tokens_find_their_pins(name: str) -> None:
    """A region of any size had 1,792 pins a worker, and such a prompt has 2,048 blocks of 16 tokens."""
    cenote.Region.create(name, "256MiB", chunk_size="256KiB", min_block="4KiB", max_hosts=1)
    with cenote.Region.open(name) as region:
        blocks = region.namespace(b"long", 4096)
        names = blocks.hash_tokens(list(range(32_768)), 16)
        for number in range(len(names)):
            assert blocks.publish(names[number], number, bytes(4096)) == "published"
        leases = [blocks.lookup(names) for _ in range(3)]
        assert [len(lease) for lease in leases] == [2048] * 3
        for lease in leases:
            lease.release()
        assert region.check()["pinned"] == 0
