"""Many copies in one call of the CUDA driver: `cuMemcpyBatchAsync`, since CUDA 12.8.

The call is looked up with the version whose arguments this file has. Before its first use, copies
in both directions are compared with what they copied."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cenote.device.interface import Copy, DeviceError

# The version of the driver's interface that this file uses: 12.8, as the driver writes it.
_VERSION = 12_080
# CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: a source is read in the order of the stream.
_IN_STREAM_ORDER = 1


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """`CUmemcpyAttributes`. The driver ignores the hints for memory that is not managed."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", _Location),
        ("destination_hint", _Location),
        ("flags", ctypes.c_uint),
    )


_QUEUE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_size_t,
    ctypes.POINTER(_Attributes),
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_void_p,
)


class Batches:
    """The driver's call, for the context that is current when the instance is made."""

    def __init__(self, driver: Any) -> None:
        """`driver` is the loaded `libcuda`. Raises `DeviceError` if it has no such call."""
        found, status = ctypes.c_void_p(), ctypes.c_int()
        try:
            look_up, current = driver.cuGetProcAddress_v2, driver.cuCtxGetCurrent
            self._make_current = driver.cuCtxSetCurrent
        except AttributeError as error:
            raise DeviceError(f"the driver is older than CUDA 12: {error}") from error
        # The default types of arguments cut addresses to 32 bits.
        self._make_current.argtypes = (ctypes.c_void_p,)
        error = look_up(
            ctypes.c_char_p(b"cuMemcpyBatchAsync"), ctypes.byref(found), ctypes.c_int(_VERSION), ctypes.c_uint64(0), ctypes.byref(status)
        )
        if error != 0 or not found.value:
            raise DeviceError(f"the driver has no cuMemcpyBatchAsync, which CUDA 12.8 brought (error {error}, status {status.value})")
        self._queue = _QUEUE(found.value)
        self._context = ctypes.c_void_p()
        if (error := current(ctypes.byref(self._context))) != 0 or not self._context.value:
            raise DeviceError(f"no context of the driver is current (error {error})")
        self._attributes = _Attributes(source_order=_IN_STREAM_ORDER)
        self._first = ctypes.c_size_t(0)

    def queue(self, stream: int, copies: Sequence[Copy]) -> None:
        """Queues all copies on a stream by one call. Raises `DeviceError` if the driver refuses.

        `stream` is the handle of a stream other than the default one."""
        count = len(copies)
        to, start, length = zip(*copies, strict=True)
        addresses, lengths = ctypes.c_uint64 * count, ctypes.c_size_t * count
        failed = ctypes.c_size_t()
        # A new thread has no context until its first call of the runtime.
        self._make_current(self._context)
        error = self._queue(
            addresses(*to),
            addresses(*start),
            lengths(*length),
            count,
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            1,
            ctypes.byref(failed),
            stream,
        )
        if error != 0:
            raise DeviceError(f"cuMemcpyBatchAsync of {count} copies: error {error}, first at copy {failed.value}")
