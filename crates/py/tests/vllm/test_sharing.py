"""Sharing between vLLM instances on one region, compared with an engine without a connector."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
import pytest
from engines import BLOCK, Answer, Child, Engine, in_child

import cenote

PROMPT = 2000
FULL = (PROMPT - 1) // BLOCK * BLOCK


@dataclass
class Job:
    """An engine and its prompts."""

    model: str
    region: str | None
    prompts: list[list[int]]
    tokens: int = 16
    role: str = "kv_both"
    connector: dict[str, Any] | None = None


def ask_all(_: Connection, job: Job) -> list[Answer]:
    engine = Engine(job.model, job.region, job.role, job.connector)
    # Warm-up, so that compilation is not part of a prompt's cost. It saves one block that no other
    # prompt has.
    engine.ask(models.prompt(BLOCK + 1, 999), 2)
    return [engine.ask(prompt, job.tokens) for prompt in job.prompts]


def clean(region: str) -> dict[str, Any]:
    """Checks a region without users: no leaks and no damage.

    The open recovers orphans of dead workers, so `gc` finds nothing to reclaim."""
    with cenote.Region.open(region) as check:
        report = check.check(payloads=True)
        assert report["is_clean"], report
        assert (report["reserved"], report["pinned"], report["draining"]) == (0, 0, 0)
        done = check.gc()
        assert not any(done.pop("recovered").values()), done
        assert not any(done.values()), done
        return report | {"counters": check.counters()}


def test_an_instance_loads_the_prefix_of_another(mid: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 1)
    [alone] = in_child(ask_all, Job(mid, None, [prompt], 64))
    [cold] = in_child(ask_all, Job(mid, region, [prompt], 64))
    [warm] = in_child(ask_all, Job(mid, region, [prompt], 64))
    assert (alone.cached, cold.cached) == (0, 0)
    assert warm.cached >= 1900
    assert cold.tokens == alone.tokens
    assert warm.tokens == alone.tokens
    # The cost of the first token.
    [cold] = in_child(ask_all, Job(mid, region, [models.prompt(PROMPT, 2)], 1))
    [warm] = in_child(ask_all, Job(mid, region, [models.prompt(PROMPT, 2)], 1))
    print(f"\nprefill of {PROMPT} tokens: {cold.cpu_seconds:.3f} s cold, {warm.cpu_seconds:.3f} s warm (CPU)")
    assert (cold.cached, warm.cached) == (0, FULL), "the engine computes the end of the prompt, which fills no block"
    clean(region)


def test_prompts_around_full_blocks_give_the_same_tokens(tiny: str, region: str) -> None:
    prompts = [models.prompt(length, 3) for length in (PROMPT, PROMPT - 1, FULL + 1, FULL, BLOCK + 1, BLOCK, 7)]
    alone = in_child(ask_all, Job(tiny, None, prompts))
    in_child(ask_all, Job(tiny, region, prompts[:1]))
    warm = in_child(ask_all, Job(tiny, region, prompts))
    assert [answer.tokens for answer in warm] == [answer.tokens for answer in alone]
    # Later prompts are prefixes of the first, which vLLM's own cache has by then.
    assert warm[0].cached == FULL
    clean(region)


def test_a_prompt_of_whole_blocks_is_loaded_whole(tiny: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine computed the last block of 32 tokens to sample from one."""
    prompts = [models.prompt(length, 30 + length) for length in (FULL, 2 * BLOCK, BLOCK)]
    alone = in_child(ask_all, Job(tiny, None, prompts))
    cold = in_child(ask_all, Job(tiny, region, prompts))
    warm = in_child(ask_all, Job(tiny, region, prompts))
    monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", "2")
    failing = in_child(ask_all, Job(tiny, region, prompts))
    for answers in (cold, warm, failing):
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    assert [answer.cached for answer in warm] == [FULL, 2 * BLOCK, BLOCK]
    assert [answer.cached for answer in failing] == [0, 0, 0], "the first block of each load fails"
    clean(region)


def in_halves(_: Connection, job: Job) -> tuple[list[Answer], list[bool]]:
    """An engine that announces layers after half of a step's tokens."""
    from cenote.vllm import worker

    straight = worker.WorkerSide.__init__

    def made(self: Any, shards: Any, *rest: Any) -> None:
        whole, shards.config = shards.config, copy.copy(shards.config)
        shards.config.parallel_config = copy.copy(whole.parallel_config)
        shards.config.parallel_config.ubatch_size = 2
        assert shards.config.parallel_config.use_ubatching
        straight(self, shards, *rest)
        shards.config = whole

    begun: list[bool] = []
    end_step = worker.WorkerSide.end_step

    def ends(self: Any, orders: Any) -> None:
        if orders:
            begun.append(self.saves is not None)
        end_step(self, orders)

    worker.WorkerSide.__init__, worker.WorkerSide.end_step = made, ends  # type: ignore[method-assign]
    return ask_all(_, job), begun


def test_steps_computed_in_halves_are_saved_at_their_end(tiny: str, region: str) -> None:
    prompts = [models.prompt(PROMPT, 22)]
    [alone] = in_child(ask_all, Job(tiny, None, prompts))
    [cold], begun = in_child(in_halves, Job(tiny, region, prompts))
    assert begun
    assert not any(begun), "no copy starts before both halves are computed"
    [warm] = in_child(ask_all, Job(tiny, region, prompts))
    assert warm.cached == FULL
    assert cold.tokens == warm.tokens == alone.tokens
    clean(region)


def permuted(_: Connection, job: Job) -> list[Answer]:
    from cenote.vllm import worker

    straight = worker.kv_memory
    worker.kv_memory = lambda caches, *rest: straight(dict(zip(caches, reversed(caches.values()), strict=True)), *rest)
    return ask_all(_, job)


def test_wrong_kv_changes_the_tokens(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 4)
    [cold] = in_child(ask_all, Job(tiny, region, [prompt]))
    [wrong] = in_child(permuted, Job(tiny, region, [prompt]))
    assert wrong.cached == FULL
    assert wrong.tokens != cold.tokens


def test_failed_loads_change_no_token(tiny: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [models.prompt(PROMPT, number) for number in (5, 6)]
    alone = in_child(ask_all, Job(tiny, None, prompts))
    in_child(ask_all, Job(tiny, region, prompts))
    for every in (2, 1):
        monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", str(every))
        answers = in_child(ask_all, Job(tiny, region, prompts))
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    monkeypatch.delenv("CENOTE_TEST_FAIL_LOADS")
    assert [answer.tokens for answer in in_child(ask_all, Job(tiny, region, prompts))] == [
        answer.tokens for answer in alone
    ]
    clean(region)


def test_a_decode_instance_loads_the_blocks_of_a_prefill_instance(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 7)
    [alone] = in_child(ask_all, Job(tiny, None, [prompt], 64))
    [prefill] = in_child(ask_all, Job(tiny, region, [prompt], 1, role="kv_producer"))
    before = clean(region)["ready"]
    [decode] = in_child(ask_all, Job(tiny, region, [prompt], 64, role="kv_consumer"))
    assert prefill.tokens == alone.tokens[:1]
    assert decode.cached == FULL
    assert decode.tokens == alone.tokens
    assert clean(region)["ready"] == before, "a consumer saves nothing"


def salted(_: Connection, job: Job) -> list[int]:
    engine = Engine(job.model, job.region)
    cached = []
    for salt in ("one", "two", "one"):
        engine.forget()
        prompt = {"prompt_token_ids": job.prompts[0], "cache_salt": salt}
        cached.append(engine.llm.generate([prompt], use_tqdm=False)[0].num_cached_tokens)
    return cached


def test_tenants_with_different_salts_share_nothing(tiny: str, region: str) -> None:
    assert in_child(salted, Job(tiny, region, [models.prompt(PROMPT, 8)])) == [0, 0, FULL]
    [other] = in_child(ask_all, Job(tiny, region, [models.prompt(PROMPT, 9)], connector={"tenant_salt": "a"}))
    [again] = in_child(ask_all, Job(tiny, region, [models.prompt(PROMPT, 9)], connector={"tenant_salt": "b"}))
    assert (other.cached, again.cached) == (0, 0)


def preempted(_: Connection, job: Job) -> tuple[list[list[int]], int]:
    # KV memory for two of the four concurrent prompts.
    engine = Engine(job.model, job.region, num_gpu_blocks_override=2 * (PROMPT // BLOCK) + 20, max_num_seqs=4)
    from vllm import SamplingParams

    asked = [{"prompt_token_ids": prompt} for prompt in job.prompts]
    parameters = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    answers = engine.llm.generate(asked, parameters, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers], sum(a.num_cached_tokens or 0 for a in answers)


def test_preempted_requests_resume_with_the_same_tokens(tiny: str, region: str) -> None:
    prompts = [models.prompt(PROMPT // 2, number) for number in range(10, 16)]
    alone, _ = in_child(preempted, Job(tiny, None, prompts))
    for _ in range(2):
        tokens, _ = in_child(preempted, Job(tiny, region, prompts))
        assert tokens == alone
    clean(region)


def region_goes(_: Connection, job: Job) -> list[Answer]:
    engine = Engine(job.model, job.region)
    answers = [engine.ask(job.prompts[0], 64)]
    assert job.region is not None
    Path("/dev/shm", job.region.removeprefix("shm:")).unlink()
    engine.forget()
    answers.append(engine.ask(job.prompts[0], 64))
    answers.append(engine.ask(job.prompts[1], 64))
    return answers


def test_an_engine_survives_the_removal_of_its_region(tiny: str, region: str) -> None:
    prompts = [models.prompt(PROMPT, number) for number in (17, 18)]
    alone = in_child(ask_all, Job(tiny, None, prompts, 64))
    with_it, without, other = in_child(region_goes, Job(tiny, region, prompts))
    assert with_it.tokens == without.tokens == alone[0].tokens
    assert other.tokens == alone[1].tokens


def serve(pipe: Connection, model: str, region: str) -> None:
    """Answers prompts until it receives None."""
    engine = Engine(model, region)
    pipe.send(("said", "ready"))
    while (prompt := pipe.recv()) is not None:
        engine.forget()
        pipe.send(("said", engine.ask(prompt)))


def dies(_: Connection, model: str, region: str, prompt: list[int], page: int) -> None:
    engine = Engine(model, region)
    cenote._native._kill_at("save.page", page)
    engine.ask(prompt)


def test_instances_killed_during_a_save_affect_no_other(tiny: str, region: str) -> None:
    kills, shared = 20, models.prompt(PROMPT, 20)
    [alone] = in_child(ask_all, Job(tiny, None, [shared]))
    others = [Child(serve, tiny, region) for _ in range(2)]
    assert [other.receive() for other in others] == ["ready"] * 2
    others[0].send(shared)
    assert others[0].receive().tokens == alone.tokens
    pages = 4 * (PROMPT // BLOCK)
    for kill in range(kills):
        victim = Child(dies, tiny, region, models.prompt(PROMPT, 100 + kill), 1 + kill * pages // kills)
        assert victim.end() == -9, "it must die during a save"
        for other in others:
            other.send(shared)
        for answer in [other.receive() for other in others]:
            assert answer.tokens == alone.tokens
            assert answer.cached == FULL
    for other in others:
        other.send(None)
        other.receive()
        other.end()
    report = clean(region)
    assert report["counters"]["pool_reads_damaged_total"] == 0


def with_two_ranks(_: Connection, job: Job, lose: bool) -> list[Answer]:
    # One core per rank; by default vLLM wants one NUMA node per rank.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
    engine = Engine(job.model, job.region, tensor_parallel_size=2, distributed_executor_backend="mp")
    answers = [engine.ask(prompt) for prompt in job.prompts]
    if lose:
        from cenote.vllm.settings import Settings
        from cenote.vllm.shards import Shards

        config = engine.llm.llm_engine.vllm_config
        settings = Settings.of(config.kv_transfer_config.kv_connector_extra_config)
        scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
        shards = Shards(config, settings, scheduler.kv_cache_config, "lost", asks_peers=False)
        [part], _ = shards.parts_of(1)
        assert part.blocks.forget() > 0
        engine.forget()
        answers.append(engine.ask(job.prompts[0]))
    return answers


def test_a_hit_needs_every_ranks_shard(tiny: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 21)
    [cold] = in_child(with_two_ranks, Job(tiny, region, [prompt]), False)
    warm, missing = in_child(with_two_ranks, Job(tiny, region, [prompt]), True)
    assert (warm.cached, missing.cached) == (FULL, 0)
    assert cold.tokens == warm.tokens == missing.tokens
    clean(region)


def with_shards(_: Connection, job: Job, ranks: int) -> list[Answer]:
    more: dict[str, Any] = {}
    if ranks == 2:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        more = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    engine = Engine(job.model, job.region, connector=None if job.region is None else {"head_shards": 2}, **more)
    return [engine.ask(prompt, 64) for prompt in job.prompts]


@pytest.mark.parametrize("saving", [1, 2])
def test_engines_with_other_numbers_of_ranks_share_blocks(tiny: str, region: str, saving: int) -> None:
    prompt = models.prompt(PROMPT, 24)
    loading = 3 - saving
    [alone] = in_child(with_shards, Job(tiny, None, [prompt]), loading)
    [cold] = in_child(with_shards, Job(tiny, region, [prompt]), saving)
    [warm] = in_child(with_shards, Job(tiny, region, [prompt]), loading)
    assert (cold.cached, warm.cached) == (0, FULL)
    assert cold.tokens == warm.tokens == alone.tokens
    clean(region)
