"""Forks. A child inherits all objects of its parent, but their use has no effect on others."""

import gc
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable

import pytest
from waiting import PATIENCE

import cenote

PAGE = 4096


def names_of(blocks: cenote.Namespace, count: int, prompt: int = 0) -> cenote.Hashes:
    return blocks.hash_tokens([prompt * 1000 + token for token in range(16 * count)], 16)


def in_child(work: Callable[[], None], leave: Callable[[], None]) -> int:
    """Forks, runs `work` and then `leave` in the child, and returns the child's exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            gc.collect()
            leave()
        except SystemExit:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def all_space(blocks: cenote.Namespace) -> list[cenote.Filling]:
    """Reserves blocks until the region has no room."""
    taken = []
    while (filling := blocks.begin(names_of(blocks, 1, 500 + len(taken))[0], 0)) is not None:
        memoryview(filling)[:] = b"\xbb" * PAGE
        taken.append(filling)
    return taken


@pytest.mark.parametrize("leave", [lambda: os._exit(0), lambda: sys.exit(0)], ids=["_exit", "sys.exit"])
def test_a_child_that_drops_inherited_objects_releases_nothing(
    region: cenote.Region, name: str, leave: Callable[[], None]
) -> None:
    blocks = region.namespace(b"model", PAGE)
    names = names_of(blocks, 2)
    assert blocks.publish(names[0], 0, b"\xaa" * PAGE) == "published"
    held: dict[str, object] = {"lease": blocks.lookup(names[:1]), "filling": blocks.begin(names[1], 1)}
    memory = bytearray(4 * PAGE)
    held["memory"] = cenote.KvMemory([(address_of(memory), PAGE, PAGE)], 4, memory)
    with cenote.Region.open(name, worker="other") as other:
        theirs = other.namespace(b"model", PAGE)

        def work() -> None:
            held.clear()
            with pytest.raises(cenote.CenoteError, match="child"):
                region.counters()
            assert region.closed
            region.close()

        assert in_child(work, leave) == 0
        taken = all_space(theirs)
        assert taken
        filling, lease = held["filling"], held["lease"]
        assert isinstance(filling, cenote.Filling)
        assert isinstance(lease, cenote.Lease)
        assert filling.extent[1] == PAGE
        memoryview(filling)[:] = b"\xcc" * PAGE
        assert filling.publish() == "published"
        back = bytearray(PAGE)
        assert lease.read_into(0, back)
        assert back == b"\xaa" * PAGE, "the pinned block was evicted"
        with theirs.lookup(names) as found:
            assert len(found) == 2
            assert found.read_into(1, back)
        assert back == b"\xcc" * PAGE, "a block has the bytes of another"
        del taken
        lease.release()
        workers = [worker["alive"] for worker in other.info()["workers"]]
        assert workers == [True, True]
    assert region.check(payloads=True)["is_clean"]


def address_of(memory: bytearray) -> int:
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))


def work_as_a_member(name: str) -> None:
    with cenote.Region.open(name, worker="child", lock_timeout=PATIENCE) as region:
        blocks = region.namespace(b"model", PAGE)
        names = names_of(blocks, 1, os.getpid() % 1000)
        assert blocks.publish(names[0], 0, bytes(PAGE)) in ("published", "duplicate")
        assert len(blocks.lookup(names)) == 1


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_children_of_multiprocessing_open_the_region_themselves(
    region: cenote.Region, name: str, method: str
) -> None:
    blocks = region.namespace(b"model", PAGE)
    names = names_of(blocks, 1, 2000)
    assert blocks.publish(names[0], 0, b"\xaa" * PAGE) == "published"
    lease = blocks.lookup(names)
    context = multiprocessing.get_context(method)
    children = [context.Process(target=work_as_a_member, args=(name,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    with lease:
        back = bytearray(PAGE)
        assert lease.read_into(0, back)
    assert [worker["name"] for worker in region.info()["workers"]] == ["test"]
    assert region.check(payloads=True)["is_clean"]
