"""The scheduler's side: what is in the region for a request, and what of it is to be saved. Memory reads, no waiting."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cenote.vllm.events import KvEvents
from cenote.vllm.metadata import CenoteMetadata, LoadOrder, SaveOrder

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    import cenote
    from cenote.vllm.shards import Shards
    from cenote.vllm.stats import CenoteStats

# A step's loads are done when its successors are being prepared; vLLM prepares at most two ahead.
_STEPS_AHEAD = 3


@dataclass
class _Found:
    """Blocks that every rank has, pinned until they are loaded."""

    leases: list[cenote.Lease]
    start: int
    keys: list[bytes]
    since: float
    # Set when vLLM has given the request blocks to load them into.
    ordered_at_step: int | None = None
    block_ids: set[int] = field(default_factory=set)

    def release(self) -> None:
        for lease in self.leases:
            lease.release()


class SchedulerSide:
    """One per engine."""

    def __init__(self, shards: Shards, stats: CenoteStats, loads: bool, saves: bool, events: bool) -> None:
        self.settings, self.stats = shards.settings, stats
        self.ranks = shards.all_ranks()
        self.block_tokens = shards.block_tokens
        self.loads, self.saves = loads, saves
        self.waits = self.settings.load == "async"
        self.manager: KVCacheManager | None = None
        self.requests: dict[str, Request] = {}
        # Blocks of a request, from its first on, that are in the region, or were.
        self.saved: dict[str, int] = {}
        self.found: dict[str, _Found] = {}
        self.orders: list[LoadOrder] = []
        # Requests whose load failed once: what is missing is computed, however often they are asked about.
        self.given_up: set[str] = set()
        self.step = 0
        self.events = KvEvents(shards.region, self.ranks, self.block_tokens) if events else None

    def matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens behind those that are computed which the region has."""
        self._let_go(request.request_id)
        # One token has to be computed, or there is nothing to sample from.
        end = (request.num_tokens - 1) // self.block_tokens
        start = num_computed_tokens // self.block_tokens
        keys = list(request.block_hashes[start:end])
        if not self.loads or not keys or request.request_id in self.given_up:
            return 0, False
        leases = [rank.lookup(rank.alias(keys)) for rank in self.ranks]
        count = min(len(lease) for lease in leases)
        self.stats.add("lookup_blocks", len(keys))
        if count < self.settings.min_blocks or count == 0:
            for lease in leases:
                lease.release()
            return 0, False
        self.stats.add("hit_blocks", count)
        for lease in leases:
            lease.truncate(count)
        self.found[request.request_id] = _Found(leases, start, keys[:count], time.monotonic())
        return count * self.block_tokens, self.waits

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """vLLM has given the request its blocks."""
        self.requests[request.request_id] = request
        if self.events is not None:
            self.events.learn(request, 0, len(request.block_hashes))
        found = self.found.get(request.request_id)
        if num_external_tokens == 0 or found is None or found.ordered_at_step is not None:
            return
        count = num_external_tokens // self.block_tokens
        block_ids = list(blocks.get_block_ids()[0][found.start : found.start + count])
        keys = found.keys[: len(block_ids)]
        found.ordered_at_step, found.block_ids = self.step, set(block_ids)
        self.orders.append(LoadOrder(request.request_id, keys, block_ids, self.waits))
        self.saved[request.request_id] = max(self.saved.get(request.request_id, 0), found.start + len(keys))

    def build_metadata(self, output: SchedulerOutput) -> CenoteMetadata:
        """This step's orders."""
        self.step += 1
        metadata = CenoteMetadata(loads=self.orders)
        self.orders = []
        if self.saves:
            metadata.saves = self._saves(output)
        for request_id in output.finished_req_ids:
            self._forget(request_id)
        self._let_go_of_old()
        return metadata

    def _saves(self, output: SchedulerOutput) -> list[SaveOrder]:
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        saves = []
        for request_id, before in computed.items():
            request = self.requests.get(request_id)
            if request is None or self.manager is None:
                continue
            after = before + output.num_scheduled_tokens.get(request_id, 0)
            # A block's name is known when its last token is; tokens that are only guessed have none.
            full = min(after // self.block_tokens, len(request.block_hashes))
            start = self.saved.get(request_id, 0)
            if full <= start:
                continue
            block_ids = self.manager.get_block_ids(request_id)[0][start:full]
            if len(block_ids) != full - start:
                continue
            self.saved[request_id] = full
            parent = request.block_hashes[start - 1] if start > 0 else None
            keys = list(request.block_hashes[start:full])
            saves.append(SaveOrder(keys, list(range(start, full)), list(block_ids), parent))
            if self.events is not None:
                self.events.learn(request, start, full)
        return saves

    def workers_said(self, output: KVConnectorOutput) -> None:
        """What came of the orders."""
        failed = output.invalid_block_ids or set()
        for request_id, found in self.found.items():
            if found.block_ids & failed:
                self.given_up.add(request_id)
        if failed:
            # What followed from wrong blocks was not saved; what is there already costs a look.
            self.saved.clear()
        for request_id in output.finished_recving or ():
            self._let_go(request_id)

    def finished(self, request: Request) -> None:
        """The request has ended."""
        # Its last blocks may be in the step that is being built, so it is forgotten with that.
        self._let_go(request.request_id)

    def reset(self) -> bool:
        """The weights have changed: nothing of before may be found."""
        for rank in self.ranks:
            rank.forget()
        self.saved.clear()
        return True

    def _forget(self, request_id: str) -> None:
        self._let_go(request_id)
        self.requests.pop(request_id, None)
        self.saved.pop(request_id, None)
        self.given_up.discard(request_id)

    def _let_go(self, request_id: str) -> None:
        found = self.found.pop(request_id, None)
        if found is not None:
            found.release()

    def _let_go_of_old(self) -> None:
        now = time.monotonic()
        for request_id, found in list(self.found.items()):
            ordered = found.ordered_at_step
            loaded = ordered is not None and not self.waits and self.step - ordered > _STEPS_AHEAD
            if loaded or now - found.since > self.settings.lease_timeout:
                self._let_go(request_id)
