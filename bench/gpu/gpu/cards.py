"""Memory of a GPU for the measurements: a real one through PyTorch, or the tests' driver, which is processor memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Protocol

import cenote
from gpu.report import Skip


class Card(Protocol):
    """A GPU. Memory is bytes, in the card's own type."""

    name: str
    is_real: bool

    def make(self, size: int) -> Any:
        """Memory with random content."""

    def address(self, memory: Any) -> int: ...

    def clear(self, memory: Any, page: int, pages: Sequence[int]) -> None:
        """Sets pages of this size to zero."""

    def equal(self, memory: Any, page: int, some: Sequence[int], others: Sequence[int]) -> bool:
        """True if each page of `some` has the bytes of the page at the same place of `others`."""
        ...

    def synchronize(self) -> None: ...

    def kv(self, region: cenote.Region, layers: Sequence[Any], memory: Sequence[Any], **how: Any) -> Any:
        """`cenote.device.DeviceMemory` of these layers, which lie in `memory`."""


def find(rehearse: str | None) -> Card:
    """The card to measure. Raises `Skip` if there is none."""
    if not hasattr(cenote.device, "Gpu"):
        raise Skip("this package has no native mover for GPUs")
    if rehearse is not None:
        return DriverOfTests(rehearse)
    try:
        import torch
    except ImportError as error:
        raise Skip("PyTorch is not installed") from error
    if not torch.cuda.is_available():
        raise Skip("PyTorch finds no GPU")
    return Cuda()


class Cuda:
    """The current GPU of PyTorch."""

    is_real = True

    def __init__(self) -> None:
        import torch

        from cenote.device.cuda import CudaDevice

        torch.cuda.init()
        self.torch, self.name = torch, torch.cuda.get_device_name()
        self.where = torch.device("cuda", torch.cuda.current_device())
        self.device = CudaDevice.of(self.where)

    def make(self, size: int) -> Any:
        return self.torch.empty(size, dtype=self.torch.uint8, device=self.where).random_(0, 256)

    def address(self, memory: Any) -> int:
        return int(memory.data_ptr())

    def clear(self, memory: Any, page: int, pages: Sequence[int]) -> None:
        memory.view(-1, page)[self.torch.tensor(pages, device=self.where)] = 0

    def equal(self, memory: Any, page: int, some: Sequence[int], others: Sequence[int]) -> bool:
        pages, tensor = memory.view(-1, page), self.torch.tensor
        found = (pages[tensor(which, device=self.where)] for which in (some, others))
        return bool(self.torch.equal(*found))

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def kv(self, region: cenote.Region, layers: Sequence[Any], memory: Sequence[Any], **how: Any) -> Any:
        return self.device.memory(region, layers, memory, **how)

    def seconds(self, work: Any, stream: Any, rounds: int) -> float:
        """Best time of some work on a stream, by the GPU's own clock."""
        best = float("inf")
        for _ in range(rounds + 1):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.synchronize()
            begin.record(stream)
            work()
            end.record(stream)
            self.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000)
        return best


class DriverOfTests:
    """The driver that the tests use. Its figures mean nothing: it shows that the measurements run."""

    is_real = False

    def __init__(self, library: str) -> None:
        self.name = f"rehearsal with {library}"
        # The number of its GPU, and calls that control it.
        self.number, self.driver = ctypes.c_uint32(1), ctypes.CDLL(library)
        self.driver.fake_begin(self.number, ctypes.c_uint64(1))
        # The driver forgets no memory, so none is freed.
        self.kept: list[Any] = []
        self.gpu = cenote.device.Gpu(self.number.value, library=library)

    def make(self, size: int) -> Any:
        memory = (ctypes.c_uint8 * size)()
        self.driver.fake_know(self.number, ctypes.c_size_t(ctypes.addressof(memory)), ctypes.c_size_t(size))
        self.kept.append(memory)
        pattern = bytes((at * 131 + at // 251) % 251 for at in range(1 << 16))
        for at in range(0, size, len(pattern)):
            # Another first byte in each piece, so that no two pages are equal.
            piece = (at >> 16).to_bytes(8, "little") + pattern[8:]
            ctypes.memmove(ctypes.addressof(memory) + at, piece, min(len(piece), size - at))
        return memory

    def address(self, memory: Any) -> int:
        return ctypes.addressof(memory)

    def clear(self, memory: Any, page: int, pages: Sequence[int]) -> None:
        for number in pages:
            ctypes.memset(ctypes.addressof(memory) + number * page, 0, page)

    def equal(self, memory: Any, page: int, some: Sequence[int], others: Sequence[int]) -> bool:
        view = memoryview(memory).cast("B")

        def bytes_of(number: int) -> memoryview:
            return view[number * page : (number + 1) * page]

        return all(bytes_of(one) == bytes_of(other) for one, other in zip(some, others, strict=True))

    def synchronize(self) -> None:
        self.driver.fake_run(self.number)

    def kv(self, region: cenote.Region, layers: Sequence[Any], memory: Sequence[Any], **how: Any) -> Any:
        places = [(self.address(each), ctypes.sizeof(each)) for each in memory]
        return cenote.device.DeviceMemory(self.gpu, region, layers, places, list(memory), lambda: 0, **how)


def wait_for(what: str, so: Any, seconds: float = 20) -> None:
    """Waits until the condition holds. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while not so():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(0.0001)
