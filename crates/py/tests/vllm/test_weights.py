"""Engines with different weights share nothing, and the content of its files names an adapter."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import BLOCK, Engine, in_child
from models import prompt
from vllm import EngineArgs
from vllm.lora.request import LoRARequest
from waiting import PATIENCE_WITH_ENGINES, until

from cenote import clock
from cenote._native import file_stamps
from cenote.content import TRUSTED
from cenote.vllm.digest import model_digest

TOKENS = 16 * BLOCK + 7

# Runs in another process: torch starts threads, and a process with threads must not fork.
EDIT = """
import sys, torch
from safetensors.torch import load_file, save_file
file, what = sys.argv[1:]
weights = load_file(file)
if what == "layernorm":
    for name in weights:
        if name.endswith("layernorm.weight"):
            weights[name] *= 1.5
elif what == "k_proj":
    weights["model.layers.1.self_attn.k_proj.weight"] *= -1
elif what == "one element":
    weights["model.layers.2.self_attn.v_proj.weight"][100, 100] += 1
save_file(weights, file, metadata={"format": "pt"})
"""

ADAPTER = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(exist_ok=True)
numbers = torch.Generator().manual_seed(seed)
sizes = {"q_proj": (256, 256), "k_proj": (256, 128), "v_proj": (256, 128), "o_proj": (256, 256)}
weights = {}
for layer in range(4):
    for part, (columns, rows) in sizes.items():
        name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
        weights[f"{name}.lora_A.weight"] = torch.randn(8, columns, generator=numbers) * 0.1
        weights[f"{name}.lora_B.weight"] = torch.randn(rows, 8, generator=numbers) * 0.1
save_file(weights, str(folder / "adapter_model.safetensors"))
told = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": list(sizes), "bias": "none", "task_type": "CAUSAL_LM"}
(folder / "adapter_config.json").write_text(json.dumps(told))
"""


def run(program: str, *arguments: Any) -> None:
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, timeout=PATIENCE_WITH_ENGINES)


def asks(_: Any, model: str, region: str | None) -> tuple[list[int], int]:
    engine = Engine(model, region)
    answer = engine.ask(prompt(TOKENS, 1))
    return answer.tokens, answer.cached


@pytest.mark.parametrize("what", ["layernorm", "k_proj", "one element"])
def test_an_engine_with_different_weights_has_no_hits(tiny: str, tmp_path: Path, region: str, what: str) -> None:
    other = str(shutil.copytree(tiny, tmp_path / "other"))
    run(EDIT, Path(other, "model.safetensors"), what)
    assert in_child(asks, tiny, region)[1] == 0
    # An engine with equal weights has hits.
    assert in_child(asks, str(shutil.copytree(tiny, tmp_path / "same")), region)[1] == 16 * BLOCK
    tokens, cached = in_child(asks, other, region)
    assert cached == 0
    assert tokens == in_child(asks, other, None)[0]


def changes_as_it_starts(_: Any, model: str, region: str) -> tuple[list[int], list[int]]:
    """Touches the weights after the start of the process, so that the loaded content is unknown."""
    began, weights = clock.unix(), Path(model, "model.safetensors")

    def is_younger() -> bool:
        os.utime(weights)
        return weights.stat().st_ctime > began

    until("a change after the start", is_younger)
    engine = Engine(model, region)
    answers = [engine.ask(prompt(TOKENS, 1))]
    engine.forget()
    answers.append(engine.ask(prompt(TOKENS, 1)))
    assert answers[0].tokens == answers[1].tokens
    return [answer.cached for answer in answers], answers[0].tokens


def test_an_engine_with_weights_changed_during_its_start_shares_nothing(tiny: str, tmp_path: Path, region: str) -> None:
    copy = str(shutil.copytree(tiny, tmp_path / "copy"))
    trusted(tmp_path)
    first, _ = in_child(asks, copy, region)
    (before, own), tokens = in_child(changes_as_it_starts, copy, region)
    assert tokens == first
    # The engine still finds its own blocks.
    assert (before, own) == (0, 16 * BLOCK)


def trusted(folder: Path) -> None:
    probe = folder / "probe"
    probe.write_text("")
    if file_stamps([probe])[0][5] not in TRUSTED:
        pytest.skip(f"the file system of {folder} has untrusted times; give another folder with --basetemp")


def facts_of(_: Any, model: str) -> dict[str, str]:
    """Digests of a model's folder with one change each."""
    folder = Path(model)

    def digest(**settings: Any) -> str:
        return model_digest(EngineArgs(model, dtype="float32", max_model_len=1024, **settings).create_engine_config())

    made = {"first": digest()}
    for name, content in {
        "hf_quant_config.json": "{}", "model.safetensors.index.json": '{"weight_map": {}}', "modeling_own.py": "x = 1", "kv_scales.bin": "1",
        "more/model.safetensors": "1",
    }.items():  # fmt: skip
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        made[name] = digest()
        file.unlink()
        with contextlib.suppress(OSError):
            file.parent.rmdir()
    made["again"] = digest()
    return made


def test_a_models_name_covers_all_files_that_may_affect_kv(tiny: str, tmp_path: Path) -> None:
    made = in_child(facts_of, str(shutil.copytree(tiny, tmp_path / "copy")))
    # vLLM loads only one of two forms of weights.
    assert made.pop("again") == made["first"] == made.pop("kv_scales.bin")
    assert len(set(made.values())) == len(made), made


def code_of_others(_: Any, model: str, cache: str) -> list[str]:
    said = []
    told = json.loads(Path(model, "config.json").read_text())
    Path(model, "config.json").write_text(json.dumps({**told, "auto_map": {"AutoModel": "org/code--modeling.Model"}}))

    def digest() -> str:
        config = EngineArgs(model, dtype="float32", max_model_len=1024, download_dir=cache).create_engine_config()
        config.model_config.trust_remote_code = True
        try:
            return model_digest(config)
        except ValueError as error:
            return str(error)

    said.append(digest())
    repository = Path(cache, "models--org--code")
    folder = repository / "snapshots" / ("a" * 40)
    folder.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    for code in ("x = 1", "x = 2", "x = 1"):
        (folder / "modeling.py").write_text(code)
        said.append(digest())
    return said


def test_the_name_covers_code_of_another_repository(tiny: str, tmp_path: Path) -> None:
    missing, one, other, again = in_child(code_of_others, str(shutil.copytree(tiny, tmp_path / "copy")), str(tmp_path / "hub"))
    assert "the code of org/code" in missing
    assert "model_fingerprint" in missing
    assert one == again != other


# --- adapters ---


def adapted(model: str, region: str | None, **settings: Any) -> Engine:
    return Engine(model, region, enable_lora=True, max_lora_rank=8, max_loras=2, **settings)


def ask(engine: Engine, folder: str | None, seed: int = 1, number: int = 1, name: str = "a") -> tuple[list[int], int]:
    lora = LoRARequest(name, number, folder) if folder is not None else None
    answer = engine.llm.generate(
        [{"prompt_token_ids": prompt(TOKENS, seed)}], engine.sampling(8), use_tqdm=False, lora_request=lora
    )[0]
    return list(answer.outputs[0].token_ids), answer.num_cached_tokens or 0


def asks_with(_: Any, model: str, region: str | None, folder: str) -> tuple[tuple[list[int], int], tuple[list[int], int]]:
    engine = adapted(model, region)
    return ask(engine, folder), ask(engine, None)


def test_an_overwritten_adapter_has_no_hits_of_its_old_content(tiny: str, tmp_path: Path, region: str) -> None:
    folder = tmp_path / "adapter"
    run(ADAPTER, folder, 1)
    trusted(tmp_path)
    first, plain = in_child(asks_with, tiny, region, str(folder))
    assert (first[1], plain[1]) == (0, 0)
    assert first[0] != plain[0]
    # After a restart, the adapter and the plain model have hits.
    again, plain_again = in_child(asks_with, tiny, region, str(folder))
    assert (again[1], plain_again[1]) == (16 * BLOCK, 16 * BLOCK)
    assert (again[0], plain_again[0]) == (first[0], plain[0])
    run(ADAPTER, folder, 2)
    other, plain_again = in_child(asks_with, tiny, region, str(folder))
    assert (other[1], plain_again[1]) == (0, 16 * BLOCK)
    assert other == in_child(asks_with, tiny, None, str(folder))[0]
    # With the old content, the old blocks are hits again.
    run(ADAPTER, folder, 1)
    assert in_child(asks_with, tiny, region, str(folder))[0] == (first[0], 16 * BLOCK)


def changes_under_it(_: Any, model: str, region: str, folder: str) -> list[tuple[list[int], int]]:
    engine = adapted(model, region)
    answers = [ask(engine, folder)]
    run(ADAPTER, folder, 2)
    # vLLM still has the old content. The connector neither saves nor finds blocks for it.
    for seed in (1, 2):
        engine.forget()
        answers.append(ask(engine, folder, seed))
    engine.forget()
    # With another number, vLLM loads the files, which are younger than the engine.
    answers.append(ask(engine, folder, 2, number=2, name="b"))
    return answers


def test_an_adapter_changed_after_the_engines_start_shares_nothing(tiny: str, tmp_path: Path, region: str) -> None:
    folder = tmp_path / "adapter"
    run(ADAPTER, folder, 1)
    trusted(tmp_path)
    first, same, other, new = in_child(changes_under_it, tiny, region, str(folder))
    assert same == (first[0], 0)
    assert new[0] != other[0]
    assert new[1] == 0

    # The next engine has no hits with either content for the later prompt.
    def nothing_of(seed: int) -> None:
        assert in_child(asks_second, tiny, region, str(folder))[1] == 0, seed

    nothing_of(2)
    run(ADAPTER, folder, 1)
    nothing_of(1)
    # Blocks saved before the change are hits.
    assert in_child(asks_with, tiny, region, str(folder))[0] == (first[0], 16 * BLOCK)


def asks_second(_: Any, model: str, region: str, folder: str) -> tuple[list[int], int]:
    return ask(adapted(model, region), folder, 2)


def takes_anothers_number(_: Any, model: str, region: str, folders: list[str]) -> list[tuple[list[int], int]]:
    engine = adapted(model, region)
    # vLLM keeps the adapter that it has loaded under this number.
    return [ask(engine, folders[0]), ask(engine, folders[1], name="b")]


def test_blocks_of_an_adapter_with_a_reused_number_are_not_saved(tiny: str, tmp_path: Path, region: str) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for seed, folder in enumerate(folders):
        run(ADAPTER, folder, seed)
    trusted(tmp_path)
    one, mistaken = in_child(takes_anothers_number, tiny, region, [str(folder) for folder in folders])
    assert one[0] == mistaken[0]
    other, _ = in_child(asks_with, tiny, region, str(folders[1]))
    assert other[1] == 0
    assert other[0] != mistaken[0]


def loads_in_place(_: Any, model: str, region: str, folders: list[str]) -> list[tuple[list[int], int]]:
    engine = adapted(model, region)
    answers = [ask(engine, folders[0])]
    engine.llm.llm_engine.add_lora(LoRARequest("a", 1, folders[1], load_inplace=True))
    # vLLM computes a request for the old adapter with the new one.
    answers.append(ask(engine, folders[0], 2))
    engine.forget()
    answers.append(ask(engine, folders[1], 2))
    return answers


def test_blocks_of_an_adapter_replaced_in_place_are_not_saved(tiny: str, tmp_path: Path, region: str) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for seed, folder in enumerate(folders):
        run(ADAPTER, folder, seed)
    trusted(tmp_path)
    _, mistaken, new = in_child(loads_in_place, tiny, region, [str(folder) for folder in folders])
    assert mistaken[0] == new[0]
    assert (mistaken[1], new[1]) == (0, 0)
    old = in_child(asks_second, tiny, region, str(folders[0]))
    assert old[1] == 0
    assert old[0] != mistaken[0]
