"""The worker side: copies between vLLM's KV memory and the region.

Every wait has a deadline. vLLM recomputes blocks that fail to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cenote
from cenote import clock
from cenote.device import DeviceMemory
from cenote.vllm.log import logger_of
from cenote.vllm.memory import kv_memory, tell_locking
from cenote.vllm.metadata import short_name
from cenote.vllm.names import watch_adapters

if TYPE_CHECKING:
    import torch

    from cenote.device import DeviceLoad
    from cenote.vllm.metadata import LoadOrder, LoadPart, SaveOrder
    from cenote.vllm.names import AdapterUse
    from cenote.vllm.shards import Part, Shards
    from cenote.vllm.stats import CenoteStats

    # Number of a group, the save of its blocks, and the adapter that computed them.
    _Saving = tuple[int, cenote.Save, AdapterUse | None]

    # Namespace, hashes, depths, blocks, names and parent of a request's blocks.
    _Described = tuple[cenote.Namespace, cenote.Hashes, Sequence[int], Sequence[int], Sequence[int], int]

logger = logger_of(__name__)

# The longest wait of a step without work: it delays a request that arrives meanwhile.
_IDLE_SECONDS = 0.001


@dataclass
class _Open:
    """A part of this rank, and vLLM's memory of it."""

    part: Part
    memory: cenote.KvMemory | DeviceMemory | None = None
    locking_told: int = 0
    """What the log has of page-locking."""


@dataclass
class _Loading:
    """A load in progress of one group's blocks."""

    load: cenote.Load | DeviceLoad
    order: LoadOrder
    part: LoadPart
    begun: float


def _described(order: SaveOrder, own: _Open) -> _Described:
    """A request's blocks, as `DeviceMemory.save` takes them."""
    blocks, count = own.part.blocks, len(order.keys)
    names = [short_name(key) for key in order.keys]
    return blocks, blocks.alias(order.keys), range(order.first, order.first + count), order.block_ids, names, short_name(order.parent)


class WorkerSide:
    """The worker side of one worker process."""

    def __init__(self, shards: Shards, stats: CenoteStats, tp_rank: int) -> None:
        self.settings, self.stats, self.shards = shards.settings, stats, shards
        self.fails_by_block = shards.fails_by_block
        parts, self.facts = shards.parts_of(tp_rank)
        # The parts of each of vLLM's groups. A group may have none on this rank.
        self.parts: dict[int, list[_Open]] = {}
        for part in parts:
            self.parts.setdefault(part.group.number, []).append(_Open(part))
        self.loaded = watch_adapters() if shards.config.lora_config is not None else None
        self.split_steps = shards.config.parallel_config.use_ubatching
        # Per layer name: number of its group, and number of the layer in the group.
        self.layers: dict[str, tuple[int, int]] = {}
        # Per group: number of first layers that this step has computed, if in order.
        self.computed: dict[int, int] = {}
        # Loads of waiting requests, by request id.
        self.waiting: dict[str, list[_Loading]] = {}
        # Saves of this step from the processor's memory, with their groups. A GPU saves all at the
        # step's end.
        self.saves: list[_Saving] | None = None
        self.failed: set[int] = set()
        # Requests with lost blocks, for models where vLLM gets failed requests, not failed blocks.
        self.lost: set[str] = set()
        self.ended: set[str] = set()
        self._told: set[str] = set()

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        """Registers vLLM's KV memory. Raises ValueError if it does not match the groups."""
        known = self.shards.config.compilation_config.static_forward_context
        backends = {name: known[name].get_attn_backend().get_name() for name in caches if name in known}
        for part in self._all():
            group = part.part.group
            if missing := set(group.layer_names) - caches.keys():
                raise ValueError(f"vLLM has no KV memory of layers {', '.join(sorted(missing))}")
            part.memory = kv_memory(caches, self.shards.num_blocks, part.part, self.settings, self.shards.region, backends)
            self.layers |= {name: (group.number, layer) for layer, name in enumerate(group.layer_names)}

    def _all(self) -> list[_Open]:
        return [part for parts in self.parts.values() for part in parts]

    def begin_step(self) -> None:
        """Aborts unfinished saves of the previous step. vLLM may have reassigned their blocks."""
        # If the last step had no last call.
        self.leave_step()
        if self.saves is not None:
            count = len(self.saves)
            self.abort_step()
            raise RuntimeError(f"vLLM did not end its last step, so its {count} saves are aborted")

    def start_loads(self, orders: Sequence[LoadOrder]) -> None:
        """Begins this step's loads. Reports every load that cannot begin as failed."""
        wrong: Exception | None = None
        for order in orders:
            self.waiting[order.request_id] = []
            for part in order.parts:
                try:
                    self._start(order, part)
                except Exception as error:
                    self._note_lost(order, part.block_ids)
                    wrong = error
        if wrong is not None:
            raise wrong

    def _start(self, order: LoadOrder, part: LoadPart) -> None:
        use = order.adapter
        if use is not None and (self.loaded is None or self.loaded.is_another(use.number, use.path, use.adapter)):
            self.stats.add("unnamed_blocks", len(part.block_ids))
            self._note_lost(order, part.block_ids)
            return
        for own in self.parts.get(part.group, ()):
            blocks, memory = own.part.blocks, own.memory
            assert memory is not None
            lease = blocks.lookup(part.names_in(blocks))
            count = len(lease)
            if count < len(part.block_ids):
                self._note_lost(order, part.block_ids[count:])
            self.stats.add("loads")
            if count == 0:
                continue
            if isinstance(memory, DeviceMemory):
                load = memory.load(lease, part.block_ids[:count], timeout=self.settings.timeout)
            else:
                load = memory.load(lease, part.block_ids[:count])
            self.waiting[order.request_id].append(_Loading(load, order, part, clock.now()))

    def _note_lost(self, order: LoadOrder, block_ids: list[int]) -> None:
        self.stats.add("failed_blocks", len(block_ids))
        if self.fails_by_block:
            self.failed.update(block_ids)
        elif block_ids:
            self.lost.add(order.request_id)

    def save_layer(self, name: str, orders: Sequence[SaveOrder]) -> None:
        """Saves a computed layer of this step's blocks.

        If vLLM splits steps, the call covers only a half of the blocks. Then `end_step` copies all
        layers."""
        if name not in self.layers or not orders or self.split_steps:
            return
        group, layer = self.layers[name]
        saves = self._begin_saves(orders)
        if layer != self.computed.get(group, 0):
            # A save copies all earlier layers too, and one of them is not computed yet.
            return
        self.computed[group] = layer + 1
        for of_group, save, _ in saves:
            if of_group == group:
                save.layer(layer)

    def _begin_saves(self, orders: Sequence[SaveOrder]) -> list[_Saving]:
        if self.saves is None:
            self.saves, self.computed = [], {}
            for order, own in self._of_this_rank(orders):
                if isinstance(own.memory, cenote.KvMemory):
                    blocks, hashes, depths, block_ids, names, parent = _described(order, own)
                    save = own.memory.save(blocks, hashes, depths, block_ids, names=names, parent=parent)
                    self.saves.append((order.group, save, order.adapter))
        return self.saves

    def _of_this_rank(self, orders: Sequence[SaveOrder]) -> Iterator[tuple[SaveOrder, _Open]]:
        for order in orders:
            for own in self.parts.get(order.group, ()):
                if own.part.share.writes(order.keys[0]):
                    yield order, own

    def end_step(self, orders: Sequence[SaveOrder]) -> None:
        """Publishes this step's saves, except those from another adapter."""
        saves = self._begin_saves(orders) if orders else self.saves or []
        uses = {order.adapter for order in orders if order.adapter is not None}
        others = {use for use in uses if not self._was_computed_with(use)}
        for _, save, use in saves:
            if use in others:
                self.stats.add("unnamed_blocks", len(save))
                save.abort()
                continue
            self._count(save.finish())
        self.saves = None
        self._save_from_devices(orders, others)

    def _save_from_devices(self, orders: Sequence[SaveOrder], others: set[AdapterUse]) -> None:
        """Hands the blocks of all requests to the devices, one call for each memory."""
        of_memory: dict[int, tuple[DeviceMemory, list[_Described]]] = {}
        for order, own in self._of_this_rank(orders):
            if not isinstance(own.memory, DeviceMemory):
                continue
            if order.adapter in others:
                self.stats.add("unnamed_blocks", len(order.keys))
                continue
            of_memory.setdefault(id(own), (own.memory, []))[1].append(_described(order, own))
        for memory, described in of_memory.values():
            memory.save(described)

    def _was_computed_with(self, use: AdapterUse) -> bool:
        """True if the step certainly used this adapter: its number loaded no other content."""
        return self.loaded is not None and self.loaded.is_only(use.number, use.path, use.adapter) and use.adapter.holds()

    def _count(self, outcomes: dict[str, int]) -> None:
        self.stats.add("saved_blocks", outcomes.get("published", 0))
        self.stats.add("duplicate_blocks", outcomes.get("duplicate", 0))
        self.stats.add("refused_blocks", sum(outcomes.get(name, 0) for name in ("no_room", "over_quota", "failed", "late")))
        self.stats.add("busy_blocks", outcomes.get("busy", 0))

    def abort_step(self) -> None:
        """Aborts the saves of this step, after an error."""
        for _, save, _ in self.saves or []:
            save.abort()
        self.saves = None

    def await_load(self) -> None:
        """Waits a moment for a request's loads, in a step without other work.

        vLLM begins the next such step at once, and its many steps would take the processor from the
        copies."""
        waiting = next(iter(self.waiting.values()), [])
        until = clock.now() + _IDLE_SECONDS
        for loading in waiting:
            loading.load.wait(max(min(until - clock.now(), self._left(loading)), 0.0))

    def leave_step(self) -> None:
        """Ends the saves of this step that have no buffer yet: vLLM may clear or copy their blocks in its next
        step before it calls the connector."""
        for part in self._all():
            if isinstance(part.memory, DeviceMemory):
                part.memory.end_step()

    def take_ended(self) -> tuple[set[str], set[str]]:
        """Requests with ended loads, and the subset of them with lost blocks."""
        try:
            self._hear_of_devices()
        except Exception as error:
            # Requests wait for what follows.
            self._tell("outcomes of saves are not known", f"{type(error).__name__}: {error}")
        for request_id, loadings in list(self.waiting.items()):
            if any(not loading.load.done and self._left(loading) > 0 for loading in loadings):
                continue
            del self.waiting[request_id]
            self.ended.add(request_id)
            for loading in loadings:
                self._end(loading)
        ended, self.ended = self.ended, set()
        lost = self.lost & ended
        self.lost -= ended
        return ended, lost

    def _hear_of_devices(self) -> None:
        """Collects outcomes and errors of copies that devices ended between steps."""
        for part in self._all():
            if not isinstance(part.memory, DeviceMemory):
                continue
            if outcomes := part.memory.take_outcomes():
                self._count(outcomes)
            part.locking_told = tell_locking(part.memory, part.locking_told)
            for error in part.memory.take_errors():
                self._tell("copies failed, which counts as a miss", error)

    def _tell(self, what: str, error: str) -> None:
        """Counts an error, and logs it once."""
        self.stats.add("errors")
        if error not in self._told:
            self._told.add(error)
            logger.warning("Cenote: %s: %s", what, error)

    def take_failed(self) -> set[int]:
        """Returns and clears the ids of vLLM's blocks with invalid content."""
        failed, self.failed = self.failed, set()
        return failed

    def close(self) -> None:
        """Cancels all loads, aborts all saves and closes the KV memory."""
        try:
            # A fault of the last step is asked for once more, so that its memory is not kept.
            self.leave_step()
        except Exception as error:
            self._tell("the last step did not end", f"{type(error).__name__}: {error}")
        for loadings in self.waiting.values():
            for loading in loadings:
                loading.load.cancel()
        for _, save, _ in self.saves or []:
            save.abort()
        self.waiting, self.saves = {}, None
        for part in self._all():
            if part.memory is not None:
                part.memory.close()

    def _left(self, loading: _Loading) -> float:
        return max(loading.begun + self.settings.timeout - clock.now(), 0.0)

    def _end(self, loading: _Loading) -> None:
        """Waits for a load until its deadline and records its failed blocks."""
        load, order = loading.load, loading.order
        if not load.wait(self._left(loading)):
            self.stats.add("late_loads")
            load.cancel()
        lost = [loading.part.block_ids[place] for place in load.failed()]
        self._note_lost(order, lost)
        self.stats.add("loaded_blocks", len(load) - len(lost))
        self.stats.add("load_seconds", clock.now() - loading.begun)
