"""Lookup of a prompt's blocks in the region, on every rank.

A hit needs, of every KV cache group, the blocks in its layers' window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cenote import clock
from cenote.hits import longest_hit
from cenote.vllm.block_names import BlockNames
from cenote.vllm.misses import Miss

if TYPE_CHECKING:
    from vllm.v1.request import Request

    import cenote
    from cenote.hints import Wish
    from cenote.vllm.groups import Group


@dataclass
class Found:
    """Blocks that every rank has, pinned until they are loaded."""

    start: int
    end: int
    """The blocks cover the tokens from `start` to `end`."""
    leases: list[cenote.Lease]
    without_state: int = 0
    """Tokens after `end` that every group has, but for a recurrent state after them."""
    since: float = field(default_factory=lambda: clock.now())
    is_ordered: bool = False
    """True when vLLM has allocated blocks for the load."""
    block_ids: set[int] = field(default_factory=set)

    def release(self) -> None:
        for lease in self.leases:
            lease.release()
        self.leases = []


class Lookup:
    """The lookups of one engine. They read memory and never wait."""

    def __init__(self, groups: Sequence[Group], alignment: int, repeats: bool = True) -> None:
        self.groups, self.alignment = groups, alignment
        # False if vLLM rebuilds some memory after a hit, which may hold the last token already.
        self.repeats = repeats
        # The namespaces of each group. Empty until the workers have named them: then nothing is found.
        self.ranks: list[list[cenote.Namespace]] = []
        # Names of the blocks of each request, for each group.
        self._named: dict[str, list[BlockNames]] = {}

    def limit(self, request: Request) -> int:
        """Largest end of a hit, in tokens.

        The engine must compute one token to sample from. After a hit of all tokens vLLM computes the
        last one again, with the blocks that were loaded."""
        if not self.ranks:
            return 0
        tokens = request.num_tokens
        if not self.repeats or not all(group.reach.repeats(tokens) for group in self.groups):
            tokens -= 1
        known = (group.known(request) * group.block_tokens for group in self.groups)
        return min(tokens, *known) // self.alignment * self.alignment

    def find(self, request: Request, start: int, end: int) -> Found:
        """The longest hit between these tokens, pinned; empty on a miss."""
        held = [_Held(names) for names in self._names_of(request)]
        try:
            found = self._pin(held, start, end)
            without_state = self._end_without_states(held, found, end) - found
        except BaseException:
            found = start
            raise
        finally:
            if found == start:
                for each in held:
                    each.release()
        return Found(start, found, [lease for each in held for lease in each.leases], without_state)

    def promote(self, request: Request, start: int, end: int) -> list[cenote.Promotion]:
        """Begins to copy blocks of all ranks between these tokens from the cold tier and peers."""
        begun: list[cenote.Promotion | None] = []
        for named in self._names_of(request):
            group, ranks = named.group, named.ranks
            names = named.of(start // group.block_tokens, end // group.block_tokens)
            # A layer with a window needs the last blocks of a hit, and its end is not known yet.
            begun += [rank.promote(each, all=not group.reach.is_whole) for rank, each in zip(ranks, names, strict=True)]
        return [promotion for promotion in begun if promotion is not None]

    def record(self, request: Request, start: int, end: int) -> list[tuple[cenote.Namespace, int]]:
        """Notes an admitted request in the record of each rank with layers that need all blocks.

        The region was asked for the tokens from `start` to `end`. Returns the ranks with a number for the answer."""
        recorded = []
        for named in self._names_of(request):
            if not named.group.reach.is_whole:
                continue
            size = named.group.block_tokens
            for rank, names in zip(named.ranks, named.of(0, end // size), strict=True):
                number = rank.record(names, above=start // size, tokens=request.num_prompt_tokens)
                if number is not None:
                    recorded.append((rank, number))
        return recorded

    def retain(self, request: Request, wish: Wish, saved: Mapping[int, int]) -> None:
        """Asks that the blocks of all ranks stay, of layers that need all of a request's.

        `saved` has, by group, the number of first blocks that were loaded or ordered to be saved. Those of windows and states are few, and each hit marks the ones that it needs."""
        session = wish.session or getattr(request, "session_id", None)
        for named in self._names_of(request):
            if not named.group.reach.is_whole:
                continue
            for rank, names in zip(named.ranks, named.of(0, saved.get(named.group.number, 0)), strict=True):
                rank.retain(names, wish.seconds, priority=wish.priority, session=session, tenant=request.cache_salt)

    def first_missing(self, request: Request, start: int, fetched: int, hit: int, wanted: int) -> Miss | None:
        """The first block behind a hit that a rank lacks, of the groups that need all of theirs. None: they lack none
        that would have made the hit longer.

        vLLM has the tokens up to `start` itself, and those from `fetched` on came from the cold tier or peers."""
        misses: list[tuple[int, Miss]] = []
        for named in self._names_of(request):
            size = named.group.block_tokens
            if not named.group.reach.is_whole:
                continue
            first, last = hit // size, min(hit + self.alignment, wanted) // size
            for rank, names in zip(named.ranks, named.of(first, last), strict=True):
                there = rank.count(names)
                if there < len(names):
                    found, brought = first + there, hit // size - fetched // size
                    name = names[there : there + 1]
                    miss = Miss(request.request_id, wanted // size, found, start // size, brought, clock.unix(), rank, name)
                    misses.append((found * size, miss))
        return min(misses, key=lambda miss: miss[0])[1] if misses else None

    def names(self, request: Request, group: Group, first: int, last: int) -> dict[int, bytes]:
        """Names of a group's blocks with `first <= block < last`, by the number of a rank's namespace."""
        named = next(named for named in self._names_of(request) if named.group is group)
        return {rank.id: names.tobytes() for rank, names in zip(named.ranks, named.of(first, last), strict=True)}

    def forget(self, request_id: str) -> None:
        """Forgets the names of a request that has ended."""
        self._named.pop(request_id, None)

    def _names_of(self, request: Request) -> list[BlockNames]:
        key = str(getattr(request, "request_id", ""))
        named = self._named.get(key)
        if named is None or not all(each.are_of(ranks, request) for each, ranks in zip(named, self.ranks, strict=True)):
            named = [BlockNames(group, ranks, request) for group, ranks in zip(self.groups, self.ranks, strict=True)]
            self._named[key] = named
        return named

    def _pin(self, held: list[_Held], start: int, end: int) -> int:
        """Pins the longest hit, and returns its end."""
        whole = [each for each in held if each.group.reach.is_whole]
        windows = [each for each in held if not each.group.reach.is_whole]
        if windows:
            end = min([end, *(each.whole_end(start, end) for each in whole)])
        shared = False
        while end > start:
            if windows:
                end = self._longest(windows, start, end)
            # Pin windows first: they have few blocks, and pins may be scarce. A block may be
            # evicted between the check and the pin; then it counts as missing.
            if not all([each.pin_window(start, end) for each in windows]):
                continue
            pinned = min([end, *(each.pin_whole(start, end) for each in whole)]) // self.alignment * self.alignment
            if pinned < end and not shared and (share := self._share(whole, start)) > pinned:
                # The first groups and ranks may have taken most pins. Retry with equal shares.
                shared, end = True, min(share, end - self.alignment)
            elif pinned < end and windows:
                end = pinned
            else:
                for each in whole:
                    each.keep((pinned - start) // each.group.block_tokens)
                return max(pinned, start)
        return start

    def _longest(self, windows: Sequence[_Held], start: int, end: int) -> int:
        """The longest end at which these groups have what the next token needs."""
        reaches = [each.group.reach for each in windows]
        return longest_hit(reaches, self.alignment, start, end, lambda place, first, last: windows[place].last_missing(first, last))

    def _end_without_states(self, held: Sequence[_Held], start: int, end: int) -> int:
        """The longest end after `start` if recurrent states were not needed."""
        if start == end or not any(each.group.is_state for each in held):
            return start
        rest = [each for each in held if not each.group.is_state]
        end = min([end, *(each.whole_end(start, end) for each in rest if each.group.reach.is_whole)])
        return self._longest([each for each in rest if not each.group.reach.is_whole], start, end)

    def _share(self, whole: list[_Held], start: int) -> int:
        """The end, in tokens, of equal shares of the taken pins for all groups and ranks."""
        taken = sum(len(lease) for each in whole for lease in each.leases)
        together = sum(self.alignment // each.group.block_tokens * len(each.ranks) for each in whole)
        return start + taken // together * self.alignment


class _Held:
    """Lookup state of one group: blocks checked and blocks pinned."""

    def __init__(self, names: BlockNames) -> None:
        self.group, self.ranks, self.names = names.group, names.ranks, names
        self.leases: list[cenote.Lease] = []
        # First checked block, and one byte per checked block: 1 if every rank has it.
        self.low = 0
        self.there = bytearray()

    def pin(self, first: int, last: int) -> int:
        """Pins blocks from `first` up to the first block that a rank lacks, at most up to `last`.

        Returns the number of that missing block, or `last`."""
        self.release()
        self.leases = [rank.lookup(names) for rank, names in zip(self.ranks, self.names.of(first, last), strict=True)]
        return first + min(len(lease) for lease in self.leases)

    def whole_end(self, start: int, end: int) -> int:
        """The token up to which every rank has all blocks from `start` on."""
        size = self.group.block_tokens
        names = self.names.of(start // size, end // size)
        return start + min(rank.count(each) for rank, each in zip(self.ranks, names, strict=True)) * size

    def pin_whole(self, start: int, end: int) -> int:
        """Pins the blocks between these tokens. Returns the end of the part on all ranks."""
        size = self.group.block_tokens
        return self.pin(start // size, end // size) * size

    def pin_window(self, start: int, end: int) -> bool:
        """Pins the blocks after `start` that token `end` needs. Returns True if all are present."""
        size = self.group.block_tokens
        first, last = max(self.group.reach.first(end), start // size), end // size
        reached = self.pin(first, last)
        if reached < last:
            self.there[reached - self.low] = 0
        return reached == last

    def last_missing(self, first: int, last: int) -> int | None:
        """The last block with `first <= block < last` that a rank lacks, or None."""
        if not self.there:
            self.low = last
        if first < self.low:
            # Check twice as many further blocks each time, so that a long search needs few calls.
            low = max(min(first, self.low - 2 * len(self.there)), 0)
            each = [rank.present(names) for rank, names in zip(self.ranks, self.names.of(low, self.low), strict=True)]
            self.there = bytearray(map(min, *each) if len(each) > 1 else each[0]) + self.there
            self.low = low
        missing = self.there.rfind(0, max(first - self.low, 0), last - self.low)
        return missing + self.low if missing >= 0 else None

    def keep(self, count: int) -> None:
        """Unpins all but the first `count` blocks."""
        for lease in self.leases:
            lease.truncate(count)

    def release(self) -> None:
        for lease in self.leases:
            lease.release()
        self.leases = []
