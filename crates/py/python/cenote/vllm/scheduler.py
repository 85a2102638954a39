"""The scheduler side: finds blocks of a request in the region and selects the blocks to save.

It reads memory and never waits. For blocks on their way from the cold tier or peers, vLLM asks again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cenote import clock, hints
from cenote.vllm.differences import count_as_computed, hints_of
from cenote.vllm.events import KvEvents
from cenote.vllm.lookup import Found, Lookup
from cenote.vllm.metadata import LoadOrder, LoadPart, SaveOrder
from cenote.vllm.misses import MissLog

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    import cenote
    from cenote.vllm.groups import Group
    from cenote.vllm.parts import PartFacts
    from cenote.vllm.shards import Shards
    from cenote.vllm.stats import CenoteStats


@dataclass(frozen=True)
class LookedUp:
    """Tokens of a lookup: its start, the first that came from the cold tier or peers, the end of the hit, its end, and
    those behind the hit that lack only a state."""

    start: int
    fetched: int
    hit: int
    end: int
    without_state: int


class SchedulerSide:
    """The scheduler side of one engine."""

    def __init__(self, shards: Shards, stats: CenoteStats, loads: bool, saves: bool, events: bool) -> None:
        self.settings, self.stats, self.weights = shards.settings, stats, shards.weights
        self.names = shards.names
        self.shards = shards
        self.lookup, self.groups = Lookup(shards.groups, shards.alignment, shards.has_all_groups), shards.groups
        self.loads, self.saves = loads, saves and shards.settings.save_decoded != "off"
        self.manager: KVCacheManager | None = None
        self.requests: dict[str, Request] = {}
        # Per request and group: number of first blocks that were loaded, or ordered to be saved.
        self.saved: dict[str, dict[int, int]] = {}
        # Requests that began under earlier weights. Their blocks are not saved.
        self.stale: set[str] = set()
        # Start times of requests that wait for the name of their adapter, and requests without one.
        self.waiting_for_name: dict[str, float] = {}
        self.unnamed: set[str] = set()
        self.promotes = shards.region.promotes
        # Promotions from the cold tier and peers by request; an empty list: over.
        self.promotions: dict[str, list[cenote.Promotion]] = {}
        # Where the hit of each of these ended before.
        self.promoted_from: dict[str, int] = {}
        self.found: dict[str, Found] = {}
        # The last lookup of a request that is not admitted yet.
        self.looked_up: dict[str, LookedUp] = {}
        # Requests in the region's record: the ranks and their numbers there.
        self.recorded: dict[str, list[tuple[cenote.Namespace, int]]] = {}
        self.misses = MissLog() if shards.settings.log_misses else None
        self.orders: list[LoadOrder] = []
        # Requests with a failed load. Their lookups return no hit, so vLLM computes the rest.
        self.given_up: set[str] = set()
        self.publishes = events
        self.events: KvEvents | None = None

    def workers_have(self, facts: Iterable[PartFacts]) -> None:
        """Opens the namespaces of all ranks, which the workers name when they have their KV memory."""
        ranks = self.shards.namespaces(facts)
        if missing := [group.number for group, found in zip(self.groups, ranks, strict=True) if not found]:
            raise ValueError(f"no worker has a part of the KV cache groups {missing}")
        self.lookup.ranks = ranks
        if self.publishes:
            self.events = KvEvents(self.shards.region, list(zip(self.groups, ranks, strict=True)))

    def matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Number of hit tokens after `num_computed_tokens`, and whether the request waits for them.

        None: vLLM asks again later."""
        self._let_go(request.request_id)
        self.looked_up.pop(request.request_id, None)
        # Before vLLM computes with the request's images, also if it only saves.
        named = self._is_named(request)
        if not self.loads or request.request_id in self.given_up or request.skip_reading_prefix_cache:
            return 0, False
        if not named:
            return (None if named is None else 0), False
        start, end, unit = num_computed_tokens, self.lookup.limit(request), self.lookup.alignment
        if end <= start or start % unit:
            return 0, False
        # Before the lookup: what arrives during it may be behind the hit, and vLLM asks again.
        waits = self._is_waiting(request.request_id)
        found = self.lookup.find(request, start, end)
        if found.end < end and (waits or self._promote(request, start, found.end, end)):
            found.release()
            return None, False
        # vLLM asks again in each step until it admits the request. Only the last answer counts.
        fetched = min(max(self.promoted_from.get(request.request_id, found.end), start), found.end)
        self.looked_up[request.request_id] = LookedUp(start, fetched, found.end, end, found.without_state)
        if (found.end - start) // unit < max(self.settings.min_blocks, 1):
            found.release()
            return 0, False
        self.found[request.request_id] = found
        return found.end - start, True

    def _is_waiting(self, request_id: str) -> bool:
        """True while blocks are on their way from the cold tier or peers and their deadline has not passed."""
        if not (waiting := self.promotions.get(request_id)):
            return False
        waiting[:] = [promotion for promotion in waiting if not promotion.over]
        return bool(waiting)

    def _promote(self, request: Request, start: int, hit: int, end: int) -> bool:
        """Begins to bring the blocks behind a hit. True if any are on their way, or have arrived since the lookup.

        A request is promoted once: blocks that cannot be read are computed."""
        if not self.promotes or request.request_id in self.promotions:
            return False
        begun = self.promotions[request.request_id] = self.lookup.promote(request, start, end)
        if begun:
            self.stats.add("cold_requests")
            self.promoted_from[request.request_id] = hit
        return bool(begun)

    def _is_named(self, request: Request) -> bool | None:
        """True if a request may share. None: its name is pending and has not timed out."""
        named = self.names.is_named(request)
        if named is None:
            since = self.waiting_for_name.setdefault(request.request_id, clock.now())
            if clock.now() - since < self.settings.timeout:
                return None
        if not named and request.request_id not in self.unnamed:
            self.unnamed.add(request.request_id)
            self.stats.add("unnamed_requests")
        return bool(named)

    def allocated(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Orders the load of a request after vLLM has allocated its blocks."""
        self.requests[request.request_id] = request
        if (looked_up := self.looked_up.pop(request.request_id, None)) is not None:
            unit = self.lookup.alignment
            self.stats.add("lookup_blocks", (looked_up.end - looked_up.start) // unit)
            self.stats.add("stateless_blocks", looked_up.without_state // unit)
        self._order_load(request, blocks, num_external_tokens)
        if looked_up is not None and request.request_id not in self.recorded:
            self._record(request, looked_up)
        if self.misses is not None and looked_up is not None and looked_up.hit < looked_up.end:
            self._ask_why(self.misses, request, looked_up)

    def _record(self, request: Request, looked_up: LookedUp) -> None:
        # vLLM admits a preempted request again, and the record has it once.
        self.recorded[request.request_id] = []
        try:
            self.recorded[request.request_id] = self.lookup.record(request, looked_up.start, looked_up.end)
        except Exception:
            # The request has what it needs.
            self.stats.add("unrecorded_requests")

    def _record_answer(self, request_id: str) -> None:
        recorded, request = self.recorded.pop(request_id, []), self.requests.get(request_id)
        try:
            for rank, number in recorded if request is not None else []:
                rank.record_answer(number, request.num_output_tokens)
        except Exception:
            self.stats.add("unrecorded_requests")

    def _keep(self, request_id: str) -> None:
        """Asks that a request's blocks stay, if its client did."""
        request = self.requests.get(request_id)
        if request is None or request_id in self.unnamed or (envelope := hints_of(request)) is None:
            return
        try:
            wish, unknown = hints.read(envelope)
            if unknown:
                self.stats.add("hints_unknown", unknown)
            if wish is not None:
                self.lookup.retain(request, wish, self.saved.get(request_id, {}))
                self.stats.add("wishes")
        except Exception:
            # A hint changes no result.
            self.stats.add("hints_unknown")

    def _ask_why(self, misses: MissLog, request: Request, looked_up: LookedUp) -> None:
        try:
            miss = self.lookup.first_missing(request, looked_up.start, looked_up.fetched, looked_up.hit, looked_up.end)
            if miss is None:
                misses.count("other")
            else:
                misses.ask(miss)
        except Exception:
            # The request has what it needs.
            misses.count("unexplained")

    def _order_load(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        found = self.found.get(request.request_id)
        if found is None or found.is_ordered:
            return
        if num_external_tokens == 0:
            # vLLM does not load from this connector: another one has the blocks, or none has.
            self._let_go(request.request_id)
            return
        end = found.start + num_external_tokens
        if end != found.end and any(group.is_state for group in self.groups):
            raise ValueError(f"vLLM asks for tokens up to {end}, but the states found are those after token {found.end}")
        tables = blocks.get_block_ids()
        parts = [self._part(group, request, tables[group.number], found.start, end) for group in self.groups]
        found.is_ordered = True
        found.block_ids = {block for part in parts for block in part.block_ids}
        self.orders.append(LoadOrder(request.request_id, parts, self.names.use(request)))
        # Of windows and states fewer blocks are loaded than the hit has. Each of these ends as loaded or as failed.
        ordered = sum(len(part.block_ids) for part in parts)
        self.stats.add("hit_blocks", min(num_external_tokens // self.lookup.alignment, ordered))
        saved = self._saved_of(request)
        for group in self.groups:
            saved[group.number] = max(saved[group.number], end // group.block_tokens)

    def cannot_load(self, request: Request, blocks: KVCacheBlocks) -> None:
        """Orders a load that fails, because the found blocks cannot be ordered.

        The workers report the failed blocks to vLLM, as for any failed load."""
        self.given_up.add(request.request_id)
        tables = blocks.get_block_ids()
        parts = [
            LoadPart(group.number, {}, [block for block in tables[group.number] if block != self._no_block()])
            for group in self.groups
        ]
        self.orders.append(LoadOrder(request.request_id, parts))

    def _part(self, group: Group, request: Request, block_ids: list[int], start: int, end: int) -> LoadPart:
        """A group's blocks between two tokens, without leading blocks before the window."""
        first, last = start // group.block_tokens, end // group.block_tokens
        if group.is_state:
            first = last - 1
            if block_ids[first] == self._no_block():
                raise ValueError(f"vLLM has no block for the state after token {end} in group {group.number}")
        while first < last and block_ids[first] == self._no_block():
            first += 1
        return LoadPart(group.number, self.lookup.names(request, group, first, last), list(block_ids[first:last]))

    def _no_block(self) -> int:
        """Id of vLLM's null block, the placeholder in block tables."""
        assert self.manager is not None
        return self.manager.block_pool.null_block.block_id

    def take_loads(self) -> list[LoadOrder]:
        """Returns and clears the loads of the current step."""
        orders, self.orders = self.orders, []
        return orders

    def end_step(self, output: SchedulerOutput) -> list[SaveOrder]:
        """The saves of this step. Forgets finished requests and releases old leases."""
        try:
            return list(self._saves(output))
        finally:
            for request_id in output.finished_req_ids:
                self._forget(request_id)
            self._let_go_of_old()

    def _saves(self, output: SchedulerOutput) -> Iterator[SaveOrder]:
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        begun = set(computed)
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, before in computed.items():
            request = self.requests.get(request_id)
            if request is None or self.manager is None:
                continue
            after = before + output.num_scheduled_tokens.get(request_id, 0)
            if request.mm_features:
                # vLLM may use another request's embeddings of the same identifier in this step.
                self.names.is_named(request)
            if self.events is not None:
                self.events.learn(request, *((0, request.num_tokens) if request_id in begun else (before, after)))
            if self.saves and request_id not in self.stale:
                yield from self._saves_of(request, after)
        if self.saves:
            yield from self._saves_of_states(output)

    def _saves_of(self, request: Request, after: int) -> Iterator[SaveOrder]:
        """Blocks of a request that token `after` fills and that are still in its block table."""
        assert self.manager is not None
        saved = self._saved_of(request)
        # A block has a name only when its last token is known. Speculative tokens have no name.
        paged = [group for group in self.groups if not group.is_state]
        end = min(after, request.num_prompt_tokens) if self.settings.save_decoded == "prompts" else after
        full = {group.number: min(end // group.block_tokens, group.known(request)) for group in paged}
        if all(end <= saved[number] for number, end in full.items()) or not self.names.is_named(request):
            return
        use = self.names.use(request)
        tables = self.manager.get_block_ids(request.request_id)
        for group in paged:
            start, end, table = saved[group.number], full[group.number], tables[group.number]
            if end <= start or len(table) < end:
                continue
            saved[group.number] = end
            for first, last in self._runs(table, start, end):
                [parent] = group.keys(request, first - 1, first) if first > 0 else [None]
                yield SaveOrder(group.number, group.keys(request, first, last), first, list(table[first:last]), parent, use)

    def _saves_of_states(self, output: SchedulerOutput) -> Iterator[SaveOrder]:
        """Recurrent states that vLLM offers in this step, whose blocks are whole when it ends.

        Only an offer says which block has the state after which token: a block table does not. An
        offer is void if its request has ended or was preempted, because its blocks may be another's."""
        offers = output.kv_connector_block_state.boundary_state_offloads if output.kv_connector_block_state else {}
        gone = set(output.finished_req_ids) | set(output.preempted_req_ids or ())
        of_state = {group.number: group for group in self.groups if group.is_state}
        for request_id, offered in offers.items():
            request = self.requests.get(request_id)
            if request is None or request_id in gone or request_id in self.stale or not self.names.is_named(request):
                continue
            for number, block_id, tokens in offered:
                group = of_state.get(number)
                # Later states are of generated tokens, which may be taken back.
                if group is None or block_id == self._no_block() or tokens % group.block_tokens or tokens > request.num_prompt_tokens:
                    continue
                last = tokens // group.block_tokens
                if not 0 < last <= group.known(request):
                    continue
                [parent] = group.keys(request, last - 2, last - 1) if last > 1 else [None]
                yield SaveOrder(
                    number, group.keys(request, last - 1, last), last - 1, [block_id], parent, self.names.use(request)
                )

    def _saved_of(self, request: Request) -> dict[int, int]:
        return self.saved.setdefault(request.request_id, {group.number: 0 for group in self.groups})

    def _runs(self, table: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
        """Runs of blocks in a block table. Blocks that have left a window are null."""
        none, first = self._no_block(), start
        for number in range(start, end):
            if table[number] == none:
                if first < number:
                    yield first, number
                first = number + 1
        if first < end:
            yield first, end

    def workers_said(self, output: KVConnectorOutput) -> None:
        """Handles the workers' results of loads."""
        failed = output.invalid_block_ids or set()
        self.given_up |= {request_id for request_id, found in self.found.items() if found.block_ids & failed}
        self.given_up |= output.failed_recving & self.found.keys()
        if failed or output.failed_recving:
            # Blocks ordered to be loaded count as saved, and some of them are computed now. So order
            # all saves again; present blocks cost one lookup each.
            self.saved.clear()
            # vLLM has taken the failed blocks back by now, and computes them.
            for request in self.requests.values():
                count_as_computed(request)
        for request_id in output.finished_recving or ():
            self._let_go(request_id)

    def finished(self, request: Request) -> None:
        """Releases the leases of a finished request."""
        # The current step may save its last blocks, so `end_step` forgets the request.
        self._let_go(request.request_id)

    def reset(self) -> bool:
        """Handles weights that may have changed.

        Earlier blocks must not be found, and running requests must not save. The blocks stay in the
        region for engines with the earlier weights."""
        self.stale |= self.requests.keys()
        if self.events is not None:
            self.events.clear()
        self.weights.change()
        return True

    def _forget(self, request_id: str) -> None:
        self._record_answer(request_id)
        self._keep(request_id)
        self._let_go(request_id)
        self.looked_up.pop(request_id, None)
        self.requests.pop(request_id, None)
        self.saved.pop(request_id, None)
        self.given_up.discard(request_id)
        self.stale.discard(request_id)
        self.waiting_for_name.pop(request_id, None)
        self.promotions.pop(request_id, None)
        self.promoted_from.pop(request_id, None)
        self.unnamed.discard(request_id)
        self.names.forget(request_id)
        self.lookup.forget(request_id)

    def _let_go(self, request_id: str) -> None:
        found = self.found.pop(request_id, None)
        if found is not None:
            found.release()

    def _let_go_of_old(self) -> None:
        now = clock.now()
        for request_id, found in list(self.found.items()):
            if now - found.since <= self.settings.lease_timeout:
                continue
            if not found.is_ordered:
                self._let_go(request_id)
            else:
                # The workers have their own pins. Keep the entry, because their result is pending.
                found.release()
