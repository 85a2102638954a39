"""TensorRT-LLM's connector, replayed: the package cannot run here, so `stand_in.py` makes the calls of its executor.

The tests are here because this environment has PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stand_in
from stand_in import Arguments, Buffer, Engine, Group, Layout, Region
from waiting import PATIENCE, ManualTime

import cenote
from cenote import clock, model_files

stand_in.install()

from cenote.tensorrt_llm import connector as module  # noqa: E402

SIZE = 16
PROMPT = list(range(5, 5 + 6 * SIZE + 3))


def layout(*, blocks: int = 40, sizes: tuple[int, ...] = (4096, 1024), window: int | None = None, roles: str = "key") -> Layout:
    regions = tuple(Region(blocks, size, [Buffer(0, roles), Buffer(1, "value")]) for size in sizes)
    return Layout(SIZE, (Group(regions[:1], window_size=window, replicated_regions=regions[1:]),))


@pytest.fixture
def engine(region: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[Engine] = []

    def make(arguments: Arguments | None = None, how: Layout | None = None, chunk: int = 1 << 30, **settings: Any) -> Engine:
        given = {"region": region, "model_fingerprint": "weights", "timeout": PATIENCE} | settings
        monkeypatch.setenv("CENOTE_TENSORRT_LLM", json.dumps({name: value for name, value in given.items() if value is not None}))
        made.append(Engine(module, how or layout(), arguments or Arguments(), chunk))
        return made[-1]

    yield make
    for each in made:
        each.close()


def use(engine: Engine) -> Engine:
    """Makes this engine the one of the process: each engine is a process of its own."""
    module._worker = engine.worker
    return engine


@pytest.mark.parametrize("chunk", [1 << 30, 40, SIZE, 7])
def test_an_engine_loads_the_blocks_of_another(engine: Any, chunk: int) -> None:
    first, second = engine(chunk=chunk), engine(chunk=chunk)
    assert use(first).run(PROMPT, generate=2) == 0
    assert use(second).run(PROMPT, generate=2) == 6 * SIZE
    assert use(second).run([*PROMPT[: 3 * SIZE], 9, *PROMPT], generate=2) == 3 * SIZE
    assert (first.worker.errors, second.worker.errors, second.scheduler.errors) == (0, 0, 0)


def test_what_an_engine_generates_is_saved(engine: Any) -> None:
    first, second = engine(), engine()
    use(first).run(PROMPT, generate=2 * SIZE)
    longer = [*PROMPT, *(10_000 + at for at in range(len(PROMPT), len(PROMPT) + 2 * SIZE)), 7]
    assert use(second).run(longer, generate=1) == (len(longer) - 1) // SIZE * SIZE


def test_a_prompt_of_whole_blocks_leaves_one_token_to_compute(engine: Any) -> None:
    first, second = engine(), engine()
    use(first).run(PROMPT[: 6 * SIZE], generate=2)
    assert use(second).run(PROMPT[: 6 * SIZE], generate=2) == 5 * SIZE


def test_blocks_on_the_device_are_not_loaded(engine: Any) -> None:
    first, second = engine(), engine()
    use(first).run(PROMPT, generate=2)
    assert use(second).run(PROMPT, on_device=2 * SIZE, generate=2) == 4 * SIZE
    # A block that the device has in part cannot be replaced.
    assert use(second).scheduler.get_num_new_matched_tokens(stand_in.Request(100, PROMPT), SIZE + 1) == (0, False)


def test_salts_separate_requests(engine: Any) -> None:
    first, second = engine(), engine()
    use(first).run(PROMPT, salt="a", generate=2)
    assert [use(second).run(PROMPT, salt=salt) for salt in (None, "b", "", "a")] == [0, 0, 0, 6 * SIZE]


@pytest.mark.parametrize(
    "request_",
    [
        {"lora_task_id": 0}, {"multimodal_hashes": [[1, 2]]}, {"prompt_embedding_table": [[0.0]]}, {"py_multimodal_data": {"image": {}}},
        {"py_lora_path": "/adapter"},
    ],
)  # fmt: skip
def test_requests_without_a_name_share_nothing(engine: Any, request_: dict[str, Any]) -> None:
    first = use(engine())
    first.run(PROMPT, generate=2, **request_)
    assert first.worker.region.info()["blocks_ready"] == 0
    first.run(PROMPT, generate=2)
    assert first.run(PROMPT, **request_) == 0
    assert first.run(PROMPT) == 6 * SIZE


@pytest.mark.parametrize(
    ("arguments", "how", "settings"),
    [
        ({"dtype": "float16"}, {}, {}),
        ({"quant": object()}, {}, {}),
        ({"env_overrides": {"TRTLLM_X": "1"}}, {}, {}),
        ({}, {"roles": "value"}, {}),
        ({}, {"sizes": (1024, 4096)}, {}),
        ({}, {}, {"tenant_salt": "other"}),
        ({}, {}, {"model_fingerprint": "other"}),
    ],
)
def test_engines_that_differ_share_nothing(engine: Any, arguments: dict[str, Any], how: dict[str, Any], settings: dict[str, Any]) -> None:
    use(engine()).run(PROMPT, generate=2)
    assert use(engine(Arguments(**arguments), layout(**how), **settings)).run(PROMPT) == 0
    # Paths of the model, and memory of another size, do not count.
    assert use(engine(Arguments(model="/elsewhere/demo"), layout(blocks=50))).run(PROMPT) == 6 * SIZE


def test_an_engines_other_version_shares_nothing(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(engine()).run(PROMPT, generate=2)
    monkeypatch.setattr(module.tensorrt_llm, "__version__", "1.5.0")
    assert use(engine()).run(PROMPT) == 0


def test_arguments_are_stored_as_digests(engine: Any) -> None:
    secret = "hf_a_token"
    first = engine(Arguments(env_overrides={"HF_TOKEN": secret}))
    name = first.worker.region.name.removeprefix("shm:")
    assert secret.encode() not in Path("/dev/shm", name).read_bytes()


def test_a_promise_survives_the_region(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM cannot take a promise back, so a block that leaves after it must still be loaded."""
    first = use(engine())
    first.run(PROMPT, generate=2)
    promise = first.scheduler.get_num_new_matched_tokens

    def then_all_leaves(request: Any, computed: int) -> Any:
        promised = promise(request, computed)
        first.worker.blocks.forget()
        assert first.worker.region.info()["blocks_ready"] == 0
        return promised

    monkeypatch.setattr(first.scheduler, "get_num_new_matched_tokens", then_all_leaves)
    assert first.run(PROMPT, generate=2) == 6 * SIZE


def test_a_missing_block_ends_the_promise(engine: Any, manual_time: ManualTime) -> None:
    first = use(engine())
    first.run(PROMPT[: 3 * SIZE + 1], generate=2)
    assert first.run(PROMPT) == 3 * SIZE
    manual_time.each_look = 2 * PATIENCE
    late = use(engine())
    assert late.run(PROMPT) == 0
    assert late.worker.errors == 0


def test_promised_bytes_are_bounded(engine: Any) -> None:
    use(engine()).run(PROMPT, generate=2)
    small = use(engine(staging_bytes=2 * 5120 + 1))
    assert small.scheduler.get_num_new_matched_tokens(stand_in.Request(100, PROMPT), 0) == (2 * SIZE, False)
    assert small.scheduler.get_num_new_matched_tokens(stand_in.Request(101, PROMPT), 0) == (0, False), "all room is promised"
    small.scheduler.request_finished(stand_in.Request(100, PROMPT), [])
    assert small.scheduler.get_num_new_matched_tokens(stand_in.Request(102, PROMPT), 0) == (2 * SIZE, False)


def test_a_cancelled_part_is_not_loaded(engine: Any) -> None:
    first = use(engine())
    first.run(PROMPT, generate=2)
    asked = stand_in.Request(100, PROMPT)
    assert first.scheduler.get_num_new_matched_tokens(asked, 0) == (6 * SIZE, False)
    first.scheduler.cancel_load(asked, 4 * SIZE, 6 * SIZE)
    first.scheduler.cancel_load(asked, 0, SIZE)
    blocks = list(range(20, 27))
    data = stand_in.Data(100, PROMPT, blocks, 0, 1, [blocks])
    metadata = first.scheduler.build_connector_meta(stand_in.Output([data]))
    assert [block for _, block in metadata.loads] == [21, 22, 23]
    first.scheduler.request_reset(asked)
    assert first.scheduler.build_connector_meta(stand_in.Output([data])).loads == []


def test_a_request_that_runs_again_is_read_from_its_beginning(engine: Any) -> None:
    """A scheduler that appended the tokens of both runs would save blocks under names of other tokens."""
    first, second = engine(), engine()
    use(first)
    asked = stand_in.Request(100, PROMPT)
    first.scheduler.get_num_new_matched_tokens(asked, 0)
    for blocks in (list(range(7)), list(range(20, 27))):
        data = stand_in.Data(100, PROMPT, blocks, 0, len(PROMPT), [blocks])
        metadata = first.scheduler.build_connector_meta(stand_in.Output([data]))
        assert [(depth, block) for _, depth, block in metadata.saves] == list(enumerate(blocks[:6]))
    assert first.scheduler.errors == 0
    # Tokens that differ from those of the lookup have no names.
    odd = stand_in.Data(100, [*PROMPT[:-1], 1], [0], 0, len(PROMPT), [[0]])
    assert first.scheduler.build_connector_meta(stand_in.Output([odd])).saves == []
    assert first.scheduler.errors == 1
    del second


def test_a_request_whose_images_are_gone_has_no_name_either(engine: Any) -> None:
    """The engine drops a request's images after their use, and may run the request again."""
    first = use(engine())
    first.run(PROMPT)
    asked = stand_in.Request(100, PROMPT, py_multimodal_data={"image": {}})
    assert first.scheduler.get_num_new_matched_tokens(asked, 0) == (0, False)
    asked.py_multimodal_data = None
    assert first.scheduler.get_num_new_matched_tokens(asked, 0) == (0, False)
    first.scheduler.request_finished(asked, [])
    assert first.scheduler.get_num_new_matched_tokens(stand_in.Request(100, PROMPT), 0) == (6 * SIZE, False)


@pytest.mark.parametrize("changes", [False, True])
def test_an_engine_whose_weights_changed_after_its_start_shares_nothing(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "config.json").write_text("{}")
    named: dict[str, Any] = {"model_fingerprint": None, "model_folder": str(tmp_path)}
    monkeypatch.setattr(model_files, "process_began", lambda: clock.unix() + 1)
    use(engine(**named)).run(PROMPT)
    if changes:
        monkeypatch.setattr(model_files, "process_began", lambda: 0.0)
    assert use(engine(**named)).run(PROMPT) == (0 if changes else 6 * SIZE)


class Faulty:
    """A namespace that fails every call."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, _name: str) -> Any:
        raise self.error


class Panic(BaseException):
    """Like a panic of the compiled part, not an `Exception`."""


def test_faults_are_misses(engine: Any) -> None:
    first = use(engine())
    first.run(PROMPT, generate=2)
    blocks = first.worker.blocks
    for count, error in enumerate((Panic("panicked"), RuntimeError("broken"), MemoryError()), 1):
        first.worker.blocks = Faulty(error)
        assert first.run(PROMPT, generate=2) == 0
        assert first.scheduler.errors == count
        assert first.worker.errors >= count
    first.worker.blocks = blocks
    assert first.run(PROMPT) == 6 * SIZE
    first.worker.shutdown()
    assert first.run(PROMPT) == 0, "a closed region is a miss"


def test_saves_wait_for_the_engine_only_if_there_is_something_to_save(engine: Any) -> None:
    first = use(engine())
    first.run(PROMPT, generate=1)
    waits = first.stream.waits
    assert waits > 0
    assert first.run(PROMPT, generate=1) == 6 * SIZE
    assert first.stream.waits == waits


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tensor_parallel_size": 2}, "several ranks"),
        ({"speculative_config": object()}, "speculative_config"),
        ({"lora_config": object()}, "lora_config"),
    ],
)
def test_engines_that_cannot_share_are_refused(engine: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine(Arguments(**arguments))


def test_layouts_and_settings_that_cannot_work_are_refused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for how, said in ((layout(window=128), "windows"), (Layout(SIZE, (*layout().groups, *layout().groups)), "2 groups"), (layout(sizes=(100,)), "64")):
        with pytest.raises(ValueError, match=said):
            engine(how=how)
    with pytest.raises(ValueError, match="KVCacheManagerV2"):
        engine().worker.register_kv_caches(None)
    for settings, said in (({"regoin": "a"}, "unknown regoin"), ({"region": None}, "no region"), ({"model_fingerprint": None}, "weights"), ({"timeout": 0}, "timeout")):
        with pytest.raises(ValueError, match=said):
            engine(**settings)
    with pytest.raises(cenote.RegionMissing):
        engine(region="shm:cenote-missing")
    monkeypatch.setenv("CENOTE_TENSORRT_LLM", "region")
    with pytest.raises(ValueError, match="no JSON"):
        module.CenoteScheduler(Arguments())
