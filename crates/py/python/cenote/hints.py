"""Hints of clients and routers about KV: the envelope `kv_hints` of vLLM, Dynamo and SGLang.

An action that is unknown or malformed is counted and does nothing: senders of hints are ahead of servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SECONDS_MAX = 86_400
"""Longest time that KV may be kept: a day."""
PRIORITY_MAX = 99
_ACTIONS_MAX = 64


@dataclass(frozen=True)
class Wish:
    """That a request's KV stay in the region after its end; 0 seconds end an earlier wish."""

    seconds: int
    priority: int = 0
    session: str | None = None


def read(envelope: object) -> tuple[Wish | None, int]:
    """The wish in an envelope, and the number of actions that are unknown. Never raises.

    Of several wishes the longest counts, with the largest priority. Each request looks in all tiers and shares what
    it computes, so `kv.fetch`, `kv.prefetch` and `kv.share` need nothing more."""
    actions = _field(envelope, "actions")
    if not isinstance(actions, list | tuple):
        return None, 1
    wishes, unknown = [], max(len(actions) - _ACTIONS_MAX, 0)
    for action in actions[:_ACTIONS_MAX]:
        kind, version, payload = (_field(action, name) for name in ("action_type", "action_version", "payload"))
        if not isinstance(kind, str) or not isinstance(version, str) or version.split(".")[0] != "1":
            unknown += 1
            continue
        match kind.removeprefix("kv."):
            case "retain" | "pin":
                wish = _wish(payload)
                if wish is None:
                    unknown += 1
                else:
                    wishes.append(wish)
            case "demote" | "release":
                wishes.append(Wish(0))
            case "fetch" | "prefetch" | "share":
                pass
            case _:
                unknown += 1
    if not wishes:
        return None, unknown
    sessions = [wish.session for wish in wishes if wish.session is not None]
    longest, largest = max(wish.seconds for wish in wishes), max(wish.priority for wish in wishes)
    return Wish(longest, largest, sessions[-1] if sessions else None), unknown


def _wish(payload: object) -> Wish | None:
    seconds, priority, session = (_field(payload, name) for name in ("ttl_seconds", "priority", "session_id"))
    priority = 0 if priority is None else priority
    if type(seconds) is not int or type(priority) is not int or seconds < 0:
        return None
    name = session if isinstance(session, str) and session else None
    return Wish(min(seconds, SECONDS_MAX), min(max(priority, 0), PRIORITY_MAX), name)


def _field(value: object, name: str) -> Any:
    """A field of an object of JSON, or of a typed message."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
