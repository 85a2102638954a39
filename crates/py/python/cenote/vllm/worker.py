"""A worker's side: copies between vLLM's KV memory and the region. Every wait has a deadline, and what fails is recomputed."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.logger import init_logger

from cenote.device import DeviceMemory
from cenote.vllm.memory import kv_memory
from cenote.vllm.metadata import short_name

if TYPE_CHECKING:
    import torch

    import cenote
    from cenote.device.loads import DeviceLoad
    from cenote.device.saves import DeviceSave
    from cenote.vllm.metadata import CenoteMetadata, LoadOrder
    from cenote.vllm.shards import Shards
    from cenote.vllm.stats import CenoteStats

logger = init_logger(__name__)


@dataclass
class _Loading:
    """A load that is under way."""

    load: cenote.Load | DeviceLoad
    order: LoadOrder
    begun: float


class WorkerSide:
    """One per worker process."""

    def __init__(self, shards: Shards, stats: CenoteStats, tp_rank: int, pp_rank: int) -> None:
        self.settings, self.stats, self.shards = shards.settings, stats, shards
        self.page_bytes = shards.page_bytes
        self.blocks = shards.rank(tp_rank, pp_rank)
        self.memory: cenote.KvMemory | DeviceMemory | None = None
        self.layers: dict[str, int] = {}
        # Loads of requests that wait, by request.
        self.waiting: dict[str, _Loading] = {}
        # Loads that this step's layers wait for.
        self.now: list[_Loading] = []
        self.saves: list[cenote.Save | DeviceSave] | None = None
        self.failed: set[int] = set()
        self.ended: set[str] = set()
        # A load of this step has failed: what the step computed from it must not be saved.
        self.tainted = False
        # What a device could not do, which threads of ours are told.
        self.faults: deque[Exception] = deque()
        self._told: set[str] = set()

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        """vLLM's KV memory is there."""
        layers = self.shards.config.compilation_config.static_forward_context
        backends = {name: layers[name].get_attn_backend().get_name() for name in caches if name in layers}
        told = self.faults.append
        self.memory, self.layers = kv_memory(caches, self.page_bytes, self.settings, self.shards.region, backends, told)
        if self.memory.block_bytes != self.blocks.block_bytes:
            raise ValueError(
                f"a block of this worker has {self.memory.block_bytes} bytes in {len(caches)} layers, where "
                f"{self.blocks.block_bytes} were expected: its layers are not split as vLLM's defaults say"
            )

    def start_loads(self, metadata: CenoteMetadata) -> None:
        """Begins this step's loads."""
        for order in metadata.loads:
            try:
                self._start(order)
            except Exception:
                self._give_up(order, 0)
                raise

    def _start(self, order: LoadOrder) -> None:
        assert self.memory is not None
        lease = self.blocks.lookup(self.blocks.alias(order.keys))
        count = len(lease)
        if count < len(order.keys):
            self._give_up(order, count)
        self.stats.add("loads")
        if count == 0:
            return
        every = self.settings.fail_loads_every
        load = self.memory.load(lease, order.block_ids[:count], fail_every=every)
        loading = _Loading(load, order, time.monotonic())
        if order.waits:
            # What was given up in part has not ended before the rest has.
            self.ended.discard(order.request_id)
            self.waiting[order.request_id] = loading
        else:
            self.now.append(loading)

    def _give_up(self, order: LoadOrder, start: int) -> None:
        lost = order.block_ids[start:]
        self.failed.update(lost)
        self.stats.add("failed_blocks", len(lost))
        if order.waits:
            self.ended.add(order.request_id)
        else:
            self.tainted = True

    def wait_for_layer(self, name: str) -> None:
        """Waits until the layer of this step's loads is there."""
        layer = self.layers.get(name)
        if layer is None:
            return
        for loading in self.now:
            if not loading.load.wait_layer(layer, self._left(loading)):
                # The layers go on with whatever there is, and the step's result is thrown away.
                self._cancel(loading)

    def save_layer(self, name: str, metadata: CenoteMetadata) -> None:
        """The layer of this step's blocks is computed."""
        layer = self.layers.get(name)
        if layer is None or not metadata.saves:
            return
        for save in self._begin_saves(metadata):
            save.layer(layer)

    def _begin_saves(self, metadata: CenoteMetadata) -> list[cenote.Save | DeviceSave]:
        if self.saves is None:
            assert self.memory is not None
            self.saves = []
            for order in metadata.saves:
                names = self.blocks.alias(order.keys)
                short, parent = [short_name(key) for key in order.keys], short_name(order.parent)
                save = self.memory.save(self.blocks, names, order.depths, order.block_ids, names=short, parent=parent)
                self.saves.append(save)
        return self.saves

    def end_step(self, metadata: CenoteMetadata) -> None:
        """Ends this step's loads, and its saves if they follow from nothing wrong."""
        for loading in self.now:
            self._end(loading)
        self.now = []
        saves = self._begin_saves(metadata) if metadata.saves and not self.tainted else self.saves or []
        for save in saves:
            if self.tainted:
                save.abort()
                continue
            self._count(save.finish())
        self.saves, self.tainted = None, False

    def _count(self, outcomes: dict[str, int]) -> None:
        self.stats.add("saved_blocks", outcomes.get("published", 0))
        self.stats.add("duplicate_blocks", outcomes.get("duplicate", 0))
        refused = outcomes.get("no_room", 0) + outcomes.get("over_quota", 0)
        self.stats.add("refused_blocks", refused + outcomes.get("failed", 0))

    def abort_step(self) -> None:
        """Something went wrong in this step: nothing of it is saved, and nothing is written any more."""
        for loading in self.now:
            self._cancel(loading)
            self._end(loading)
        for save in self.saves or []:
            save.abort()
        self.now, self.saves, self.tainted = [], None, False

    def take_ended(self) -> set[str]:
        """Requests whose loads have ended, whatever came of them."""
        self._hear_of_device()
        for request_id, loading in list(self.waiting.items()):
            if not loading.load.done and self._left(loading) > 0:
                continue
            self._end(loading)
            del self.waiting[request_id]
            self.ended.add(request_id)
        ended, self.ended = self.ended, set()
        return ended

    def _hear_of_device(self) -> None:
        """What came of copies beside the steps."""
        if not isinstance(self.memory, DeviceMemory):
            return
        if outcomes := self.memory.take_outcomes():
            self._count(outcomes)
        while self.faults:
            error = self.faults.popleft()
            self.stats.add("errors")
            kind = f"{type(error).__name__}: {error}"
            if kind not in self._told:
                self._told.add(kind)
                logger.warning("Cenote: copies failed, which counts as a miss: %s", kind, exc_info=error)

    def take_failed(self) -> set[int]:
        """Blocks whose content may not be used."""
        failed, self.failed = self.failed, set()
        return failed

    def close(self) -> None:
        """Stops everything."""
        for loading in [*self.now, *self.waiting.values()]:
            loading.load.cancel()
        for save in self.saves or []:
            save.abort()
        self.now, self.waiting, self.saves = [], {}, None
        if self.memory is not None:
            self.memory.close()

    def _left(self, loading: _Loading) -> float:
        return max(loading.begun + self.settings.timeout - time.monotonic(), 0.0)

    def _cancel(self, loading: _Loading) -> None:
        loading.load.cancel()

    def _end(self, loading: _Loading) -> None:
        """Waits for a load, within its time, and notes what failed."""
        load, order = loading.load, loading.order
        if not load.wait(self._left(loading)):
            self.stats.add("late_loads")
            load.cancel()
        lost = [order.block_ids[place] for place in load.failed()]
        self.failed.update(lost)
        self.tainted |= bool(lost) and not order.waits
        self.stats.add("failed_blocks", len(lost))
        self.stats.add("loaded_blocks", len(load) - len(lost))
        self.stats.add("load_seconds", time.monotonic() - loading.begun)
