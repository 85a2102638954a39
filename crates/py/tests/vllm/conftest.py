"""Fixtures of regions and models for the tests with vLLM."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import engines  # First: sets the environment that vLLM and the hub's client read on import.
import models
import pytest

import cenote


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return models.make_elsewhere(tmp_path_factory.mktemp("tiny"), "tiny")


@pytest.fixture(scope="session")
def mid(tmp_path_factory: pytest.TempPathFactory) -> str:
    return models.make_elsewhere(tmp_path_factory.mktemp("mid"), "mid")


@pytest.fixture(scope="session")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return models.make_elsewhere(tmp_path_factory.mktemp("eagle"), "eagle")


@pytest.fixture(scope="session")
def windows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return models.make_elsewhere(tmp_path_factory.mktemp("windows"), "windows")


@pytest.fixture(autouse=True)
def no_engine_is_left() -> Iterator[None]:
    """Kills engines of a failed test. Otherwise the run would wait for them at its end."""
    yield
    for child in list(engines.Child.running):
        child.kill()


def made(size: str, chunk_size: str) -> Iterator[str]:
    name = f"cenote-vllm-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    cenote.Region.create(f"shm:{name}", size, chunk_size=chunk_size, max_hosts=2, events=1024)
    yield f"shm:{name}"
    Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.fixture
def region() -> Iterator[str]:
    yield from made("1GiB", "16MiB")


@pytest.fixture
def small_region() -> Iterator[str]:
    """A region with room for about 250 blocks of the smallest model."""
    yield from made("34MiB", "2MiB")
