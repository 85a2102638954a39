"""A GPU of the fake driver (`crates/device/fake`), which the compiled part opens as it opens CUDA's.

The driver executes work late, in pieces and in any permitted order; it fails on demand."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from waiting import PATIENCE, until

import cenote
from cenote.device import DeviceMemory, Gpu, PageLayout, Registration

NEVER = (1 << 64) - 1

_numbers = itertools.count(1)
_COPY = "cuMemcpyBatchAsync"


def library() -> str:
    """The driver's file, which `cargo build -p cenote-device --example fake_driver` makes; another target folder is to be named."""
    root = Path(__file__).parents[3]
    return os.environ.get("CENOTE_FAKE_DRIVER") or str(root / "target/debug/examples/libfake_driver.so")


def _open() -> ctypes.CDLL:
    driver, address, number = ctypes.CDLL(library()), ctypes.c_size_t, ctypes.c_uint32
    arguments: dict[str, tuple[Any, ...]] = {
        "begin": (ctypes.c_uint64,), "know": (address, address), "hold": (number, ctypes.c_bool),
        "fail": (ctypes.c_char_p, ctypes.c_uint64), "break": (ctypes.c_bool,), "gate": (ctypes.c_char_p, ctypes.c_bool),
        "at_gate": (), "register_max": (address,), "page": (address,), "allocate_max": (address,), "spoil": (address, address, address), "spoiled": (),
        "engine_is_a_thread": (ctypes.c_bool,), "engine_writes": (address, ctypes.c_char_p, address),
        "engine_reads": (address, address, address), "run": (), "idle": (), "calls": (ctypes.c_char_p,), "locked": (),
        "allocations": (), "wrong": (address, address),
    }  # fmt: skip
    results = {
        "at_gate": ctypes.c_uint64, "spoiled": ctypes.c_bool, "idle": ctypes.c_bool, "calls": ctypes.c_uint64, "locked": address,
        "allocations": address, "wrong": address,
    }  # fmt: skip
    for name, types in arguments.items():
        call = getattr(driver, f"fake_{name}")
        call.argtypes, call.restype = (number, *types), results.get(name)
    driver.fake_calls_of_this_thread.restype = ctypes.c_uint64
    return driver


_driver: ctypes.CDLL | None = None


class FakeDevice:
    """A GPU with `size` bytes of memory at `base`."""

    TO_GPU, FROM_GPU, ENGINE = range(3)

    def __init__(self, size: int, seed: int = 0) -> None:
        global _driver
        _driver = _driver or _open()
        self.driver, self.number = _driver, next(_numbers)
        self.call("begin", seed)
        self.call("page", mmap.PAGESIZE)
        self.memory = (ctypes.c_uint8 * size)()
        self.base = ctypes.addressof(self.memory)
        self.call("know", self.base, size)
        self.gpu = Gpu(self.number, library=library())
        self.trials = self.calls(_COPY)
        self.uploaded: list[ctypes.Array[ctypes.c_char]] = []

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a control of the driver for this GPU."""
        return getattr(self.driver, f"fake_{name}")(self.number, *arguments)

    def of(self, region: cenote.Region, layers: Sequence[tuple[int, PageLayout]], **how: Any) -> DeviceMemory:
        """KV memory in this GPU's memory, of a region that is page-locked as far as the driver does it."""
        memory = self.locking(region, layers, **how)
        assert memory.wait_locked(PATIENCE)
        return memory

    def locking(self, region: cenote.Region, layers: Sequence[tuple[int, PageLayout]], **how: Any) -> DeviceMemory:
        """As `of`, while the region may be being page-locked."""
        before = self.calls(_COPY)
        memory = DeviceMemory(self.gpu, region, layers, [(self.base, len(self.memory))], self.memory, lambda: 0, **how)
        self.trials += self.calls(_COPY) - before
        return memory

    # --- controls ---

    def hold(self, *what: int) -> None:
        """Stalls these kinds of work, and no others."""
        for kind in range(3):
            self.call("hold", kind, kind in what)

    def fail(self, call: str, after: int = 0) -> None:
        """Makes a call of the driver fail after so many more successful ones."""
        self.call("fail", call.encode(), after)

    def calls(self, call: str) -> int:
        return self.call("calls", call.encode())

    @property
    def copies(self) -> int:
        """Calls that queued copies, without those of the trials of driver and kernels."""
        return self.calls(_COPY) - self.trials

    @property
    def wrong(self) -> str:
        """What a real driver would not forgive."""
        text = ctypes.create_string_buffer(4096)
        return text.raw[: self.call("wrong", ctypes.addressof(text), len(text))].decode()

    @property
    def locked(self) -> int:
        """Bytes of page-locked memory."""
        return self.call("locked")

    def spoil(self, address: int, length: int, byte: int) -> None:
        """Flips a bit of a byte while a copy reads this memory."""
        self.call("spoil", address, length, byte)

    def write(self, at: int, content: bytes) -> None:
        ctypes.memmove(self.base + at, content, len(content))

    def read(self, at: int, length: int) -> bytes:
        return ctypes.string_at(self.base + at, length)

    def engine_writes(self, at: int, content: bytes) -> None:
        """Queues a write on the engine's stream."""
        self.call("engine_writes", self.base + at, content, len(content))

    def engine_reads(self, at: int, length: int) -> ctypes.Array[ctypes.c_char]:
        """Queues a read on the engine's stream. The result has the bytes later."""
        found = ctypes.create_string_buffer(length)
        self.call("engine_reads", self.base + at, ctypes.addressof(found), length)
        return found

    def run(self) -> None:
        """Executes all work that is not held or waiting."""
        self.call("run")

    def run_until(self, what: str, so: Callable[[], bool]) -> None:
        """Executes work until another thread makes `so` true."""

        def look() -> bool:
            self.run()
            return so()

        until(what, look)

    def idle(self) -> bool:
        """True if no stream has work left."""
        return self.call("idle")

    # --- the interface `RowDevice` ---

    def stream(self) -> int:
        return 0

    def register(self, region: cenote.Region) -> Registration:
        return self.gpu.register(region)

    def upload(self, data: bytes) -> int:
        self.uploaded.append(ctypes.create_string_buffer(data, len(data)))
        self.call("know", ctypes.addressof(self.uploaded[-1]), len(data))
        return ctypes.addressof(self.uploaded[-1])

    def forget(self, address: int) -> None:
        self.uploaded = [each for each in self.uploaded if ctypes.addressof(each) != address]


def on_storages(device: FakeDevice, region: cenote.Region, layers: Any, tensors: Sequence[Any], **how: Any) -> DeviceMemory:
    """KV memory in the storages of tensors, as `CudaDevice.memory`."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
    places = [(address, storage.nbytes()) for address, storage in storages.items()]
    for place in places:
        device.call("know", *place)
    return DeviceMemory(device.gpu, region, layers, places, list(storages.values()), lambda: 0, **how)
