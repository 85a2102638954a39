"""Clients ask that a request's KV stay: the envelope of hints, in vLLM's own field or in `kv_transfer_params`."""

from __future__ import annotations

from typing import Any

import pytest
from test_counts import BLOCKS, Side, region
from test_groups import full, sliding
from waiting import until

import cenote
from cenote.vllm.differences import hints_of

__all__ = ["region"]


def _envelope(**payload: Any) -> dict[str, Any]:
    action = {"action_id": "a", "action_type": "kv.retain", "action_version": "1.0", "payload": payload}
    unknown = {"action_id": "b", "action_type": "kv.explode", "action_version": "1.0", "payload": {}}
    return {"protocol_version": "0.1", "message_id": "m", "actions": [action, unknown]}


def _ended(region: cenote.Region, *specs: Any, hints: Any = None, params: Any = None) -> Side:
    """A request that asked for something and has ended."""
    side = Side(region, *specs)
    side.request.kv_hints, side.request.kv_transfer_params = hints, params
    side.request.cache_salt, side.request.session_id = "t", "s"
    side.side.requests["r"] = side.request
    # The last block is not saved.
    side.side.saved["r"] = {group.number: BLOCKS - 1 for group in side.side.groups}
    side.side._forget("r")
    return side


@pytest.mark.parametrize("where", ["vLLM's field", "kv_hints", "kv_hint"])
def test_a_wish_keeps_the_blocks_of_a_request(region: cenote.Region, where: str) -> None:
    envelope = _envelope(ttl_seconds=600)
    given = {"hints": envelope} if where == "vLLM's field" else {"params": {where: envelope}}
    side = _ended(region, full(), sliding(64), **given)
    assert side.stats.data == {"wishes": 1, "hints_unknown": 1}
    # Of the group that needs all blocks.
    until("the wish", lambda: region.retained["retained_blocks"] == BLOCKS - 1)
    assert region.retained["retain_lost_total"] == 0


def test_a_request_without_a_wish_keeps_nothing(region: cenote.Region) -> None:
    given: list[Any] = [None, {}, {"kv_hints": None}, {"do_remote_decode": True}, {"kv_hints": "nonsense"}]
    # All live at once: each has a namespace by its identity.
    sides = [_ended(region, full(), params=params) for params in given]
    assert [side.stats.data for side in sides] == [{}, {}, {}, {}, {"hints_unknown": 1}]
    assert region.retained["retained_blocks"] == 0


def test_a_request_that_shares_nothing_keeps_nothing(region: cenote.Region) -> None:
    side = Side(region, full())
    side.request.kv_transfer_params = {"kv_hints": _envelope(ttl_seconds=600)}
    assert hints_of(side.request) is not None
    side.side.requests["r"] = side.request
    side.side.unnamed.add("r")
    side.side._forget("r")
    assert side.stats.data == {}
