"""Facts behind a fingerprint, for `cenote pool diff`."""

import json
import logging

import pytest

import cenote
from cenote.facts import facts_of, key_of, record
from conftest import SMALL

LOGGER = logging.getLogger("facts")


def identity(**facts: object) -> bytes:
    return b"cenote test v1 " + json.dumps({"model": ["digest", None], "cache": {"dtype": "auto", "skip": {}}, **facts}).encode()


def test_facts_are_names_and_texts() -> None:
    assert facts_of(identity(number=3)) == {
        "made by": "cenote test v1", "model": '["digest", null]', "cache, dtype": "auto", "cache, skip": "{}", "number": "3",
    }  # fmt: skip
    # Digests replace long values and salts.
    one, other = (facts_of(identity(**{"overrides": letter * 999, "tenant salt": f"{letter} secret"})) for letter in "ab")
    assert {name for name in one if one[name] != other[name]} == {"overrides", "tenant salt"}
    assert one["overrides"].startswith("999 characters of digest ")
    assert "secret" not in json.dumps([one, other])
    assert facts_of(identity(**{"tenant salt": ""}))["tenant salt"] == ""


def test_facts_are_recorded_once_for_each_namespace(region: cenote.Region) -> None:
    mine, other = (region.namespace(identity(number=number), 4096, label=str(number)) for number in range(2))
    for _ in range(2):
        record(region, region.info(), {mine.id: identity(number=0)}, LOGGER)
    fingerprints = {row["label"]: row["fingerprint"] for row in region.info()["namespaces"]}
    assert json.loads(region.get_object(key_of(fingerprints["0"])) or b"") == facts_of(identity(number=0))
    assert region.get_object(key_of(fingerprints["1"])) is None
    assert region.info()["objects"] == 1
    # Recorded facts are not overwritten.
    record(region, region.info(), {mine.id: identity(number=7), other.id: identity(number=1)}, LOGGER)
    assert json.loads(region.get_object(key_of(fingerprints["0"])) or b"")["number"] == "0"
    assert region.info()["objects"] == 2


def test_a_region_without_room_stores_no_facts(name: str, caplog: pytest.LogCaptureFixture) -> None:
    cenote.Region.create(name, "3MiB", **SMALL)
    with cenote.Region.open(name) as region:
        mine = region.namespace(identity(), 4096)
        record(region, region.info(), {mine.id: identity()}, LOGGER)
        assert region.info()["objects"] == 0
    with caplog.at_level(logging.INFO, "facts"):
        # The region is closed, so every call on it fails.
        record(region, {"region_bytes": 16, "chunk_bytes": 1, "namespaces": [{"id": 0, "fingerprint": "ab"}]}, {0: identity()}, LOGGER)
    assert "cannot record the facts" in caplog.text
