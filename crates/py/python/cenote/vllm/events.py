"""KV events of the region for this instance's router, as vLLM's events.

They cover the stored and evicted blocks of all processes and hosts."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash

from cenote.vllm.differences import event_keys
from cenote.vllm.metadata import short_name

if TYPE_CHECKING:
    from vllm.v1.request import Request

    import cenote
    from cenote.vllm.groups import Group

MEDIUM = "CENOTE"

# Most blocks with stored tokens, per block size. At 128 tokens each, the tokens take 64 MiB.
_KNOWN_MAX = 65_536


@dataclass
class _Known:
    """A block of a request of this instance, with the data for its event."""

    key: bytes
    parent: bytes | None
    tokens: array[int]
    lora_id: int | None
    lora_name: str | None
    extra_keys: tuple[Any, ...] | None


class _Group:
    """Event state of one KV cache group."""

    def __init__(self, group: Group, ranks: Sequence[cenote.Namespace], known: OrderedDict[int, _Known]) -> None:
        self.group, self.known = group, known
        self.ranks = {rank.id: 1 << number for number, rank in enumerate(ranks)}
        self.all_ranks = (1 << len(ranks)) - 1
        # Bit set of the ranks that have a block, by its name.
        self.there: dict[int, int] = {}
        # vLLM's hashes of present blocks with a stored event, by their names.
        self.told: dict[int, bytes] = {}
        self.stored: list[_Known] = []
        self.removed: list[bytes] = []

    def came(self, name: int, rank: int) -> None:
        """Records that a rank has stored a block."""
        self.there[name] = self.there.get(name, 0) | rank
        self.tell(name)

    def left(self, name: int, rank: int) -> None:
        """Records that a rank has removed a block."""
        left = self.there.get(name, 0) & ~rank
        if left:
            self.there[name] = left
        else:
            self.there.pop(name, None)
        key = self.told.pop(name, None)
        if key is not None:
            # If the stored event is still pending, drop it instead of adding a removed event.
            before = len(self.stored)
            self.stored = [known for known in self.stored if known.key != key]
            if len(self.stored) == before:
                self.removed.append(key)

    def clear(self) -> None:
        """Forgets all blocks."""
        self.there, self.told, self.stored, self.removed = {}, {}, [], []

    def tell(self, name: int) -> None:
        """Adds a stored event if all ranks have the block and its tokens are known."""
        known = self.known.get(name)
        if known is not None and name not in self.told and self.there.get(name) == self.all_ranks:
            self.told[name] = known.key
            self.stored.append(known)

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        events: list[KVCacheEvent] = []
        if self.removed:
            hashes = [maybe_convert_block_hash(key) for key in self.removed]
            events.append(BlockRemoved(block_hashes=hashes, medium=MEDIUM, group_idx=self.group.number))
        events.extend(self._stored(run) for run in _runs(self.stored))
        self.stored, self.removed = [], []
        return events

    def _stored(self, run: list[_Known]) -> BlockStored:
        first = run[0]
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(known.key) for known in run],
            parent_block_hash=maybe_convert_block_hash(first.parent) if first.parent is not None else None,
            token_ids=[token for known in run for token in known.tokens],
            block_size=self.group.block_tokens,
            lora_id=first.lora_id,
            medium=MEDIUM,
            lora_name=first.lora_name,
            extra_keys=event_keys([known.extra_keys for known in run]),
            group_idx=self.group.number,
            kv_cache_spec_kind=self.group.kind,
            kv_cache_spec_sliding_window=self.group.window,
        )


class KvEvents:
    """KV events of one engine.

    A stored event needs the block on every rank, and its tokens, which routers require."""

    def __init__(self, region: cenote.Region, groups: Sequence[tuple[Group, Sequence[cenote.Namespace]]]) -> None:
        self.follower = region.follow()
        # Groups with the same block size share the known blocks.
        self.known: dict[int, OrderedDict[int, _Known]] = {group.block_tokens: OrderedDict() for group, _ in groups}
        self.groups = [_Group(group, ranks, self.known[group.block_tokens]) for group, ranks in groups]
        self.ranks = {rank: group for group in self.groups for rank in group.ranks}
        # Poll now, so that a region without an event log fails at start and not while serving.
        self._look()

    def learn(self, request: Request, start: int, end: int) -> None:
        """Stores the tokens of a request's blocks that end between these tokens."""
        for size, known in self.known.items():
            groups = [group for group in self.groups if group.group.block_tokens == size]
            self._learn(request, known, groups, start // size, min(end // size, groups[0].group.known(request)))

    def _learn(self, request: Request, known: OrderedDict[int, _Known], groups: list[_Group], start: int, end: int) -> None:
        if end <= start:
            return
        lora, size, image = request.lora_request, groups[0].group.block_tokens, 0
        # Each block begins with the image at which its predecessor ended. So start at block 0 if
        # the request has images.
        first = 0 if request.mm_features else start
        [parent] = groups[0].group.hashes(request, first - 1, first) if first > 0 else [None]
        for number, key in enumerate(groups[0].group.hashes(request, first, end), first):
            name, at = short_name(key), number * size
            extra, image = generate_block_hash_extra_keys(request, at, at + size, image)
            if name in known:
                known.move_to_end(name)
            else:
                tokens = array("q", request.all_token_ids[at : at + size])
                lora_id, lora_name = (lora.adapter_id, lora.name) if lora else (None, None)
                known[name] = _Known(key, parent, tokens, lora_id, lora_name, extra)
            for group in groups:
                group.tell(name)
            parent = key
        while len(known) > _KNOWN_MAX:
            known.popitem(last=False)

    def clear(self) -> None:
        """Forgets all blocks after a reset. vLLM itself publishes the reset to its routers."""
        self._look()
        for group in self.groups:
            group.clear()

    def take(self) -> list[KVCacheEvent]:
        """The events since the last call."""
        self._look()
        return [event for group in self.groups for event in group.take()]

    def _look(self) -> None:
        """Polls the region's events."""
        for kind, namespace, _, name, _, _ in self.follower.poll()[0]:
            group = self.ranks.get(namespace)
            if group is None or name == 0:
                continue
            rank = group.ranks[namespace]
            if kind == "stored":
                group.came(name, rank)
            else:
                group.left(name, rank)


def _runs(blocks: list[_Known]) -> list[list[_Known]]:
    """Splits blocks into runs in which each block is the parent of the next."""
    runs: list[list[_Known]] = []
    for known in blocks:
        if runs and runs[-1][-1].key == known.parent:
            runs[-1].append(known)
        else:
            runs.append([known])
    return runs
