"""Facts behind a fingerprint, stored in the region for `cenote pool diff`.

See docs/internals/format.md#object-row."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

import cenote

# Fewest chunks of a region that stores facts, because the facts take one chunk.
_CHUNKS_MIN = 16
# Digits of a fingerprint in the key; a key has at most 56 bytes.
_KEY_DIGITS = 32
# Characters of the longest value stored as is. A digest replaces longer values.
_LONGEST = 200


def facts_of(identity: bytes) -> dict[str, str]:
    """The facts of an identity: names and texts. An identity is a maker, a space and a JSON object.

    The name of a nested fact is its path."""
    maker, brace, rest = identity.decode().partition("{")
    facts = json.loads(brace + rest)
    if facts.get("tenant salt"):
        # Store a digest, because the region must not contain the salt.
        facts["tenant salt"] = _digest(facts["tenant salt"])
    return {"made by": maker.strip()} | _flat(facts)


def key_of(fingerprint: str) -> str:
    """The key of the object with the facts of a fingerprint."""
    return f"cenote/facts/{fingerprint[:_KEY_DIGITS]}"


def record(region: cenote.Region, info: Mapping[str, Any], identities: Mapping[int, bytes], logger: logging.Logger) -> None:
    """Stores the facts of namespaces in the region, unless they are present.

    Facts of models that have no namespace any more are removed.

    `info` is `Region.info`. `identities` are by namespace id. A region without room stores no
    facts; that is not an error."""
    if info["region_bytes"] // info["chunk_bytes"] < _CHUNKS_MIN:
        return
    try:
        for row in info["namespaces"]:
            key = key_of(row["fingerprint"])
            if row["id"] in identities and region.get_object(key) is None:
                region.drop_old_facts()
                region.put_object(key, json.dumps(facts_of(identities[row["id"]]), sort_keys=True).encode())
    except cenote.CenoteError as error:
        logger.info("Cenote: cannot record the facts of the fingerprint, so `cenote pool diff` cannot compare it: %s", error)


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
