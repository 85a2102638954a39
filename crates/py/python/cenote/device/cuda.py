"""GPUs by PyTorch."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch

from cenote.device.interface import Copy, DeviceError, Stream


class CudaDevice:
    """One GPU, once in a process. Copies are between memory that it has been shown: tensors, what was registered, what was
    allocated."""

    _all: ClassVar[dict[torch.device, CudaDevice]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams = {stream: torch.cuda.Stream(device) for stream in (Stream.LOADS, Stream.SAVES)}
        # Addresses of memory, in order, and each as a tensor of bytes. Replaced as a whole, because threads look at it.
        self._memory: tuple[list[int], list[torch.Tensor]] = [], []

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> CudaDevice:
        """The GPU that the tensors are on, which is shown them."""
        device = tensors[0].device
        if device not in cls._all:
            cls._all[device] = cls(device)
        self = cls._all[device]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._memory[0]:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                self._show(storage.data_ptr(), flat.set_(storage, 0, (storage.nbytes(),), (1,)))
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
        left = [(at, memory) for at, memory in zip(*self._memory, strict=True) if at != address]
        self._memory = [at for at, _ in left], [memory for _, memory in left]
        runtime = torch.cuda.cudart()
        with self._on():
            error = runtime.cudaHostUnregister(address)
            if error != runtime.cudaError.success:
                self._forget_error()
                raise DeviceError(f"cudaHostUnregister: {runtime.cudaGetErrorString(error)}")

    def allocate(self, length: int) -> int:
        memory = torch.empty(length, dtype=torch.uint8, pin_memory=True)
        self._show(memory.data_ptr(), memory)
        return memory.data_ptr()

    def copy_async(self, stream: Stream, copies: Sequence[Copy]) -> None:
        with torch.cuda.stream(self._stream(stream)):
            for to, start, length in copies:
                self._at(to, length).copy_(self._at(start, length), non_blocking=True)

    def record(self, stream: Stream) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._stream(stream))
        return event

    def query(self, event: torch.cuda.Event) -> bool:
        return event.query()

    def wait(self, stream: Stream, event: torch.cuda.Event) -> None:
        self._stream(stream).wait_event(event)

    def _stream(self, stream: Stream) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device) if stream is Stream.ENGINE else self._streams[stream]

    def _on(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.device)

    def _show(self, address: int, memory: torch.Tensor) -> None:
        starts, tensors = self._memory
        place = bisect.bisect(starts, address)
        self._memory = [*starts[:place], address, *starts[place:]], [*tensors[:place], memory, *tensors[place:]]

    def _at(self, address: int, length: int) -> torch.Tensor:
        starts, tensors = self._memory
        place = bisect.bisect(starts, address) - 1
        start = address - starts[place]
        if place < 0 or start + length > len(tensors[place]):
            raise DeviceError(f"{length} bytes at {address:#x} are no memory that the device was shown")
        return tensors[place][start : start + length]

    def _forget_error(self) -> None:
        """The runtime keeps the last error, and whoever launches a kernel next would take it for his own."""
        try:
            torch.zeros(1, device=self.device)
        except RuntimeError:
            pass
