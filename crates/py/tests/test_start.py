"""Log lines of a connector about its region at start."""

import logging
from typing import Any

import pytest

import cenote
from cenote.start import given_of_new, log_ignored, log_start


def lines(region: cenote.Region, namespaces: list[cenote.Namespace], caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "start"):
        log_start(region.name, region.info(), [namespace.id for namespace in namespaces], logging.getLogger("start"))
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def fingerprint(region: cenote.Region, label: str) -> str:
    rows: list[dict[str, Any]] = region.info()["namespaces"]
    return next(str(row["fingerprint"])[:12] for row in rows if row["label"] == label)


def test_the_start_line_has_block_counts_and_fingerprint(region: cenote.Region, caplog: pytest.LogCaptureFixture) -> None:
    mine = region.namespace(b"mine", 4096, label="mine")
    own = fingerprint(region, "mine")
    said = f"Cenote: region {region.name} has 8 MiB and holds %d blocks, %d of them for this engine (fingerprint {own})"
    # An empty region causes no warning.
    assert lines(region, [mine], caplog) == [("INFO", said % (0, 0))]
    other = region.namespace(b"other", 4096)
    for number in range(3):
        assert other.publish(bytes([number + 1]) * 16, 0, bytes(4096)) == "published"
    info, warning = lines(region, [mine], caplog)
    assert info == ("INFO", said % (3, 0))
    assert warning[0] == "WARNING"
    assert "holds 3 blocks of 1 other fingerprints and none for this engine" in warning[1]
    assert f"`cenote pool diff --region {region.name} {own}`" in warning[1]
    assert mine.publish(bytes([9]) * 16, 0, bytes(4096)) == "published"
    assert lines(region, [mine], caplog) == [("INFO", said % (4, 1))]


def test_the_start_line_names_the_first_of_many_ranks(region: cenote.Region, caplog: pytest.LogCaptureFixture) -> None:
    ranks = [region.namespace(f"rank {rank}".encode(), 4096, label=str(rank)) for rank in range(6)]
    named = ", ".join(fingerprint(region, str(rank)) for rank in range(4))
    [(_, said)] = lines(region, ranks, caplog)
    assert said.endswith(f"(fingerprints {named} and 2 more)")


def test_settings_without_effect_are_logged_by_their_given_names(caplog: pytest.LogCaptureFixture) -> None:
    differences = [("size", "8 MiB", "4 MiB"), ("pins_per_worker", "7168", "1792"), ("mode", "0660", "0600")]
    for given, said in (
        ({"create_size": "8MiB", "mode": "0660"}, "create_size is 8 MiB, and the region has 4 MiB; mode is 0660, and the region has 0600."),
        ({"create_size": "8MiB"}, "create_size is 8 MiB, and the region has 4 MiB."),
    ):
        caplog.clear()
        log_ignored("shm:kv", differences, given_of_new(given), logging.getLogger("start"))
        [warning] = caplog.records
        assert f"have no effect: {said} Leave" in warning.getMessage()
    caplog.clear()
    log_ignored("shm:kv", differences, given_of_new({"region": "shm:kv"}), logging.getLogger("start"))
    log_ignored("shm:kv", [], given_of_new({"create_size": "8MiB"}), logging.getLogger("start"))
    assert caplog.records == []
