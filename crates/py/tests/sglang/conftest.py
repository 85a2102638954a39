"""Fixtures of regions and SGLang settings."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import servers

import cenote


@pytest.fixture(autouse=True, scope="session")
def settings() -> Iterator[None]:
    """Publishes settings for the whole session, because threads of a server may read them late."""
    with servers.published(served_model_name="demo"):
        yield


@pytest.fixture
def name() -> Iterator[str]:
    name = f"cenote-sglang-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield f"shm:{name}"
    Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.fixture
def region(name: str) -> str:
    cenote.Region.create(name, "16MiB", chunk_size="256KiB", min_block="4KiB", max_hosts=2, pins_per_worker=112)
    return name
