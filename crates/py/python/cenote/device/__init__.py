"""KV memory that lies on a device: saved and loaded by copies of the device's own, beside what it computes.

Pure Python over an interface of eight calls (`Device`); `cenote.device.cuda` is that interface over PyTorch and is imported
only by whoever asks for it.
`docs/vllm.md` says what is copied when, and why nothing wrong comes of it.
"""

from cenote.device.interface import Device, DeviceError, Stream
from cenote.device.layout import PageLayout, page_layout
from cenote.device.memory import DeviceMemory

__all__ = ["Device", "DeviceError", "DeviceMemory", "PageLayout", "Stream", "page_layout"]
