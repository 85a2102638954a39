"""How ranks divide a block: which heads a rank has, and which of its copies others have too.

A block of a group is stored in *parts*, one for each shard of its KV heads. Ranks with the same
heads (MLA, or more ranks than KV heads) have the same part, and one of them writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowMLASpec

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheSpec

    from cenote.vllm.groups import Group


@dataclass(frozen=True)
class PartFacts:
    """A part's namespace, as another process of this engine opens it."""

    group: int
    """Number of the group among vLLM's groups."""
    identity: bytes
    label: str
    block_bytes: int
    block_tokens: int
    num_layers: int
    codec: dict[str, Any] | None
    """Arguments of `cenote.Codec`; None for blocks that are stored as they are."""


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    """The parts of one worker. Workers alone know the layers of their stage."""

    parts: list[PartFacts]


@dataclass(frozen=True)
class Share:
    """The shards of a group's heads that a rank has, of all shards."""

    first: int
    count: int
    total: int
    replica: int
    """Number of this rank among those that have the same shards."""
    replicas: int

    def facts(self, at: int) -> dict[str, Any]:
        """What identifies a shard, whatever ranks share the model."""
        return {"number": self.first + at, "of": self.total}

    def writes(self, key: bytes) -> bool:
        """True if this rank writes the blocks that begin with this one."""
        return key[-1] % self.replicas == self.replica


def share_of(spec: KVCacheSpec, tp_rank: int, tp_size: int, shards: int | None) -> Share:
    """The share of a rank in one layer.

    `shards` is the setting `head_shards`: parts that ranks of any number can join. None: one part
    for each rank with other heads. Raises ValueError for shards that are not whole heads of a rank."""
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec) or (isinstance(spec, MambaSpec) and spec.tp_replicated):
        return Share(0, 1, 1, tp_rank, tp_size)
    if isinstance(spec, MambaSpec):
        # vLLM defines no form of states that other numbers of ranks could read.
        return Share(tp_rank, 1, tp_size, 0, 1)
    assert isinstance(spec, AttentionSpec)
    distinct = min(getattr(spec, "max_tp_shards", None) or tp_size, tp_size)
    if tp_size % distinct:
        distinct = tp_size
    total = distinct if shards is None else shards
    count, rest = divmod(total, distinct)
    if rest or count == 0 or spec.num_kv_heads % count:
        raise ValueError(
            f"kv_connector_extra_config: head_shards is {total}; give a number of shards that are whole KV heads: "
            f"{distinct} ranks have different heads, {spec.num_kv_heads} each"
        )
    replicas = tp_size // distinct
    return Share(tp_rank // replicas * count, count, total, tp_rank % replicas, replicas)


def share_of_group(group: Group, tp_rank: int, tp_size: int, shards: int | None) -> Share:
    """The share of a rank that has layers of this group. Raises ValueError if its layers differ."""
    shares = {share_of(page.spec, tp_rank, tp_size, shards) for page in group.pages}
    if len(shares) != 1:
        raise ValueError(f"the layers of group {group.number} are divided over ranks in different ways")
    return shares.pop()
