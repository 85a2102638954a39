"""Real weights, from packages of the Python index (`cargo xtask model`): their text is that of an engine without a connector.

vLLM for processors packs KV for the instruction set, and codecs are refused there, so blocks are raw."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from engines import BLOCK, Answer, Engine, in_child
from test_sharing import clean

FOLDER = os.environ.get("CENOTE_TEST_MODELS")
NAMES = ["smollm2", "gemma3-270m"]
ROOT = Path(__file__).parents[4]
# English with names, tables and code.
TEXTS = [ROOT / "ARCHITECTURE.md", ROOT / "docs/guides/operate.md", ROOT / "docs/internals/design.md"]
PROMPT, OUTPUT = 1200, 32
FULL = (PROMPT - 1) // BLOCK * BLOCK


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> str:
    folder = Path(FOLDER or "", request.param)
    if not FOLDER or not (folder / "config.json").is_file():
        pytest.skip(f"there is no {request.param} in CENOTE_TEST_MODELS; run the tests with `cargo xtask vllm`")
    return str(folder)


@dataclass
class Job:
    """An engine, and how often it answers the prompts. It forgets its own cache before each number of `forgets`."""

    model: str
    region: str | None
    rounds: int = 1
    forgets: set[int] = field(default_factory=set)


def answers(_: Connection, job: Job) -> list[list[Answer]]:
    engine = Engine(job.model, job.region)
    tokenizer = engine.llm.get_tokenizer()
    prompts = [tokenizer.encode(text.read_text())[:PROMPT] for text in TEXTS]
    assert all(len(prompt) == PROMPT for prompt in prompts)
    rounds = []
    for number in range(job.rounds):
        if number in job.forgets:
            engine.forget()
        rounds.append([engine.ask(prompt, OUTPUT) for prompt in prompts])
    return rounds


def tokens(of: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in of]


def test_the_text_of_every_hit_is_that_of_no_cache(model: str, region: str) -> None:
    [alone] = in_child(answers, Job(model, None))
    cold, own, back = in_child(answers, Job(model, region, rounds=3, forgets={2}))
    [other] = in_child(answers, Job(model, region))
    assert len({tuple(answer.tokens) for answer in alone}) == len(TEXTS), "each prompt has an answer of its own"
    for name, hits, cached in [("cold", cold, 0), ("own cache", own, FULL), ("region", back, FULL), ("another engine", other, FULL)]:
        assert tokens(hits) == tokens(alone), name
        assert [answer.cached for answer in hits] == [cached] * len(TEXTS), name
    clean(region)
