"""Fixtures of regions. Each has a unique name and is removed after its test."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, ManualTime

import cenote
from cenote import _native


@pytest.fixture(scope="session", autouse=True)
def no_region_of_a_dead_run_is_left() -> None:
    """Removes regions of test runs that were killed: they take the memory that engines need."""
    for path in Path("/dev/shm").glob("cenote-*-*-*"):
        kind, pid, _ = path.name.removeprefix("cenote-").split("-", 2)
        if kind in ("test", "vllm") and pid.isdigit() and not Path("/proc", pid).exists():
            path.unlink(missing_ok=True)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"cenote-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield f"shm:{name}"
    Path("/dev/shm", name).unlink(missing_ok=True)


SMALL: dict[str, Any] = {
    "chunk_size": "256KiB",
    "min_block": "4KiB",
    "max_hosts": 2,
    "pins_per_worker": 112,
    "events": 64,
}


@pytest.fixture
def region(name: str) -> Iterator[cenote.Region]:
    cenote.Region.create(name, "8MiB", **SMALL)
    with cenote.Region.open(name, worker="test", lock_timeout=PATIENCE, host_timeout=PATIENCE) as region:
        yield region


@pytest.fixture
def manual_time(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    """Time that passes when the test says so, for the package's Python code."""
    return ManualTime(monkeypatch)


@pytest.fixture
def fail_loads() -> Iterator[Callable[[int], None]]:
    """Makes every n-th block of later loads fail, until the end of the test."""
    yield _native._fail_loads
    _native._fail_loads(0)
