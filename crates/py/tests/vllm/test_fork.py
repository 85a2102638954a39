"""Forks: a process with an open region forks vLLM's engine, and engine processes fork children."""

from __future__ import annotations

import gc
import os
import traceback
from multiprocessing.connection import Connection

import models
from engines import BLOCK, Answer, Engine, in_child
from test_sharing import FULL, PROMPT, clean

import cenote
from vllm.distributed.kv_transfer import get_kv_transfer_group

PAGE = 64 << 10


def with_a_member(_: Connection, model: str, name: str, prompt: list[int]) -> list[Answer]:
    """Answers of an engine forked by a worker of the region with a pin and a half-written block."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="1", VLLM_WORKER_MULTIPROCESSING_METHOD="fork")
    with cenote.Region.open(name, worker="forker") as region:
        blocks = region.namespace(b"of the forker", PAGE)
        names = blocks.hash_tokens(range(2 * BLOCK), BLOCK)
        assert blocks.publish(names[0], 0, b"a" * PAGE) == "published"
        lease, filling = blocks.lookup(names[:1]), blocks.begin(names[1], 1)
        assert filling is not None
        memoryview(filling)[: PAGE // 2] = b"b" * (PAGE // 2)
        engine = Engine(model, name)
        answers = [engine.ask(prompt) for _ in range(2)]
        engine.llm.llm_engine.engine_core.shutdown()
        memoryview(filling)[PAGE // 2 :] = b"b" * (PAGE // 2)
        assert filling.publish() == "published"
        back = bytearray(PAGE)
        assert lease.read_into(0, back)
        assert back == b"a" * PAGE
        with blocks.lookup(names) as found:
            assert len(found) == 2
            assert found.read_into(1, back)
        assert back == b"b" * PAGE
        lease.release()
    return answers


def with_children(_: Connection, model: str, name: str, prompts: list[list[int]]) -> list[Answer]:
    """Answers of an engine that forks a child after each prompt.

    The child shuts down the inherited connector only. A shutdown of vLLM's engine in a forked child
    breaks the engine, with or without a connector."""
    engine = Engine(model, name)
    answers = []
    for prompt in prompts:
        answers.append(engine.ask(prompt))
        if os.fork() == 0:
            try:
                get_kv_transfer_group().shutdown()
                gc.collect()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    engine.forget()
    return answers + [engine.ask(prompt) for prompt in prompts]


def test_a_worker_of_the_region_may_fork_an_engine(mid: str, region: str) -> None:
    prompt = models.prompt(PROMPT, 31)
    [alone, *_] = in_child(with_children, mid, region, [models.prompt(PROMPT, 30)])
    assert alone.cached == 0
    first, second = in_child(with_a_member, mid, region, prompt)
    assert (first.cached, first.tokens) == (0, second.tokens)
    assert clean(region)["counters"]["pool_workers_recovered_total"] == 0, "a live worker was recovered as dead"


def test_forked_children_of_an_engine_release_nothing(mid: str, region: str) -> None:
    prompts = [models.prompt(PROMPT, seed) for seed in (41, 42, 43)]
    answers = in_child(with_children, mid, region, prompts)
    cold, warm = answers[: len(prompts)], answers[len(prompts) :]
    assert [answer.tokens for answer in cold] == [answer.tokens for answer in warm]
    assert all(answer.cached >= FULL - BLOCK for answer in warm), [answer.cached for answer in warm]
    clean(region)
