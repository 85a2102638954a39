"""The settings that all adapters have, and how they create a region."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cenote
from cenote.attachment import SETTINGS, Attachment, Wanted, check_names, chunk_for, mode_of

MIB = 1 << 20
logger = logging.getLogger(__name__)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"cenote-attachment-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield f"shm:{name}"
    Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("block", "chunk"),
    [(None, 64 * MIB), (1, 2 * MIB), (MIB // 2, 2 * MIB), (MIB // 2 + 1, 4 * MIB), (5 * MIB, 32 * MIB), (129 * MIB, 512 * MIB), (512 * MIB, 512 * MIB)],
)
def test_a_default_chunk_has_four_blocks_within_the_limits_of_a_region(block: int | None, chunk: int) -> None:
    """Adapters of SGLang and TensorRT-LLM once asked for chunks of 1 GiB, which no region has."""
    assert chunk_for(block) == chunk
    with pytest.raises(ValueError, match="largest chunk"):
        chunk_for(512 * MIB + 1)


def test_a_mode_is_octal_digits() -> None:
    """Only vLLM's adapter named the setting; others passed on the words of `int`."""
    assert [mode_of("here", given) for given in (None, "0660", "660", 660, "0o640")] == [None, 0o660, 0o660, 0o660, 0o640]
    for wrong in ("rw", "0680", "1777", "", True, 6.6, [6]):
        with pytest.raises(ValueError, match="here: mode is .*octal permissions"):
            mode_of("here", wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "here: no region is given"),
        ({"region": ""}, "here: no region is given"),
        ({"region": "shm:a", "regoin": "x"}, "here: unknown regoin; known are chunk_size, cold"),
    ],
)
def test_unknown_names_and_a_missing_region_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_names("here", given, SETTINGS)


def test_an_attachment_creates_its_region_once_and_names_what_has_no_effect(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    given = {"region": name, "create_size": "64MiB", "mode": "0660", "tenant_salt": "salt"}
    wanted = Wanted.of("here", given)
    assert (wanted.name, wanted.salt, wanted.host_slot) == (name, "salt", 0)
    first = Attachment(wanted, "test", 3 * MIB, logger)
    assert first.region.info()["chunk_bytes"] == 16 * MIB
    assert Path("/dev/shm", name.removeprefix("shm:")).stat().st_mode & 0o777 == 0o660
    identity = b'cenote test v1 {"a": 1}'
    blocks = first.namespace(identity, 4096, label="model", block_tokens=16, num_layers=2, starts=True)
    assert f"region {name} has 64 MiB and holds 0 blocks" in caplog.text
    second = Attachment(Wanted.of("here", given | {"mode": "0600"}), "test", 4096, logger)
    assert "mode is 0600, and the region has 0660" in caplog.text
    assert second.namespace(identity, 4096, label="model").id == blocks.id
    first.look()
    second.close()
    # A block that fits into no chunk: an adapter that cannot start leaves no open region.
    with pytest.raises((ValueError, cenote.CenoteError)):
        first.namespace(b'cenote test v1 {"a": 2}', 32 * MIB, label="model", starts=True)
    assert first.region.closed


def test_a_wrong_host_slot_is_named() -> None:
    with pytest.raises(ValueError, match="here: host_slot is 'one'"):
        Wanted.of("here", {"region": "shm:a", "host_slot": "one"})
