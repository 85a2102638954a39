"""vLLM with device memory: its pages are in CPU memory, and a fake device copies them late."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cenote
import models
import pytest
from cenote.device import PageLayout
from cenote.vllm.connector import CenoteConnector
from cenote.vllm.metadata import CenoteMetadata, SaveOrder
from cenote.vllm.parts import Share
from cenote.vllm.settings import Settings
from cenote.vllm.stats import CenoteStats
from cenote.vllm.worker import WorkerSide
from engines import Answer, Engine, in_child
from families import Family, family
from test_families import prompt_of, start, unit_of
from test_families import runs as runs_of_family
from test_sharing import FULL, PROMPT, Job, clean

sys.path.append(str(Path(__file__).parents[1]))
from fake_device import NEVER, FakeDevice, on_storages
from waiting import PATIENCE


@dataclass
class Run:
    """Results of an engine on a fake device."""

    answers: list[Answer]
    staged: str
    """Reason for staging; empty for direct copies."""
    closed: bool
    """True if the device had finished when its memory was closed."""


def with_a_device() -> tuple[FakeDevice, list[cenote.device.DeviceMemory]]:
    """Lets the connector of this process take vLLM's memory for that of a device."""
    from cenote.vllm import worker
    from cenote.vllm.memory import device_memory

    device, memories = FakeDevice(64, seed=1), list[cenote.device.DeviceMemory]()
    # A CPU engine: its events occur at once, and its waits block.
    device.call("engine_is_a_thread", True)

    def kv_memory(caches: Any, num_blocks: int, part: Any, settings: Any, region: Any, backends: Any) -> Any:
        assert "FLASH_ATTN" not in backends.values(), "vLLM runs on a processor"
        memories.append(device_memory(partial(on_storages, device, scatter_below=32 << 10), caches, part, settings, region))
        return memories[-1]

    worker.kv_memory = kv_memory  # type: ignore[assignment]
    return device, memories


def on_a_device(_: Connection, job: Job, faults: dict[str, Any]) -> Run:
    device, memories = with_a_device()
    for call, after in faults.items():
        device.call(call, after) if call == "register_max" else device.fail(call, after)
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


@dataclass
class FamilyRun:
    """Answers of a model of a family, and what its memories said."""

    answers: list[Answer]
    unit: int
    groups: int
    staged: list[str]
    closed: list[bool]
    kernels: int
    """Launches of the kernel that sums blocks."""


def family_on_a_device(_: Connection, model: str, one: Family, region: str, copies: str) -> FamilyRun:
    device, memories = with_a_device()
    engine = start(model, one, region, connector={"gpu_copies": copies})
    unit = unit_of(engine)
    answers = [engine.ask(prompt_of(unit), 24)]
    staged = [memory.why_staged for memory in memories]
    closed = [memory.close(PATIENCE) for memory in memories]
    assert not device.wrong, device.wrong
    return FamilyRun(answers, unit, len(memories), staged, closed, device.calls("cenote_sums"))


@pytest.mark.parametrize("copies", ["direct", "staged"])
@pytest.mark.parametrize("name", ["gpt-oss", "Gemma4", "Gemma4, one group", "Qwen3-Next", "LFM2"])
def test_models_of_each_kind_pass_through_a_device(name: str, copies: str, tmp_path: Path, region: str) -> None:
    """Sliding windows, pages of two sizes in one group, recurrent states, short convolutions.

    MLA has no prefix cache in vLLM on processors; `crates/py/tests/test_device.py` has its pages."""
    one = family(name)
    model = one.make(tmp_path / "model")
    alone = in_child(runs_of_family, model, one, None, [1])
    cold, warm = (in_child(family_on_a_device, model, one, region, copies) for _ in range(2))
    assert (cold.answers[0].cached, warm.answers[0].cached) == (0, 3 * warm.unit)
    assert cold.answers[0].tokens == warm.answers[0].tokens == alone.answers[0].tokens
    assert all(cold.closed + warm.closed)
    assert all(bool(why) == (copies == "staged") for why in cold.staged + warm.staged)
    assert copies == "staged" or warm.kernels > 0
    clean(region)


LAYERS, PAGE, PLACES, SLOTS = 2, 1024, 40, 12


def connector_on(device: FakeDevice, region: cenote.Region, staged: bool = True) -> tuple[CenoteConnector, cenote.Namespace]:
    """The connector's worker side, with memory of a fake device."""
    blocks = region.namespace(b"steps", LAYERS * PAGE)
    group = SimpleNamespace(number=0, layer_names=[])
    part = SimpleNamespace(group=group, blocks=blocks, share=Share(0, 1, 1, 0, 1))
    shards = SimpleNamespace(
        settings=Settings(region=region.name), fails_by_block=True, parts_of=lambda tp_rank: ([part], []), region=region,
        config=SimpleNamespace(lora_config=None, parallel_config=SimpleNamespace(use_ubatching=False)),
    )  # fmt: skip
    connector = CenoteConnector.__new__(CenoteConnector)
    connector.stats, connector._told, connector._scheduler, connector._connector_metadata = CenoteStats(), set(), None, None
    connector._worker = WorkerSide(shards, connector.stats, 0)  # type: ignore[arg-type]
    layers = [(device.base + layer * PLACES * PAGE, PageLayout(PAGE, ((0, PAGE),), PLACES)) for layer in range(LAYERS)]
    [own] = connector._worker.parts[0]
    own.memory = device.of(region, layers, staged=staged, staging_bytes=SLOTS * LAYERS * PAGE)
    return connector, blocks


# The calls of a step that follow its forward pass, as vLLM makes them. Its runner of version 1 defers the end of a step
# with speculative decoding until the drafter has run (`defer_finalize`).
ENDS: dict[str, list[Callable[[CenoteConnector], object]]] = {
    "runner 2": [lambda one: one.wait_for_save(), lambda one: one.get_transfer_results(set()), lambda one: one.clear_connector_metadata()],
    "runner 1, speculation": [
        lambda one: one.get_transfer_results(set()), lambda one: one.wait_for_save(), lambda one: one.clear_connector_metadata(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("runner", ENDS)
def test_no_save_has_what_the_engine_writes_before_its_next_step(region: str, runner: str) -> None:
    """vLLM clears and copies blocks before it calls the connector in a step. Saves that wait for a buffer until then would have
    those bytes, with sums that hold."""
    with cenote.Region.open(region, worker="steps") as opened:
        device = FakeDevice(LAYERS * PLACES * PAGE, seed=3)
        connector, blocks = connector_on(device, opened)
        count = 30
        keys = [bytes([number]) * 32 for number in range(count)]
        for layer in range(LAYERS):
            for number in range(count):
                device.engine_writes((layer * PLACES + number) * PAGE, bytes([1 + number]) * PAGE)
        device.hold(FakeDevice.FROM_GPU)
        connector.bind_connector_metadata(CenoteMetadata(saves=[SaveOrder(0, keys, 0, list(range(count)), None)]))
        connector.start_load_kv(None)  # type: ignore[arg-type]
        for call in ENDS[runner]:
            call(connector)
        # The engine's next step: first its own writes, then the connector's first call.
        for layer in range(LAYERS):
            for number in range(count):
                device.engine_writes((layer * PLACES + number) * PAGE, bytes(PAGE))
        device.hold()
        memory, came = connector._worker.parts[0][0].memory, Counter[str]()  # type: ignore[union-attr]
        assert isinstance(memory, cenote.device.DeviceMemory)

        def all_known() -> bool:
            came.update(memory.take_outcomes())
            return came.total() >= count

        # All ends without a call of the next step.
        device.run_until("the outcomes of all blocks", all_known)
        assert came == {"published": SLOTS, "late": count - SLOTS}
        connector.bind_connector_metadata(CenoteMetadata())
        assert "errors" not in connector.stats.data
        names, back = blocks.alias(keys), bytearray(LAYERS * PAGE)
        found = 0
        for number in range(count):
            with blocks.lookup(names[number : number + 1]) as lease:
                if len(lease):
                    found += 1
                    assert lease.read_into(0, back)
                    assert bytes(back) == bytes([1 + number]) * (LAYERS * PAGE), f"block {number}"
        assert found == SLOTS
        connector._worker.close()  # type: ignore[union-attr]
        assert not device.wrong, device.wrong


def test_a_fault_of_the_last_step_keeps_no_memory(region: str) -> None:
    """The device refuses the events of a save's copies, and is well again when vLLM ends."""
    with cenote.Region.open(region, worker="steps") as opened:
        device = FakeDevice(LAYERS * PLACES * PAGE, seed=4)
        connector, _ = connector_on(device, opened, staged=False)
        connector.bind_connector_metadata(CenoteMetadata(saves=[SaveOrder(0, [bytes(32)], 0, [0], None)]))
        connector.start_load_kv(None)  # type: ignore[arg-type]
        # The first event is the one before the copies.
        device.fail("cuEventRecord", 1)
        for call in ENDS["runner 2"]:
            call(connector)
        device.fail("cuEventRecord", NEVER)
        connector._worker.close()  # type: ignore[union-attr]
        assert device.locked == 0
        assert not device.wrong, device.wrong
