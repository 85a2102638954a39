"""KV memory on a device. The device copies blocks itself, concurrently with its computation.

Pure Python over an interface of eight calls (`Device`). `cenote.device.cuda` implements the
interface with PyTorch; this package does not import it. `docs/guides/vllm.md#gpus` states the order of
copies and why the engine never uses wrong bytes.
"""

from cenote.device.interface import Device, DeviceError, Stream
from cenote.device.layout import PageLayout, page_layout
from cenote.device.memory import DeviceMemory
from cenote.device.rows import DeviceTable, RowDevice, RowGather, TablePlace

__all__ = [
    "Device",
    "DeviceError",
    "DeviceMemory",
    "DeviceTable",
    "PageLayout",
    "RowDevice",
    "RowGather",
    "Stream",
    "TablePlace",
    "page_layout",
]
