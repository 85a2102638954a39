"""Models of today's families: hits of the region and of vLLM's own cache give the tokens of no cache.

`families.py` has the models. A recurrent state is shared only at the borders that vLLM offers."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cenote
import pytest
import vllm
from cenote.vllm.version import NEWEST, OLDEST
from engines import Answer, Child, Engine, in_child
from families import FAMILIES, VOCABULARY, Family, amplify, family
from test_sharing import clean

TOKENS = 24
WITH_STATES = [one for one in FAMILIES if one.has_states]


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY), k=length)


def prompt_of(unit: int, seed: int = 1) -> list[int]:
    """A prompt of three units and a token, which reads the state before it."""
    return prompt(3 * unit + 1, seed)


@dataclass
class Run:
    """Answers, tokens between two ends of hits, kinds of groups, and the connector's counters."""

    answers: list[Answer]
    unit: int
    groups: list[str]
    counts: dict[str, int] = field(default_factory=dict)


def start(model: str, one: Family, region: str | None, **more: Any) -> Engine:
    amplify()
    return Engine(model, region, **{**one.settings(), **more})


def unit_of(engine: Engine) -> int:
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    if scheduler.connector is not None:
        return int(scheduler.connector._scheduler.lookup.alignment)
    config = scheduler.kv_cache_config
    return int(max(group.kv_cache_spec.block_size for group in config.kv_cache_groups))


def runs(_: Connection, model: str, one: Family, region: str | None, seeds: list[int], again: bool = False) -> Run:
    """Asks a prompt for each seed, each with an empty prefix cache; `again`: then the last one once more."""
    engine = start(model, one, region)
    unit, answers = unit_of(engine), []
    if not engine.llm.llm_engine.vllm_config.cache_config.enable_prefix_caching:
        return Run([], unit, [])
    for seed in seeds:
        engine.forget()
        answers.append(engine.ask(prompt_of(unit, seed), TOKENS))
    if again:
        answers.append(engine.ask(prompt_of(unit, seeds[-1]), TOKENS))
    config = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config
    return Run(answers, unit, [type(group.kv_cache_spec).__name__ for group in config.kv_cache_groups])


# Per family: why an older vLLM does not run it, without a connector; empty if it does.
_FAULTS: dict[str, str] = {}


def runs_alone(one: Family, model: str) -> None:
    """Skips the test if the model needs a package, or a newer vLLM."""
    if one.needs is not None and importlib.util.find_spec(one.needs) is None:
        pytest.skip(f"the model's code imports {one.needs}")
    if not OLDEST <= tuple(map(int, vllm.__version__.split(".")[:2])) < NEWEST:
        return
    if one.name not in _FAULTS:
        try:
            in_child(runs, model, one, None, [1])
            _FAULTS[one.name] = ""
        except AssertionError as error:
            _FAULTS[one.name] = str(error).splitlines()[-1].split(": ", 1)[-1]
    if _FAULTS[one.name]:
        pytest.skip(f"vLLM alone does not run it: {_FAULTS[one.name]}")


@pytest.fixture(params=FAMILIES, ids=lambda one: one.name)
def of_family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Family, str]:
    one: Family = request.param
    return one, one.make(tmp_path / one.name)


def test_a_hit_gives_the_tokens_of_no_cache(of_family: tuple[Family, str], region: str) -> None:
    one, model = of_family
    runs_alone(one, model)
    alone = in_child(runs, model, one, None, [1, 2])
    if not alone.answers:
        pytest.skip("vLLM turns its prefix cache off for this model on this processor")
    cold = in_child(runs, model, one, region, [1], True)
    warm = in_child(runs, model, one, region, [1, 2])
    hit = 3 * warm.unit
    assert [answer.cached for answer in cold.answers] == [0, hit]
    assert [answer.cached for answer in warm.answers] == [hit, 0]
    tokens = [answer.tokens for answer in alone.answers]
    assert tokens[0] != tokens[1]
    assert all(answer.tokens == tokens[0] for answer in cold.answers)
    assert [answer.tokens for answer in warm.answers] == tokens
    assert warm.groups == cold.groups
    clean(region)


def without(_: Connection, model: str, one: Family, region: str, kind: str) -> Run:
    """A hit whose blocks of one kind of group are not loaded."""
    from cenote.vllm import worker

    straight = worker.WorkerSide._start

    def skips(self: Any, order: Any, part: Any) -> None:
        if self.parts[part.group][0].part.group.kind != kind:
            straight(self, order, part)

    worker.WorkerSide._start = skips  # type: ignore[method-assign]
    return runs(_, model, one, region, [1])


@pytest.mark.parametrize("name", ["LFM2", "Granite-4", "Qwen3-Next", "Llama4"])
def test_a_missing_part_changes_the_tokens(name: str, tmp_path: Path, region: str) -> None:
    """The tokens of these models do depend on what the test above restores."""
    one = family(name)
    model = one.make(tmp_path / name)
    runs_alone(one, model)
    cold = in_child(runs, model, one, region, [1])
    for kind in ("mamba" if one.has_states else "chunked_local_attention", "full_attention"):
        wrong = in_child(without, model, one, region, kind)
        assert wrong.answers[0].cached == 3 * wrong.unit
        assert wrong.answers[0].tokens != cold.answers[0].tokens, kind


def continues(_: Connection, model: str, one: Family) -> list[Answer]:
    """The first part of a prompt, and the prompt after it from vLLM's own cache."""
    engine = start(model, one, None)
    unit = unit_of(engine)
    return [engine.ask(asked, TOKENS) for asked in (prompt_of(unit)[: unit + 1], prompt_of(unit))]


def loses_states(_: Connection, model: str, one: Family, region: str) -> Run:
    """A prompt after its first part; the same when all states are evicted; the prompt once more."""
    from cenote.vllm.stats import CenoteStats

    counted, straight = Counter[str](), CenoteStats.add

    def add(self: CenoteStats, name: str, count: float = 1) -> None:
        counted[name] += int(count)
        straight(self, name, count)

    CenoteStats.add = add  # type: ignore[method-assign]
    engine = start(model, one, region)
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    side, unit = scheduler.connector._scheduler, unit_of(engine)
    whole, answers = prompt_of(unit), []
    first = whole[: unit + 1]
    for asked in (first, whole, None, first, whole, whole):
        engine.forget()
        if asked is not None:
            answers.append(engine.ask(asked, TOKENS))
            continue
        for group, ranks in zip(side.groups, side.lookup.ranks, strict=True):
            if group.is_state:
                assert sum(rank.forget() for rank in ranks) > 0
    return Run(answers, unit, [], dict(counted))


@pytest.mark.parametrize("one", WITH_STATES, ids=lambda one: one.name)
def test_without_a_state_a_hit_ends_at_an_earlier_one(one: Family, tmp_path: Path, region: str) -> None:
    model = one.make(tmp_path / one.name)
    runs_alone(one, model)
    run = in_child(loses_states, model, one, region)
    unit = run.unit
    # Without states nothing is found; then the first part's, which it has saved again; then both.
    assert [answer.cached for answer in run.answers] == [0, unit, 0, unit, 3 * unit]
    local = in_child(continues, model, one)
    assert [answer.cached for answer in local] == [0, unit]
    expected = [answer.tokens for answer in local]
    assert [answer.tokens for answer in run.answers] == [*expected, *expected, expected[1]]
    # Of the first part one block lacks a state, then two blocks of the prompt.
    assert run.counts["stateless_blocks"] == 1 + 2
    clean(region)


def test_states_take_their_real_bytes(tmp_path: Path, region: str) -> None:
    one = family("Granite-4")
    sizes = in_child(block_sizes, one.make(tmp_path / one.name), one, region)
    assert all(real <= stored < real + 64 for real, stored, _ in sizes)
    assert any(4 * stored < 3 * padded for _, stored, padded in sizes), "states are padded to a page of attention"


def block_sizes(_: Connection, model: str, one: Family, region: str) -> list[tuple[int, int, int]]:
    """Of each page: bytes of its content, bytes in the region, bytes in vLLM."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    engine = start(model, one, region)
    assert unit_of(engine) > 0
    parts = [part for parts in get_kv_transfer_group()._worker.parts.values() for part in parts]
    assert all(part.part.blocks.block_bytes == part.part.group.block_bytes for part in parts)
    return [(page.real_bytes, page.bytes, page.spec.page_size_bytes) for part in parts for page in part.part.group.pages]


def shares_a_beginning(_: Connection, model: str, one: Family, region: str | None, retention: int | None) -> list[Answer]:
    """A prompt, and another one that has its first unit."""
    engine = start(model, one, region, prefix_cache_retention_interval=retention)
    unit = unit_of(engine)
    whole = prompt_of(unit)
    engine.ask(whole, TOKENS)
    engine.forget()
    return [engine.ask([*whole[:unit], *prompt(unit + 1, 5)], TOKENS)]


@pytest.mark.parametrize("name", ["LFM2", "Granite-4"])
def test_states_of_earlier_borders_are_found_if_vllm_retains_them(name: str, tmp_path: Path, region: str) -> None:
    one = family(name)
    model = one.make(tmp_path / name)
    runs_alone(one, model)
    [alone] = in_child(shares_a_beginning, model, one, None, 0)
    for retention, found in ((0, False), (None, True)):
        [answer] = in_child(shares_a_beginning, model, one, region, retention)
        assert (answer.cached > 0) == found
        assert answer.tokens == alone.tokens
    clean(region)


def dies(_: Connection, model: str, one: Family, region: str, seed: int, page: int) -> None:
    engine = start(model, one, region)
    unit = unit_of(engine)
    cenote._native._kill_at("save.page", page)
    engine.ask(prompt_of(unit, seed), TOKENS)


@pytest.mark.parametrize("name", ["LFM2", "Granite-4", "Qwen3-Next"])
def test_a_kill_while_groups_are_saved_gives_no_wrong_state(name: str, tmp_path: Path, region: str) -> None:
    one = family(name)
    model = one.make(tmp_path / name)
    runs_alone(one, model)
    # Within the blocks and states of a prompt, of which the smallest model has eight pages at most.
    kills = (1, 3, 5)
    for kill in kills:
        assert Child(dies, model, one, region, kill, kill).end() == -9, "it must die during a save"
    alone = in_child(runs, model, one, None, list(kills))
    after = in_child(runs, model, one, region, list(kills))
    again = in_child(runs, model, one, region, list(kills))
    assert [answer.tokens for answer in after.answers] == [answer.tokens for answer in alone.answers]
    assert [answer.tokens for answer in again.answers] == [answer.tokens for answer in alone.answers]
    assert [answer.cached for answer in again.answers] == [3 * again.unit] * len(kills)
    assert clean(region)["counters"]["pool_reads_damaged_total"] == 0
