"""Faults of the connector and aborted requests: every request gets its answer, nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
import pytest
from engines import BLOCK, Answer, Engine, in_child
from test_sharing import Job, ask_all, clean

import cenote

PROMPT = 500
FULL = (PROMPT - 1) // BLOCK * BLOCK


def scheduler_of(engine: Engine) -> Any:
    return engine.llm.llm_engine.engine_core.engine_core.scheduler


def get_connector() -> Any:
    """The connector of the worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


def worker_of(engine: Engine) -> Any:
    return get_connector()._worker


def with_faults(_: Connection, model: str, region: str, prompt: list[int]) -> list[tuple[str, Answer, int]]:
    """Asks the prompt repeatedly, each time with another failing call of the connector."""
    engine = Engine(model, region)
    scheduler, worker = scheduler_of(engine).connector._scheduler, worker_of(engine)
    answers = []
    for holder, call in (
        (scheduler.lookup, "find"), (scheduler, "_part"), (scheduler, "_saves_of"), (scheduler, "workers_said"),
        (scheduler, "_let_go_of_old"), (worker, "_start"), (worker, "_begin_saves"),
    ):  # fmt: skip
        engine.forget()
        faults = []

        def fails(*_: Any, call: str = call, faults: list[str] = faults, **__: Any) -> Any:
            faults.append(call)
            raise RuntimeError("a fault, for a test")

        setattr(holder, call, fails)
        answer = engine.ask(prompt)
        delattr(holder, call)
        answers.append((call, answer, len(faults)))
    engine.forget()
    answers.append(("nothing", engine.ask(prompt), 1))
    return answers


@pytest.mark.parametrize("model", ["tiny", "windows"])
def test_every_request_ends_despite_faults_of_the_connector(model: str, region: str, request: pytest.FixtureRequest) -> None:
    folder, prompt = request.getfixturevalue(model), models.prompt(PROMPT, 51)
    [alone] = in_child(ask_all, Job(folder, None, [prompt]))
    in_child(ask_all, Job(folder, region, [prompt]))
    for call, answer, faults in in_child(with_faults, folder, region, prompt):
        assert answer.tokens == alone.tokens, call
        assert faults > 0, call
        if call == "nothing":
            assert answer.cached == FULL
    clean(region)


def steps(engine: Engine, until: Callable[[], bool]) -> None:
    """Runs steps of an engine until a condition holds."""
    for _ in range(1000):
        if until():
            return
        engine.llm.llm_engine.step()
    raise AssertionError("1000 steps were not enough")


def begin(engine: Engine, name: str, prompt: list[int], tokens: int) -> None:
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    engine.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, parameters)


def aborts(_: Connection, model: str, region: str, prompt: list[int]) -> tuple[Answer, int]:
    engine = Engine(model, region)
    scheduler, worker = scheduler_of(engine), worker_of(engine)
    straight, free = worker.take_ended, scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    before = free()
    # The load stays in progress for vLLM until `take_ended` reports its end.
    worker.take_ended = lambda: (set(), set())
    begin(engine, "one", prompt, 16)
    steps(engine, lambda: bool(worker.waiting))
    engine.llm.llm_engine.abort_request(["one"])
    for _ in range(3):
        engine.llm.llm_engine.step()
    assert free() < before, "blocks under a load are not reassigned"
    worker.take_ended = straight
    steps(engine, lambda: free() == before)
    assert not worker.waiting
    assert not scheduler.connector._scheduler.found
    with cenote.Region.open(region) as look:
        pinned = look.check()["pinned"]
    engine.forget()
    return engine.ask(prompt), pinned


def test_a_request_aborted_during_its_load_leaks_nothing(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 52)
    [cold] = in_child(ask_all, Job(tiny, region, [prompt]))
    answer, pinned = in_child(aborts, tiny, region, prompt)
    assert pinned == 0
    assert (answer.tokens, answer.cached) == (cold.tokens, FULL)
    clean(region)


def rolls_out(_: Connection, model: str, region: str, prompt: list[int]) -> tuple[int, int, int]:
    """Blocks in the region before a roll-out, after the running request, and after a new one."""
    engine = Engine(model, region)
    begin(engine, "one", prompt, 200)
    request = scheduler_of(engine).requests
    steps(engine, lambda: any(each.num_output_tokens > 50 for each in request.values()))
    with cenote.Region.open(region) as look:
        before = look.check()["ready"]
    # False, because a request runs on, so vLLM could not reset everything. The connector did.
    assert not engine.llm.reset_prefix_cache(reset_connector=True)
    steps(engine, lambda: not request)
    with cenote.Region.open(region) as look:
        old = look.check()["ready"]
        engine.forget()
        engine.ask(prompt)
        return before, old, look.check()["ready"]


def test_blocks_of_old_weights_are_not_saved_after_a_roll_out(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 53)
    before, old, new = in_child(rolls_out, tiny, region, prompt)
    assert before > PROMPT // BLOCK
    assert old == before, "present blocks stay, and the running request saves none"
    assert new == old + (PROMPT + 15) // BLOCK
    # An instance without the roll-out still finds the earlier blocks.
    [other] = in_child(ask_all, Job(tiny, region, [prompt]))
    assert other.cached == FULL


def changes_weights(_: Connection, model: str, region: str, prompt: list[int], version: str | None) -> list[int]:
    """Hit tokens before a roll-out of weights, after it, and after a new save."""
    connector = {}
    if version is not None:
        Path(version).write_text("step 1")
        connector["weights_version_file"] = version
    engine = Engine(model, region, connector=connector)
    found = [engine.ask(prompt).cached]
    if version is not None:
        Path(version).write_text("step 2")
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    found.append(engine.ask(prompt).cached)
    engine.forget()
    return [*found, engine.ask(prompt).cached]


def test_engines_share_after_a_roll_out_only_under_equal_weight_versions(tiny: str, region: str, tmp_path: Path) -> None:
    prompt, version = models.prompt(PROMPT, 56), str(tmp_path / "version")
    assert in_child(changes_weights, tiny, region, prompt, None) == [0, 0, FULL]
    # Weights without a version are unknown to others. Engines with equal versions share.
    assert in_child(changes_weights, tiny, region, prompt, version) == [0, 0, FULL]
    assert in_child(changes_weights, tiny, region, prompt, version) == [FULL, FULL, FULL]
    clean(region)


def pauses(_: Connection, model: str, region: str, prompt: list[int], version: str | None) -> list[int]:
    """Hit tokens before and after a pause that clears vLLM's cache but keeps the weights."""
    engine = Engine(model, region, connector={} if version is None else {"weights_version_file": version})
    core = engine.llm.llm_engine.engine_core.engine_core
    found = [engine.ask(prompt).cached]
    core.pause_scheduler("abort", clear_cache=True)
    core.resume_scheduler()
    return [*found, engine.ask(prompt).cached]


def test_an_engine_shares_after_a_pause_only_with_a_weight_version(tiny: str, region: str, tmp_path: Path) -> None:
    prompt, version = models.prompt(PROMPT, 57), tmp_path / "version"
    version.write_text("step 1")
    assert in_child(pauses, tiny, region, prompt, str(version)) == [0, FULL]
    assert in_child(pauses, tiny, region, prompt, None) == [0, 0]
    # The engine without a version did not affect the others.
    assert in_child(pauses, tiny, region, prompt, str(version)) == [FULL, FULL]
    clean(region)


def leaves_a_step(_: Connection, model: str, region: str, prompts: list[list[int]]) -> tuple[list[Answer], list[int], list[str]]:
    """Answers; the number of unfinished saves at the start of each step; failed calls."""
    engine = Engine(model, region)
    connector = get_connector()
    worker, end, begin_step = connector._worker, connector._worker.end_step, connector._worker.begin_step
    begun: list[int] = []

    def begins() -> None:
        begun.append(len(worker.saves or []))
        begin_step()

    worker.begin_step = begins
    # vLLM's V1 runner skips the end of saves on pipeline stages with speculative decoding.
    worker.end_step = lambda orders: None
    answers = [engine.ask(prompts[0], 1)]
    worker.end_step = end
    answers += [engine.ask(prompt) for prompt in prompts[1:]]
    return answers, begun, [where for where, _ in connector._told]


def test_an_unfinished_save_is_aborted_at_the_next_step(tiny: str, region: str) -> None:
    prompts = [models.prompt(PROMPT, number) for number in (58, 59)]
    alone = in_child(ask_all, Job(tiny, None, prompts))
    answers, begun, wrong = in_child(leaves_a_step, tiny, region, prompts)
    assert begun[:2] == [0, 1], "the second step found one unfinished save"
    assert sum(begun) == 1
    assert wrong == ["_begin_step"]
    assert answers[1].tokens == alone[1].tokens
    # The region has the blocks of the second prompt and none of the first.
    later = in_child(ask_all, Job(tiny, region, [prompts[1], prompts[0]]))
    assert [answer.tokens for answer in later] == [alone[1].tokens, alone[0].tokens]
    assert [answer.cached for answer in later] == [FULL, 0]
    clean(region)


def test_the_region_is_closed_even_if_the_workers_close_fails(tiny: str, region: str) -> None:
    assert in_child(closes_badly, tiny, region)
    clean(region)


def closes_badly(_: Connection, model: str, region: str) -> bool:
    engine = Engine(model, region)
    connector, shared = get_connector(), scheduler_of(engine).connector._shards.region

    def fails() -> None:
        raise RuntimeError("a fault, for a test")

    connector._worker.close = fails
    connector.shutdown()
    scheduler_of(engine).connector.shutdown()
    return bool(connector._shards.region.closed and shared.closed)
