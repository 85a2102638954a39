"""Messages from the scheduler side to the worker side, one per step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

import cenote
from cenote.vllm.names import AdapterUse


def short_name(key: bytes | None) -> int:
    """The last 64 bits of a block's hash, which is its default form in vLLM's KV events."""
    return int.from_bytes(key[-8:], "big") if key else 0


@dataclass
class LoadPart:
    """Consecutive blocks of one KV cache group."""

    group: int
    names: dict[int, bytes]
    """Names of the blocks in each rank's namespace, by its number. The scheduler has computed them."""
    block_ids: list[int]

    def names_in(self, blocks: cenote.Namespace) -> cenote.Hashes:
        """Names of the blocks in a rank's namespace; none if the scheduler did not know the rank."""
        return cenote.Hashes.frombytes(self.names.get(blocks.id, b""))


@dataclass
class LoadOrder:
    """Blocks to load for a request, which waits for them."""

    request_id: str
    parts: list[LoadPart]
    adapter: AdapterUse | None = None


@dataclass
class SaveOrder:
    """Consecutive blocks of a request that are full at the end of this step."""

    group: int
    keys: list[bytes]
    first: int
    """Number of the first block in the request."""
    block_ids: list[int]
    parent: bytes | None
    """vLLM's hash of the block before the first."""
    adapter: AdapterUse | None = None


@dataclass
class CenoteMetadata(KVConnectorMetadata):
    """The loads and saves of one step."""

    loads: list[LoadOrder] = field(default_factory=list)
    saves: list[SaveOrder] = field(default_factory=list)
    idle: bool = False
    """True if no request runs in this step."""
