"""The facts behind a fingerprint, kept in the region for `cenote pool diff` (docs/format.md#object-row)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import cenote

# Fewest chunks of a region that keeps facts: they take one.
_CHUNKS_MIN = 16
# Digits of a fingerprint in the key; a key has at most 56 bytes.
_KEY_DIGITS = 32
# Longer values are named by a digest.
_LONGEST = 200


def facts_of(identity: bytes) -> dict[str, str]:
    """The facts of an identity, which is a name, a space and a JSON object: names and texts. What lies in another object is named by
    its path."""
    maker, brace, rest = identity.decode().partition("{")
    facts = json.loads(brace + rest)
    if facts.get("tenant salt"):
        # Not the salt itself: the region is not to hold it.
        facts["tenant salt"] = _digest(facts["tenant salt"])
    return {"made by": maker.strip()} | _flat(facts)


def key_of(fingerprint: str) -> str:
    """The key of the object with the facts."""
    return f"cenote/facts/{fingerprint[:_KEY_DIGITS]}"


def record(region: cenote.Region, info: Mapping[str, Any], identities: Mapping[int, bytes], logger: logging.Logger) -> None:
    """Records the facts of namespaces, unless they are there. `info` is the region's, `identities` are by the namespaces' numbers. A
    region without room keeps none, which is no fault."""
    if info["region_bytes"] // info["chunk_bytes"] < _CHUNKS_MIN:
        return
    try:
        for row in info["namespaces"]:
            key = key_of(row["fingerprint"])
            if row["id"] in identities and region.get_object(key) is None:
                region.put_object(key, json.dumps(facts_of(identities[row["id"]]), sort_keys=True).encode())
    except cenote.CenoteError as error:
        logger.info("Cenote: the facts behind the fingerprint are not recorded, so `cenote pool diff` cannot compare it: %s", error)


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}, {inner}": text for inner, text in _flat(value).items()}
            continue
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        found[name] = text if len(text) <= _LONGEST else f"{len(text)} characters of digest {_digest(text)}"
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
