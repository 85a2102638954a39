"""KV events of the region, in vLLM's words: what anybody stores or evicts in it, told to this instance's router."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

from cenote.vllm.metadata import short_name

if TYPE_CHECKING:
    from vllm.v1.request import Request

    import cenote

MEDIUM = "CENOTE"

# Blocks whose tokens are remembered. At 128 tokens each they take 32 MiB.
_KNOWN_MAX = 65_536


@dataclass
class _Known:
    """A block of a request that this instance has had."""

    key: bytes
    parent: bytes | None
    tokens: array[int]
    lora_id: int | None
    lora_name: str | None
    extra_keys: tuple[Any, ...] | None


class KvEvents:
    """One per engine. A block is told of when every rank has it and its tokens are known here, which routers ask for."""

    def __init__(self, region: cenote.Region, ranks: Sequence[cenote.Namespace], block_tokens: int) -> None:
        self.follower = region.follow()
        self.ranks = {rank.id: 1 << number for number, rank in enumerate(ranks)}
        self.all_ranks = (1 << len(ranks)) - 1
        self.block_tokens = block_tokens
        self.known: OrderedDict[int, _Known] = OrderedDict()
        # Ranks that have a block, by its name.
        self.there: dict[int, int] = {}
        # vLLM's hashes of blocks that were told of and are there, by their names.
        self.told: dict[int, bytes] = {}
        self.stored: list[_Known] = []
        # A region without a log says so now, and not in the middle of serving.
        self._look()

    def learn(self, request: Request, start: int, end: int) -> None:
        """These blocks of a request may be told of with their tokens."""
        lora, size, image = request.lora_request, self.block_tokens, 0
        # Each block begins with the image at which the last one ended.
        first = 0 if request.mm_features else start
        parent = request.block_hashes[first - 1] if first > 0 else None
        for number, key in enumerate(request.block_hashes[first:end], first):
            name, start = short_name(key), number * size
            extra, image = generate_block_hash_extra_keys(request, start, start + size, image)
            if name in self.known:
                self.known.move_to_end(name)
            else:
                tokens = array("q", request.all_token_ids[start : start + size])
                lora_id, lora_name = (lora.adapter_id, lora.name) if lora else (None, None)
                self.known[name] = _Known(key, parent, tokens, lora_id, lora_name, extra)
            self._tell(name)
            parent = key
        while len(self.known) > _KNOWN_MAX:
            self.known.popitem(last=False)

    def take(self) -> list[KVCacheEvent]:
        """What is new since the last call."""
        removed = self._look()
        events: list[KVCacheEvent] = []
        if removed:
            hashes = [maybe_convert_block_hash(key) for key in removed]
            events.append(BlockRemoved(block_hashes=hashes, medium=MEDIUM, group_idx=0))
        events.extend(self._stored(run) for run in _runs(self.stored))
        self.stored = []
        return events

    def _look(self) -> list[bytes]:
        """Follows the region; returns what was told of and is there no more."""
        removed = []
        for kind, namespace, _, name, _, _ in self.follower.poll()[0]:
            rank = self.ranks.get(namespace)
            if rank is None or name == 0:
                continue
            if kind == "stored":
                self.there[name] = self.there.get(name, 0) | rank
                self._tell(name)
                continue
            left = self.there.get(name, 0) & ~rank
            if left:
                self.there[name] = left
            else:
                self.there.pop(name, None)
            key = self.told.pop(name, None)
            if key is not None:
                # It may have come and gone since the last call.
                before = len(self.stored)
                self.stored = [known for known in self.stored if known.key != key]
                if len(self.stored) == before:
                    removed.append(key)
        return removed

    def _tell(self, name: int) -> None:
        known = self.known.get(name)
        if known is not None and name not in self.told and self.there.get(name) == self.all_ranks:
            self.told[name] = known.key
            self.stored.append(known)

    def _stored(self, run: list[_Known]) -> BlockStored:
        first = run[0]
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(known.key) for known in run],
            parent_block_hash=maybe_convert_block_hash(first.parent) if first.parent is not None else None,
            token_ids=[token for known in run for token in known.tokens],
            block_size=self.block_tokens,
            lora_id=first.lora_id,
            medium=MEDIUM,
            lora_name=first.lora_name,
            extra_keys=to_event_extra_keys([known.extra_keys for known in run]),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )


def _runs(blocks: list[_Known]) -> list[list[_Known]]:
    """Blocks each of which follows from the one before it, together."""
    runs: list[list[_Known]] = []
    for known in blocks:
        if runs and runs[-1][-1].key == known.parent:
            runs[-1].append(known)
        else:
            runs.append([known])
    return runs
