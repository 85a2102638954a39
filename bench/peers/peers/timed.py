"""Cenote's connector for vLLM with a clock around each call and each load."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from cenote.vllm.connector import CenoteConnector
from cenote.vllm.worker import WorkerSide
from peers.serving import COPIES

# What a call does for a hit. Calls that are not here belong to saving, or to the start.
PARTS = {
    "get_num_new_matched_tokens": "names and lookup",
    "update_state_after_alloc": "orders",
    "build_connector_meta": "orders",
    "update_connector_output": "orders",
    "request_finished": "orders",
    "request_finished_all_groups": "orders",
    "bind_connector_metadata": "loads begun and ended",
    "start_load_kv": "loads begun and ended",
    "get_transfer_results": "loads begun and ended",
    "get_block_ids_with_load_errors": "loads begun and ended",
    "save_kv_layer": "saves",
    "wait_for_save": "saves",
    "take_events": "orders",
    "get_kv_connector_stats": "orders",
}
# Seconds since `take`, by part.
_spent: Counter[str] = Counter()


def take() -> dict[str, float]:
    """The seconds of each part since the last call."""
    spent = dict(_spent)
    _spent.clear()
    return spent


class TimedConnector(CenoteConnector):
    """Counts the wall time of its calls. Calls do not overlap, because engine and worker are one thread."""


def _timed(call: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*arguments: Any, **named: Any) -> Any:
        # A call may call another one of these. The inner time belongs to the inner part.
        began, inside = time.perf_counter(), sum(_spent.values()) - _spent[COPIES]
        try:
            return call(*arguments, **named)
        finally:
            inner = sum(_spent.values()) - _spent[COPIES] - inside
            _spent[part] += time.perf_counter() - began - inner

    return timed


for _name, _part in PARTS.items():
    setattr(TimedConnector, _name, _timed(getattr(CenoteConnector, _name), _part))


def _watch(end: Callable[..., None]) -> Callable[..., None]:
    """Counts the time from the begin of a load to its end, as the worker sees it."""

    @functools.wraps(end)
    def watched(worker: WorkerSide, loading: Any) -> None:
        end(worker, loading)
        _spent[COPIES] += time.monotonic() - loading.begun

    return watched


WorkerSide._end = _watch(WorkerSide._end)  # type: ignore[method-assign]
