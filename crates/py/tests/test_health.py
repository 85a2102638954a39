"""Damage of an open region: the process stops using it, and logs each change once."""

import logging
from pathlib import Path

import pytest
from waiting import until

import cenote
from cenote.health import HealthLog

PAGE = 4096
# Offset in the superblock of the word with the region's length.
LENGTH = 24


def await_health(region: cenote.Region, *, degraded: bool) -> None:
    until(lambda: f"degraded: {degraded}, but it is {region.degraded}", lambda: (region.degraded is not None) == degraded)


def test_damage_and_its_repair_are_logged_once(
    region: cenote.Region, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("test")
    log = HealthLog(region, logger)
    blocks = region.namespace(b"model", PAGE)
    names = blocks.hash_tokens(range(16), 16)
    assert blocks.publish(names[0], 0, bytes(PAGE)) == "published"
    with caplog.at_level(logging.INFO, "test"):
        log.look()
        assert not caplog.records
        with Path("/dev/shm", name.removeprefix("shm:")).open("r+b") as file:
            file.seek(LENGTH)
            file.write(b"damaged!")
        await_health(region, degraded=True)
        assert blocks.count(names) == 0
        assert blocks.publish(names[0], 0, bytes(PAGE)) == "no_room"
        log.look()
        log.look()
        await_health(region, degraded=False)
        assert blocks.count(names) == 1
        log.look()
        log.look()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]
    assert "superblock" in caplog.text
