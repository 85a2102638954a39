"""Regions of other hosts: two regions, of which a process shares one, and readers of the other."""

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sharing import SEED, Reads, Share, connected, create, key_file, library
from waiting import PATIENCE, until

import cenote
from cenote.health import HealthLog

PAGE = 64 << 10
COUNT = 20


def payload(number: int) -> bytes:
    return bytes((number * 7 + at) % 251 for at in range(256)) * (PAGE // 256)


def names_of(blocks: cenote.Namespace, count: int = COUNT) -> cenote.Hashes:
    return blocks.hash_tokens(range(16 * count), 16)


def publish(blocks: cenote.Namespace, numbers: range) -> None:
    names = names_of(blocks)
    for number in numbers:
        assert blocks.publish(names[number], number, payload(number)) == "published"


def bring(blocks: cenote.Namespace, **how: Any) -> bool:
    promotion = blocks.promote(names_of(blocks), **how)
    assert promotion is not None, "a peer is asked"
    return promotion.wait()


@pytest.fixture
def far(name: str) -> Iterator[str]:
    """A region of another host, without blocks."""
    create(f"{name}-far")
    yield f"{name}-far"
    Path("/dev/shm", f"{name.removeprefix('shm:')}-far").unlink(missing_ok=True)


@pytest.fixture
def near(name: str) -> str:
    create(name)
    return name


@pytest.fixture
def owner(far: str) -> Iterator[cenote.Namespace]:
    """The blocks of the other host."""
    with cenote.Region.open(far, worker="owner") as region:
        yield region.namespace(b"model", PAGE)


@pytest.fixture
def reads() -> Iterator[Reads]:
    with Reads() as reads:
        yield reads


def test_blocks_of_a_peer_come_here_and_are_shared(owner: cenote.Namespace, far: str, near: str, tmp_path: Path) -> None:
    publish(owner, range(COUNT - 5))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, worker="reader", **share.settings(key)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        names = names_of(blocks)
        assert region.promotes and blocks.count(names) == 0
        promotion = blocks.promote(names)
        assert promotion is not None and promotion.wait() and promotion.over
        page = bytearray(PAGE)
        with blocks.lookup(names) as lease:
            assert len(lease) == COUNT - 5
            for number in range(COUNT - 5):
                assert lease.read_into(number, page) and page == payload(number)
        assert region.peers is not None
        counted = {name: region.peers[f"remote_{name}_total"] for name in ("sought", "found", "hits", "absent", "read_bytes", "wrong", "failed")}
        assert counted == {
            "sought": COUNT, "found": COUNT - 5, "hits": COUNT - 5, "absent": 5, "read_bytes": (COUNT - 5) * PAGE, "wrong": 0, "failed": 0,
        }  # fmt: skip
        assert blocks.promote(names[: COUNT - 5]) is None, "nothing is missing"
        # Other engines of this host find the copies without peers.
        with cenote.Region.open(near, worker="other") as other:
            assert other.peers is None and other.peers_error is None and not other.promotes
            assert other.namespace(b"model", PAGE).count(names) == COUNT - 5
        other_model = region.namespace(b"other model", PAGE)
        assert bring(other_model) and other_model.count(names_of(other_model)) == 0
        assert region.check(payloads=True)["is_clean"]


def test_the_cold_tier_is_asked_before_peers(owner: cenote.Namespace, far: str, name: str, tmp_path: Path) -> None:
    cold = f"{tmp_path}/cold,size=64MiB,deadline={PATIENCE / 2:.0f}"
    how: dict[str, Any] = {"chunk_size": "256KiB", "max_hosts": 1, "pins_per_worker": 112, "hash_seed": SEED, "cold": cold}
    cenote.Region.create(name, "16MiB", **how)
    with cenote.Region.open(name, cold=cold) as region:
        publish(region.namespace(b"model", PAGE), range(8))
        assert region.settle_cold(PATIENCE)
    Path("/dev/shm", name.removeprefix("shm:")).unlink()
    cenote.Region.create(name, "16MiB", **how)
    publish(owner, range(COUNT))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(name, cold=cold, **share.settings(key)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        assert region.settle_cold(PATIENCE)
        assert bring(blocks) and blocks.count(names_of(blocks)) == COUNT
        assert region.peers is not None and region.cold is not None
        assert (region.cold["cold_hits_total"], region.peers["remote_sought_total"]) == (8, COUNT - 8)


def test_blocks_behind_a_gap_come_if_all_are_wanted(owner: cenote.Namespace, far: str, near: str, tmp_path: Path) -> None:
    publish(owner, range(3, 6))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, **share.settings(key)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        assert bring(blocks) and not any(blocks.present(names_of(blocks)))
        assert bring(blocks, all=True)
        assert [number for number, there in enumerate(blocks.present(names_of(blocks))) if there] == [3, 4, 5]


def test_a_peer_with_another_key_costs_a_miss(
    owner: cenote.Namespace, far: str, near: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(owner, range(COUNT))
    with Share(far, key_file(tmp_path)) as share, cenote.Region.open(near, **share.settings(key_file(tmp_path, 8))) as region:
        error = until("the peer's error", lambda: region.peers_error)
        assert share.address in error and "computed here" in error
        assert region.peers is not None and region.peers["remote_peers_suspect"] == 1
        blocks = region.namespace(b"model", PAGE)
        assert region.promotes and blocks.promote(names_of(blocks)) is None
        log = HealthLog(region, logging.getLogger("test"))
        with caplog.at_level(logging.INFO, "test"):
            log.look()
            log.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert share.address in caplog.text


def test_a_peer_that_died_costs_a_miss(owner: cenote.Namespace, far: str, near: str, tmp_path: Path) -> None:
    publish(owner, range(COUNT))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, **share.settings(key)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        share.kill()
        if (promotion := blocks.promote(names_of(blocks))) is not None:
            assert promotion.wait(), "it ends when the peer has failed, and not at its deadline"
        assert blocks.count(names_of(blocks)) == 0
        assert share.address in until("the peer's error", lambda: region.peers_error)
        assert blocks.promote(names_of(blocks)) is None, "it is asked no more"
        publish(blocks, range(COUNT))


def test_a_wait_for_a_peer_lets_other_threads_run(
    owner: cenote.Namespace, far: str, near: str, tmp_path: Path, reads: Reads
) -> None:
    publish(owner, range(COUNT))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, **share.settings(key)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        reads.hold()
        promotion = blocks.promote(names_of(blocks))
        assert promotion is not None and not promotion.over
        waits = threading.Event()
        ended: list[bool] = []

        def wait() -> None:
            waits.set()
            ended.append(promotion.wait())

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(PATIENCE)
        assert not ended and region.peers is not None and region.peers["remote_hits_total"] == 0
        # A wait that held the interpreter's lock would have reached its deadline before this.
        reads.hold(False)
        thread.join(PATIENCE)
        assert ended == [True]
        assert blocks.count(names_of(blocks)) == COUNT and reads.ended > 0


def test_a_peer_that_is_late_costs_its_deadline(
    owner: cenote.Namespace, far: str, near: str, tmp_path: Path, reads: Reads
) -> None:
    publish(owner, range(COUNT))
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, **share.settings(key, deadline=0.5)) as region:
        blocks = connected(region).namespace(b"model", PAGE)
        reads.hold()
        promotion = blocks.promote(names_of(blocks))
        # None: a look at the peer was late before.
        if promotion is not None:
            promotion.wait()
            assert promotion.over
        assert blocks.count(names_of(blocks)) == 0
        until("the peer is suspect", lambda: region.peers is not None and region.peers["remote_peers_suspect"] == 1)
        assert blocks.promote(names_of(blocks)) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"peers": "10.0.0.2"}, "peers: `10.0.0.2` is neither HOST:PORT"),
        ({"peers": "10.0.0.2:7411,deadline=90"}, "at most 60 seconds"),
        ({"peer_key_file": None}, "CENOTE_PEER_KEY_FILE"),
        ({"peer_key_file": "/nowhere/key"}, "/nowhere/key"),
        ({"nixl": "/nowhere/libnixl_capi.so"}, "nixl-cu12"),
    ],
)
def test_a_setting_that_cannot_be_used_is_an_error(near: str, tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    settings = {"peers": "127.0.0.1:1", "peer_key_file": key_file(tmp_path), "nixl": library(), **wrong}
    with pytest.raises(cenote.CenoteError, match=said):
        cenote.Region.open(near, **settings)


def test_a_key_that_others_can_read_is_refused(near: str, tmp_path: Path) -> None:
    key = key_file(tmp_path)
    Path(key).chmod(0o644)
    with pytest.raises(cenote.CenoteError, match="peer key: .*chmod"):
        cenote.Region.open(near, peers="127.0.0.1:1", peer_key_file=key, nixl=library())


def test_the_environment_has_what_is_not_given(near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENOTE_PEERS", "127.0.0.1:1")
    with pytest.raises(cenote.CenoteError, match="CENOTE_PEER_KEY_FILE"):
        cenote.Region.open(near)
    monkeypatch.setenv("CENOTE_PEER_KEY_FILE", key_file(tmp_path))
    monkeypatch.setenv("CENOTE_NIXL", library())
    with cenote.Region.open(near) as region:
        assert region.peers is not None and region.peers["remote_peers"] == 1
    with cenote.Region.open(near, peers="") as region:
        assert region.peers is None and not region.promotes


def test_a_forked_child_has_no_peers(far: str, near: str, tmp_path: Path) -> None:
    key = key_file(tmp_path)
    with Share(far, key) as share, cenote.Region.open(near, **share.settings(key)) as region:
        connected(region)
        child = os.fork()
        if child == 0:
            is_without = region.peers is None and region.peers_error is None and not region.promotes
            region.close()
            os._exit(0 if is_without else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert region.peers is not None and region.peers["remote_peers_good"] == 1


@pytest.mark.skipif("CENOTE_TEST_NIXL" not in os.environ, reason="CENOTE_TEST_NIXL names no libnixl_capi.so (pip install nixl-cu12)")
def test_blocks_come_by_nixl_itself(owner: cenote.Namespace, far: str, near: str, tmp_path: Path) -> None:
    publish(owner, range(COUNT))
    key, nixl = key_file(tmp_path), os.environ["CENOTE_TEST_NIXL"]
    for _ in range(2):
        with Share(far, key, nixl) as share, cenote.Region.open(near, **share.settings(key)) as region:
            blocks = connected(region).namespace(b"model", PAGE)
            assert bring(blocks)
            page = bytearray(PAGE)
            with blocks.lookup(names_of(blocks)) as lease:
                assert len(lease) == COUNT
                assert all(lease.read_into(number, page) and page == payload(number) for number in range(COUNT))
            assert region.peers is not None and region.peers["remote_hits_total"] == COUNT
            blocks.forget()
            share.kill()
            until("the peer's error", lambda: region.peers_error)
            assert blocks.promote(names_of(blocks)) is None
