"""Speculative decoding: the region never stores draft tokens, and drafts work after a hit."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import models
import pytest
from engines import BLOCK, Answer, Engine, in_child
from test_sharing import FULL, PROMPT, Job, ask_all, clean

TOKENS = 32
# Prompt lengths: arbitrary, and full blocks plus one, zero and minus one token.
LENGTHS = (PROMPT, 1025, 1024, 1023)


def guesses(
    _: Connection, model: str, region: str | None, prompts: list[list[int]], connector: dict[str, Any], guessing: dict[str, Any]
) -> tuple[list[Answer], float]:
    """Answers to prompts, and the acceptance rate of draft tokens."""
    guessing = {"num_speculative_tokens": 3, **guessing}
    engine = Engine(model, region, connector=connector, speculative_config=guessing, disable_log_stats=False)
    answers = []
    for prompt in prompts:
        engine.forget()
        answers.append(engine.ask(prompt, TOKENS))
    counts = {metric.name: metric.value for metric in engine.llm.get_metrics() if hasattr(metric, "value")}
    made = counts["vllm:spec_decode_num_draft_tokens"]
    assert made > 0
    return answers, counts["vllm:spec_decode_num_accepted_tokens"] / made


def test_draft_tokens_are_not_saved_and_failed_loads_change_no_token(tiny: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The words repeat, so that the n-gram draft finds matches.
    prompts = [models.prompt(50, number) * 10 for number in (54, 55)]
    guessing = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    alone = in_child(ask_all, Job(tiny, None, prompts, TOKENS))
    cold, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", "2")
    failing, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    monkeypatch.delenv("CENOTE_TEST_FAIL_LOADS")
    warm, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    for answers in (cold, failing, warm):
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    assert [answer.cached for answer in warm] == [499 // BLOCK * BLOCK] * 2
    clean(region)


def test_blocks_of_a_draft_model_are_shared_too(tiny: str, region: str) -> None:
    prompts = [models.prompt(length, 60 + number) for number, length in enumerate(LENGTHS)]
    # The draft is the model itself: its tokens are accepted if its blocks are right.
    guessing = {"method": "draft_model", "model": tiny}
    alone = in_child(ask_all, Job(tiny, None, prompts, TOKENS))
    cold, came_true = in_child(guesses, tiny, region, prompts, {}, guessing)
    warm, warm_came_true = in_child(guesses, tiny, region, prompts, {}, guessing)
    assert [answer.tokens for answer in cold] == [answer.tokens for answer in alone]
    assert [answer.tokens for answer in warm] == [answer.tokens for answer in alone]
    assert [answer.cached for answer in warm] == [FULL, 1024, 1024, 992]
    assert min(came_true, warm_came_true) > 0.8
    clean(region)


def test_an_eagle_head_changes_no_token(tiny: str, eagle: str, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [models.prompt(length, 70 + number) for number, length in enumerate(LENGTHS)]
    guessing = {"method": "eagle", "model": eagle}
    alone = in_child(ask_all, Job(tiny, None, prompts, TOKENS))
    cold, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    monkeypatch.setenv("CENOTE_TEST_FAIL_LOADS", "2")
    failing, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    monkeypatch.delenv("CENOTE_TEST_FAIL_LOADS")
    warm, _ = in_child(guesses, tiny, region, prompts, {}, guessing)
    for answers in (cold, failing, warm):
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    assert [answer.cached for answer in warm] == [FULL, 1024, 1024, 992]
    clean(region)
