"""The envelope of KV hints, which a client may fill with anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cenote
import pytest
from cenote.hints import Wish, read


def _action(kind: str, payload: Any = None, version: str = "1.0") -> dict[str, Any]:
    return {"action_id": "a", "action_type": kind, "action_version": version, "payload": payload or {}}


def _envelope(*actions: Any) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([], None),
        ([_action("kv.retain", {"ttl_seconds": 30})], Wish(30)),
        ([_action("retain", {"ttl_seconds": 30, "priority": 200, "session_id": "s"})], Wish(30, 99, "s")),
        ([_action("kv.pin", {"ttl_seconds": 10**9, "priority": -1}, "1")], Wish(86_400)),
        ([_action("kv.demote")], Wish(0)),
        ([_action("kv.release"), _action("kv.retain", {"ttl_seconds": 5})], Wish(5)),
        ([_action("kv.fetch", {"anything": 1}), _action("kv.prefetch"), _action("kv.share")], None),
    ],
)
def test_wishes_are_read(actions: list[Any], expected: Wish | None) -> None:
    assert read(_envelope(*actions)) == (expected, 0)


def test_a_typed_message_is_read_as_its_json() -> None:
    action = SimpleNamespace(**_action("kv.retain", {"ttl_seconds": 7}))
    assert read(SimpleNamespace(protocol_version="1", message_id="m", actions=[action])) == (Wish(7), 0)


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        "kv.retain",
        {"actions": {"kv.retain": 5}},
        _envelope(None),
        _envelope(_action("kv.explode")),
        _envelope(_action("kv.retain", {"ttl_seconds": 5}, "2.0")),
        _envelope(_action("kv.retain", {"ttl_seconds": 5}) | {"action_version": 1}),
        _envelope(_action("kv.retain", {"ttl_seconds": "5"})),
        _envelope(_action("kv.retain", {"ttl_seconds": True})),
        _envelope(_action("kv.retain", {"ttl_seconds": -5})),
        _envelope(_action("kv.retain", {"ttl_seconds": 5.5})),
        _envelope(_action("kv.retain", {"ttl_seconds": 5, "priority": "high"})),
        _envelope(_action("kv.retain", [5])),
    ],
)
def test_what_is_unknown_is_counted(envelope: Any) -> None:
    assert read(envelope) == (None, 1)


def test_an_endless_envelope_is_read_in_part() -> None:
    assert read(_envelope(*[_action("kv.explode")] * 10_000)) == (None, 10_000)


def test_a_wish_is_kept_and_counted(region: cenote.Region) -> None:
    names = region.namespace(b"n" * 32, 64)
    hashes = names.hash_tokens(list(range(64)), 16)
    assert region.retained["retained_blocks"] == 0
    names.retain(hashes, 60, priority=3, session="s", tenant="t")
    for seconds in (-1.0, 86_401.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is not a time to keep blocks"):
            names.retain(hashes, seconds)
    region.close()
    names.retain(hashes, 60)
    assert region.retained == {}
