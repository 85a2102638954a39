"""KV memory on a GPU. The copies are the compiled part's (`docs/internals/mover.md`).

This package describes an engine's memory to them. `cenote.device.cuda` needs PyTorch; the rest does
not import it."""

from cenote._native import DeviceLoad, DeviceMemory, Gpu, Registration, RowKernel
from cenote.device.layout import PageLayout, page_layout
from cenote.device.rows import DeviceTable, RowDevice, RowGather, TablePlace

__all__ = [
    "DeviceLoad",
    "DeviceMemory",
    "DeviceTable",
    "Gpu",
    "PageLayout",
    "Registration",
    "RowDevice",
    "RowGather",
    "RowKernel",
    "TablePlace",
    "page_layout",
]
