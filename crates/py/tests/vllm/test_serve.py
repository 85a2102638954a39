"""`vllm serve` as in docs/guides/vllm.md: two servers on one region, one of them with two engines."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
from engines import BLOCK
from servers import Server
from test_sharing import FULL, PROMPT, clean
from waiting import until

from cenote.vllm.stats import COUNTERS


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a region that a server creates."""
    name = f"cenote-vllm-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


def test_servers_share_blocks_and_export_counters(tiny: str, name: str, tmp_path: Path) -> None:
    prompts = [models.prompt(PROMPT, 80 + number) for number in range(4)]
    with contextlib.ExitStack() as ends:
        one = Server(tiny, f"shm:{name}", tmp_path / "one")
        ends.callback(one.end)
        two = Server(tiny, f"shm:{name}", tmp_path / "two", "--data-parallel-size", "2")
        ends.callback(two.end)
        one.wait()
        two.wait()
        # All counters exist before the first request.
        for name_of in COUNTERS:
            assert one.counter(name_of) == {"0": 0}, name_of
            assert two.counter(name_of) == {"0": 0, "1": 0}, name_of
        cold = [one.ask(prompt) for prompt in prompts]
        assert [cached for _, cached in cold] == [0] * len(prompts)
        assert [two.ask(prompt) for prompt in prompts] == [(text, FULL) for text, _ in cold]
        blocks = FULL // BLOCK
        # A step exports its counts at its end, which is after its answer.
        until(lambda: two.get("/metrics"), lambda: sum(two.counter("loaded_blocks").values()) >= len(prompts) * blocks)
        # One engine computed each block of each prompt, and another one loaded it once.
        assert sum(one.counter("saved_blocks").values()) >= len(prompts) * blocks
        assert sum(two.counter("hit_blocks").values()) == len(prompts) * blocks
        assert sum(two.counter("failed_blocks").values()) == 0
        assert set(two.counter("lookup_blocks")) == {"0", "1"}
    clean(f"shm:{name}")
