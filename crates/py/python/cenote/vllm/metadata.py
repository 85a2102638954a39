"""What the scheduler's side tells the workers' side in each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

from cenote.vllm.names import AdapterUse


def short_name(key: bytes | None) -> int:
    """A block's hash as vLLM's KV events have it by default: its last 64 bits."""
    return int.from_bytes(key[-8:], "big") if key else 0


@dataclass
class LoadPart:
    """Blocks of one KV cache group, which follow one another."""

    group: int
    keys: list[bytes]
    """vLLM's hashes of the blocks."""
    block_ids: list[int]


@dataclass
class LoadOrder:
    """Blocks of a request that are to be loaded."""

    request_id: str
    parts: list[LoadPart]
    waits: bool
    """The request waits beside the running ones; otherwise it runs in this step."""
    adapter: AdapterUse | None = None


@dataclass
class SaveOrder:
    """Blocks of a request, one after the other, that are full at the end of this step."""

    group: int
    keys: list[bytes]
    first: int
    """The number of the first of them in the request."""
    block_ids: list[int]
    parent: bytes | None
    """vLLM's hash of the block before the first."""
    adapter: AdapterUse | None = None


@dataclass
class CenoteMetadata(KVConnectorMetadata):
    """One step's orders."""

    loads: list[LoadOrder] = field(default_factory=list)
    saves: list[SaveOrder] = field(default_factory=list)
