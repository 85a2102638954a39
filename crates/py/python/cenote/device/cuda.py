"""GPUs by PyTorch."""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import torch

from cenote.device.interface import Copy, DeviceError, Stream


class CudaDevice:
    """One GPU. Copies are between memory that it has been shown: tensors, what was registered, what was allocated."""

    def __init__(self, device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
        self.device = device
        self._streams = {stream: torch.cuda.Stream(device) for stream in (Stream.LOADS, Stream.SAVES)}
        # Memory by address, each as a tensor of bytes.
        self._starts: list[int] = []
        self._bytes: list[torch.Tensor] = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._starts:
                flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                self._show(storage.data_ptr(), flat.set_(storage, 0, (storage.nbytes(),), (1,)))

    def register(self, address: int, length: int) -> None:
        runtime = torch.cuda.cudart()
        with self._on():
            error = runtime.cudaHostRegister(address, length, 0)
            if error != runtime.cudaError.success:
                self._forget_error()
                raise DeviceError(f"cudaHostRegister of {length} bytes: {runtime.cudaGetErrorString(error)}")
        self._show(address, torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8))

    def unregister(self, address: int) -> None:
        place = self._starts.index(address)
        del self._starts[place], self._bytes[place]
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
        place = bisect.bisect(self._starts, address)
        self._starts.insert(place, address)
        self._bytes.insert(place, memory)

    def _at(self, address: int, length: int) -> torch.Tensor:
        place = bisect.bisect(self._starts, address) - 1
        start = address - self._starts[place]
        memory = self._bytes[place]
        if place < 0 or start + length > len(memory):
            raise DeviceError(f"{length} bytes at {address:#x} are no memory that the device was shown")
        return memory[start : start + length]

    def _forget_error(self) -> None:
        """The runtime keeps the last error, and whoever launches a kernel next would take it for his own."""
        try:
            torch.zeros(1, device=self.device)
        except RuntimeError:
            pass
