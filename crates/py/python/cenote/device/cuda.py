"""GPUs of PyTorch: its memory and streams for the compiled part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

import cenote
from cenote.device import DeviceMemory, Gpu, PageLayout, Registration


class CudaDevice:
    """One GPU; one instance per GPU and process."""

    _all: ClassVar[dict[torch.device, CudaDevice]] = {}

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # PyTorch and the compiled part use the GPU's primary context, so they share addresses.
        self.gpu = Gpu(device.index)
        # Memory of `upload`, by its address.
        self._uploaded: dict[int, torch.Tensor] = {}

    @classmethod
    def of(cls, device: torch.device) -> CudaDevice:
        """The GPU with this name. `cuda` is the current one; with a second instance the driver would refuse its region."""
        if device.index is None:
            device = torch.device(device.type, torch.cuda.current_device())
        if device not in cls._all:
            cls._all[device] = cls(device)
        return cls._all[device]

    def stream(self) -> int:
        """The engine's current stream, as the calling thread sees it."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def memory(
        self, region: cenote.Region, layers: Sequence[tuple[int, PageLayout]], tensors: Sequence[torch.Tensor], **how: Any
    ) -> DeviceMemory:
        """KV memory with these layers, which lie in the tensors' storages. It keeps the storages alive."""
        storages = {storage.data_ptr(): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
        places = [(address, storage.nbytes()) for address, storage in storages.items()]
        return DeviceMemory(self.gpu, region, layers, places, list(storages.values()), self.stream, **how)

    # --- for rows ---

    def register(self, region: cenote.Region) -> Registration:
        return self.gpu.register(region)

    def upload(self, data: bytes) -> int:
        memory = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        self._uploaded[memory.data_ptr()] = memory
        return memory.data_ptr()

    def forget(self, address: int) -> None:
        del self._uploaded[address]
