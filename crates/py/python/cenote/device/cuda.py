"""GPUs through PyTorch."""

from __future__ import annotations

import bisect
import ctypes
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch

from cenote.device.batches import Batches
from cenote.device.interface import Copy, DeviceError, Stream
from cenote.device.rows import RowGather, TablePlace


class CudaDevice:
    """One GPU; one instance per GPU and process.

    Copies are between memory that the instance knows: tensors given to `of`, registered memory and
    allocated memory."""

    _all: ClassVar[dict[torch.device, CudaDevice]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams = {stream: torch.cuda.Stream(device) for stream in (Stream.LOADS, Stream.SAVES)}
        # Sorted addresses of known memory, and each memory as a tensor of bytes. Updates replace
        # the tuple, because other threads read it without a lock.
        self._memory: tuple[list[int], list[torch.Tensor]] = [], []
        # Number of users of a memory, by its address.
        self._users: Counter[int] = Counter()
        # Many copies in one call, or the reason why each copy is a call.
        self.batches: Batches | None = None
        self.why_one_by_one = ""
        try:
            with self._on():
                torch.cuda.synchronize()
                batches = Batches(ctypes.CDLL("libcuda.so.1"))
                self._try_out(batches)
            self.batches = batches
        except Exception as error:
            self.why_one_by_one = f"{type(error).__name__}: {error}"

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> CudaDevice:
        """The GPU of the tensors. Adds them to its memory until `forget` gets their addresses."""
        device = tensors[0].device
        if device not in cls._all:
            cls._all[device] = cls(device)
        self = cls._all[device]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        for address, storage in storages.items():
            if self._users[address] == 0:
                flat = torch.empty(0, dtype=torch.uint8, device=device)
                self._show(address, flat.set_(storage, 0, (storage.nbytes(),), (1,)))
            self._users[address] += 1
        return self

    def register(self, address: int, length: int) -> None:
        runtime = torch.cuda.cudart()
        with self._on():
            error = runtime.cudaHostRegister(address, length, 0)
            if error != runtime.cudaError.success:
                self._forget_error()
                raise DeviceError(f"cudaHostRegister of {length} bytes: {runtime.cudaGetErrorString(error)}")
        self._show(address, torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8))

    def unregister(self, address: int) -> None:
        self._hide({address})
        runtime = torch.cuda.cudart()
        with self._on():
            error = runtime.cudaHostUnregister(address)
            if error != runtime.cudaError.success:
                self._forget_error()
                raise DeviceError(f"cudaHostUnregister: {runtime.cudaGetErrorString(error)}")

    def allocate(self, length: int) -> int:
        memory = torch.empty(length, dtype=torch.uint8, pin_memory=True)
        self._show(memory.data_ptr(), memory)
        self._users[memory.data_ptr()] = 1
        return memory.data_ptr()

    def forget(self, addresses: Sequence[int]) -> None:
        # Several layers may share one storage. They count as one user of it.
        for start in {self._find(address, 1)[0] for address in addresses}:
            self._users[start] -= 1
        unused = {start for start, users in self._users.items() if users == 0}
        for start in unused:
            del self._users[start]
        self._hide(unused)

    def copy_async(self, stream: Stream, copies: Sequence[Copy]) -> None:
        if self.batches is not None and stream is not Stream.ENGINE:
            self._check(copies)
            self.batches.queue(self._streams[stream].cuda_stream, copies)
            return
        with torch.cuda.stream(self._stream(stream)):
            for to, start, length in copies:
                self._at(to, length).copy_(self._at(start, length), non_blocking=True)

    def upload(self, data: bytes) -> int:
        with self._on():
            memory = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        self._show(memory.data_ptr(), memory)
        self._users[memory.data_ptr()] = 1
        return memory.data_ptr()

    def seen(self, address: int) -> int:
        # PyTorch has loaded the runtime and does not bind this call.
        runtime, found = ctypes.CDLL(None), ctypes.c_void_p()
        with self._on():
            error = runtime.cudaHostGetDevicePointer(ctypes.byref(found), ctypes.c_void_p(address), 0)
            if error != 0 or found.value is None:
                self._forget_error()
                raise DeviceError(f"cudaHostGetDevicePointer: error {error}")
        return found.value

    def gather_async(self, stream: Stream, table: TablePlace, rows: RowGather) -> None:
        # Here, because only rows need Triton.
        from cenote.device.rows_kernel import launch

        with self._on(), torch.cuda.stream(self._stream(stream)):
            launch(table, rows)

    def record(self, stream: Stream) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._stream(stream))
        return event

    def query(self, event: torch.cuda.Event) -> bool:
        return event.query()

    def wait(self, stream: Stream, event: torch.cuda.Event) -> None:
        self._stream(stream).wait_event(event)

    def _try_out(self, batches: Batches) -> None:
        """Copies some bytes to the GPU and back by batches. Raises `DeviceError` if they differ."""
        size, half = 512, 256
        here = torch.arange(size, dtype=torch.int32).to(torch.uint8).pin_memory()
        there, back = torch.zeros(size, dtype=torch.uint8, device=self.device), torch.zeros(size, dtype=torch.uint8).pin_memory()
        stream = self._streams[Stream.LOADS]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        for to, start in ((there, here), (back, there)):
            # Crossed, so that the order of the copies is seen.
            addresses = [(to.data_ptr() + at, start.data_ptr() + half - at, half) for at in (0, half)]
            batches.queue(stream.cuda_stream, addresses)
        stream.synchronize()
        if not torch.equal(here, back):
            raise DeviceError("cuMemcpyBatchAsync copied other bytes than it was told to")

    def _check(self, copies: Sequence[Copy]) -> None:
        """Raises `DeviceError` for a copy outside of known memory."""
        # Most copies of a batch are between the same two memories.
        known = [range(0), range(0)]
        for *places, length in copies:
            for number, address in enumerate(places):
                if address not in known[number] or address + length > known[number].stop:
                    start, memory = self._find(address, length)
                    known[number] = range(start, start + len(memory))

    def _stream(self, stream: Stream) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device) if stream is Stream.ENGINE else self._streams[stream]

    def _on(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device)

    def _show(self, address: int, memory: torch.Tensor) -> None:
        starts, tensors = self._memory
        place = bisect.bisect(starts, address)
        self._memory = [*starts[:place], address, *starts[place:]], [*tensors[:place], memory, *tensors[place:]]

    def _hide(self, addresses: set[int]) -> None:
        left = [(at, memory) for at, memory in zip(*self._memory, strict=True) if at not in addresses]
        self._memory = [at for at, _ in left], [memory for _, memory in left]

    def _at(self, address: int, length: int) -> torch.Tensor:
        start, memory = self._find(address, length)
        return memory[address - start : address - start + length]

    def _find(self, address: int, length: int) -> tuple[int, torch.Tensor]:
        """Start address and tensor of the memory that contains these bytes."""
        starts, tensors = self._memory
        place = bisect.bisect(starts, address) - 1
        if place < 0 or address - starts[place] + length > len(tensors[place]):
            raise DeviceError(f"{length} bytes at {address:#x} are outside of the memory known to the device")
        return starts[place], tensors[place]

    def _forget_error(self) -> None:
        """Clears the runtime's last error. Otherwise the next kernel launch would report it."""
        try:
            torch.zeros(1, device=self.device)
        except RuntimeError:
            pass
