"""vLLM with device memory: its pages are in CPU memory, and a fake device copies them late."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
import pytest
from engines import Answer, Engine, in_child
from test_sharing import FULL, PROMPT, Job, clean

sys.path.append(str(Path(__file__).parents[1]))
from fake_device import FakeDevice, on_storages
from waiting import PATIENCE


@dataclass
class Run:
    """Results of an engine on a fake device."""

    answers: list[Answer]
    staged: str
    """Reason for staging; empty for direct copies."""
    closed: bool
    """True if the device had finished when its memory was closed."""


def on_a_device(_: Connection, job: Job, faults: dict[str, Any]) -> Run:
    from cenote.vllm import worker
    from cenote.vllm.memory import device_memory

    device, memories = FakeDevice(64, seed=1), []
    # A CPU engine: its events occur at once, and its waits block.
    device.call("engine_is_a_thread", True)
    for call, after in faults.items():
        device.call(call, after) if call == "register_max" else device.fail(call, after)

    def kv_memory(caches: Any, num_blocks: int, part: Any, settings: Any, region: Any, backends: Any) -> Any:
        assert set(backends.values()) == {"CPU_ATTN"}
        memories.append(device_memory(partial(on_storages, device, scatter_below=32 << 10), caches, part, settings, region))
        return memories[-1]

    worker.kv_memory = kv_memory  # type: ignore[assignment]
    engine = Engine(job.model, job.region, connector=job.connector)
    answers = [engine.ask(prompt, job.tokens) for prompt in job.prompts]
    staged = memories[0].why_staged
    # The last saves are published after the steps.
    closed = memories[0].close(PATIENCE)
    assert not device.wrong, device.wrong
    return Run(answers, staged, closed)


def alone(_: Connection, job: Job) -> list[list[int]]:
    engine = Engine(job.model, None)
    return [engine.ask(prompt, job.tokens).tokens for prompt in job.prompts]


@pytest.mark.parametrize("copies", ["direct", "staged"])
def test_an_engine_loads_the_blocks_of_another_through_a_device(tiny: str, region: str, copies: str) -> None:
    connector = {"gpu_copies": copies}
    job = Job(tiny, region, [models.prompt(PROMPT, 41)], connector=connector)
    [expected] = in_child(alone, job)
    cold, warm = (in_child(on_a_device, job, {}) for _ in range(2))
    assert bool(cold.staged) == (copies == "staged")
    assert (cold.answers[0].cached, warm.answers[0].cached) == (0, FULL)
    assert cold.answers[0].tokens == warm.answers[0].tokens == expected
    assert cold.closed
    assert warm.closed
    clean(region)


@pytest.mark.parametrize("faults", [{"cuMemcpyBatchAsync": 100}, {"cuEventQuery": 5}, {"register_max": 0}])
def test_a_failing_device_changes_no_token(tiny: str, region: str, faults: dict[str, Any]) -> None:
    prompts = [models.prompt(PROMPT, number) for number in (42, 43)]
    # tidy: a load that the device has lost is given up, and one that is given up too early changes no token.
    job = Job(tiny, region, prompts, connector={"timeout": 2})
    expected = in_child(alone, job)
    in_child(on_a_device, Job(tiny, region, prompts[:1]), {})
    run = in_child(on_a_device, job, faults)
    assert [answer.tokens for answer in run.answers] == expected
    assert ("page-locked" in run.staged) == ("register_max" in faults)
    assert run.closed == ("cuEventQuery" not in faults)
