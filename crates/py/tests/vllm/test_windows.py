"""A model with sliding-window layers: each kind of layer has its own KV cache groups."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
import pytest
from engines import BLOCK, Answer, Child, Engine, in_child
from models import WINDOW
from router import Router
from test_events import answers, of_type
from test_sharing import clean

import cenote

PROMPT = 1000
FULL = (PROMPT - 1) // BLOCK * BLOCK


def ask(
    _: Connection, model: str, region: str | None, prompts: list[list[int]], tokens: int = 16, **settings: Any
) -> list[Answer]:
    """Answers to prompts, each with an empty prefix cache in the engine."""
    engine = Engine(model, region, **settings)
    answers = []
    for prompt in prompts:
        engine.forget()
        answers.append(engine.ask(prompt, tokens))
    return answers


def tokens(answers: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


def cached(answers: list[Answer]) -> list[int]:
    return [answer.cached for answer in answers]


def test_an_engine_loads_all_groups_of_another(windows: str, region: str) -> None:
    lengths = (PROMPT, FULL + 1, FULL, PROMPT // 2, WINDOW + BLOCK, WINDOW // 2, BLOCK)
    prompts = [models.prompt(length, 31) for length in lengths]
    alone = in_child(ask, windows, None, prompts, 64)
    # Steps are shorter than the window, so that blocks leave it during the prefill.
    cold = in_child(lambda _: ask(_, windows, region, prompts[:1], 64, max_num_batched_tokens=96, max_num_seqs=8))
    warm = in_child(ask, windows, region, prompts, 64)
    assert tokens(cold) == tokens(alone[:1])
    assert tokens(warm) == tokens(alone)
    assert cached(cold) == [0]
    # Also the last block of a prompt of whole blocks: the windows begin at no block's second token.
    assert cached(warm) == [length // BLOCK * BLOCK for length in lengths]
    with cenote.Region.open(region) as look:
        assert len(look.info()["namespaces"]) == 4
    clean(region)


def without_a_window(_: Connection, model: str, region: str, prompts: list[list[int]]) -> list[Answer]:
    from cenote.vllm import worker

    straight = worker.WorkerSide._start

    def start(self: Any, order: Any, part: Any) -> None:
        if part.group != 1:
            straight(self, order, part)

    worker.WorkerSide._start = start  # type: ignore[method-assign]
    return ask(_, model, region, prompts, 64)


def test_a_missing_window_changes_the_tokens(windows: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 32)
    [cold] = in_child(ask, windows, region, [prompt], 64)
    [wrong] = in_child(without_a_window, windows, region, [prompt])
    assert wrong.cached == FULL
    assert wrong.tokens != cold.tokens


def loses_a_group(_: Connection, model: str, region: str, prompt: list[int], prefix: list[int]) -> list[Answer]:
    engine = Engine(model, region)
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    lookup = scheduler.connector._scheduler.lookup
    answers = [engine.ask(prompt)]
    for group in (0, 2):
        [rank] = lookup.ranks[group]
        assert rank.forget() > 0
        # Hits: none, then the prefix saved again, then the whole prompt.
        for asked in (prefix, prompt, prompt):
            engine.forget()
            answers.append(engine.ask(asked))
    return answers


def test_a_group_without_its_blocks_shortens_the_hit(windows: str, region: str) -> None:
    prompt, prefix = models.prompt(PROMPT, 33), models.prompt(PROMPT, 33)[: PROMPT // 2]
    [alone, short] = in_child(ask, windows, None, [prompt, prefix])
    answers = in_child(loses_a_group, windows, region, prompt, prefix)
    part = PROMPT // 2 // BLOCK * BLOCK
    assert cached(answers) == [0, 0, part, FULL, 0, part, FULL]
    assert tokens(answers) == [alone.tokens, *[short.tokens, alone.tokens, alone.tokens] * 2]
    clean(region)


def test_blocks_of_a_failed_load_are_computed(
    windows: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [models.prompt(PROMPT, number) for number in (34, 35)]
    alone = in_child(ask, windows, None, prompts)
    in_child(ask, windows, region, prompts)
    # Fails each third index of a load, which includes the first block of a window.
    monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", "3")
    failing = in_child(ask, windows, region, prompts)
    monkeypatch.delenv("CENOTE_TEST_FAIL_LOADS")
    assert tokens(failing) == tokens(alone)
    again = in_child(ask, windows, region, prompts)
    assert tokens(again) == tokens(alone)
    assert cached(again) == [FULL, FULL]
    clean(region)


def crowded(_: Connection, model: str, region: str | None, prompts: list[list[int]]) -> tuple[list[list[int]], int]:
    from vllm import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    preempted: list[str] = []
    straight = Scheduler._preempt_request

    def preempt(self: Any, request: Any, *rest: Any, **more: Any) -> None:
        preempted.append(request.request_id)
        straight(self, request, *rest, **more)

    Scheduler._preempt_request = preempt  # type: ignore[method-assign]
    # KV memory for the start of the four requests but not for their end.
    engine = Engine(model, region, num_gpu_blocks_override=130, max_num_seqs=4, max_model_len=736)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    parameters = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    answers = engine.llm.generate(asked, parameters, use_tqdm=False)
    return [list(answer.outputs[0].token_ids) for answer in answers], len(preempted)


def test_preempted_requests_resume_with_the_same_tokens(windows: str, region: str) -> None:
    prompts = [models.prompt(300, number) for number in range(36, 41)]
    alone, preempted = in_child(crowded, windows, None, prompts)
    assert preempted > 0
    for _ in range(2):
        again, preempted = in_child(crowded, windows, region, prompts)
        assert again == alone
        assert preempted > 0
    clean(region)


def test_a_router_gets_events_of_each_group(windows: str, region: str, tmp_path: Path) -> None:
    prompt = models.prompt(PROMPT, 42)
    with Router(tmp_path) as router:
        instance = Child(answers, windows, region, router.config)
        assert instance.receive() == "ready"
        instance.send(prompt)
        assert instance.receive() == "ready"
        blocks = PROMPT // BLOCK
        heard = router.events("CENOTE", of_type("BlockStored", 4 * blocks))
        for group in range(4):
            events = [event for event in heard if event["group_idx"] == group]
            assert [token for event in events for token in event["token_ids"]] == prompt[: blocks * BLOCK]
            kind = ("full_attention", None) if group == 3 else ("sliding_window", WINDOW)
            assert {(event["kv_cache_spec_kind"], event.get("kv_cache_spec_sliding_window")) for event in events} == {kind}
        instance.send(None)
        instance.receive()
        instance.end()
