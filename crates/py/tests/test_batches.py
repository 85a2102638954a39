"""Batches of copies, with a driver in this process that is called as the driver of CUDA is."""

from __future__ import annotations

import ctypes
import random
import threading

import pytest
from waiting import PATIENCE

from cenote.device import DeviceError
from cenote.device.batches import _QUEUE, Batches

CONTEXT, STREAM = 0x7F00_1234_5678, 0x7F00_9ABC_DEF0


class Driver:
    """A driver with its calls as C functions. It copies at once, in any order."""

    def __init__(self, *, known: bool = True, refuses: int = 0) -> None:
        self.known, self.refuses = known, refuses
        self.calls: list[dict[str, object]] = []
        # The context of a thread; none in a new one.
        self.contexts = {threading.get_ident(): CONTEXT}
        self._queue = _QUEUE(self._copy)
        address = ctypes.c_void_p
        out = ctypes.POINTER(ctypes.c_void_p)
        looks_up = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.c_char_p, out, ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int)
        )
        self.cuGetProcAddress_v2 = looks_up(self._look_up)
        self.cuCtxGetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, out)(self._current)
        self.cuCtxSetCurrent = ctypes.CFUNCTYPE(ctypes.c_int, address)(self._set)

    def _look_up(self, name: bytes, found: object, version: int, flags: int, status: object) -> int:
        if not self.known or name != b"cuMemcpyBatchAsync" or version != 12080 or flags != 0:
            return 1
        found[0] = ctypes.cast(self._queue, ctypes.c_void_p).value  # type: ignore[index]
        return 0

    def _current(self, found: object) -> int:
        found[0] = self.contexts.get(threading.get_ident())  # type: ignore[index]
        return 0

    def _set(self, context: int) -> int:
        self.contexts[threading.get_ident()] = context
        return 0

    def _copy(self, to, start, length, count, attributes, first, kinds, failed, stream) -> int:  # type: ignore[no-untyped-def]
        if self.contexts.get(threading.get_ident()) != CONTEXT:
            return 201
        if self.refuses and count >= self.refuses:
            failed[0] = self.refuses - 1
            return 1
        order = list(range(count))
        random.Random(len(self.calls)).shuffle(order)
        for number in order:
            ctypes.memmove(to[number], start[number], length[number])
        self.calls.append({
            "count": count, "stream": stream, "kinds": kinds, "first": first[0], "order": attributes[0].source_order,
            "rest": (attributes[0].source_hint.type, attributes[0].destination_hint.id, attributes[0].flags),
        })  # fmt: skip
        return 0


def copies(count: int) -> tuple[ctypes.Array[ctypes.c_char], ctypes.Array[ctypes.c_char], list[tuple[int, int, int]]]:
    """Memory with pieces of different lengths, memory for them in reverse order, and the copies."""
    lengths = [64 * (1 + number % 3) for number in range(count)]
    source = ctypes.create_string_buffer(random.Random(1).randbytes(sum(lengths)), sum(lengths))
    target = ctypes.create_string_buffer(sum(lengths))
    places, at = [], 0
    for length in lengths:
        places.append((ctypes.addressof(target) + len(target) - at - length, ctypes.addressof(source) + at, length))
        at += length
    return source, target, places


def test_a_batch_is_one_call_with_every_copy() -> None:
    driver = Driver()
    source, target, places = copies(100)
    Batches(driver).queue(STREAM, places)
    assert driver.calls == [{"count": 100, "stream": STREAM, "kinds": 1, "first": 0, "order": 1, "rest": (0, 0, 0)}]
    for to, start, length in places:
        assert ctypes.string_at(to, length) == ctypes.string_at(start, length)
    assert bytes(source) != bytes(target)


def test_any_thread_can_queue() -> None:
    driver = Driver()
    batches = Batches(driver)
    _, target, places = copies(3)
    thread = threading.Thread(target=batches.queue, args=(STREAM, places))
    thread.start()
    thread.join(PATIENCE)
    assert len(driver.calls) == 1
    assert any(bytes(target))


def test_a_refused_batch_is_an_error_that_names_the_copy() -> None:
    batches = Batches(Driver(refuses=8))
    _, target, places = copies(8)
    with pytest.raises(DeviceError, match="of 8 copies: error 1, first at copy 7"):
        batches.queue(STREAM, places)
    assert not any(bytes(target))


def test_a_driver_without_the_call_is_named() -> None:
    with pytest.raises(DeviceError, match=r"CUDA 12\.8"):
        Batches(Driver(known=False))
    with pytest.raises(DeviceError, match="older than CUDA 12"):
        Batches(ctypes.CDLL(None))
    without = Driver()
    without.contexts.clear()
    with pytest.raises(DeviceError, match="no context"):
        Batches(without)
