"""Fingerprints: engines with different KV never share."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cenote.vllm.digest import draft_digest, model_digest
from cenote.vllm.identity import fingerprint
from cenote.vllm.settings import Settings
from engines import in_child
from vllm import EngineArgs
from vllm.config import MultiModalConfig, VllmConfig

FACTS = {"number": 0, "kind": "full_attention"}
SHARD = {"number": 0, "of": 2}


def of(config: VllmConfig, **settings: Any) -> bytes:
    return fingerprint(config, Settings.of({"region": "shm:none", **settings}), "digest", FACTS, SHARD)


def fingerprints(_: Any, model: str, scratch: str) -> dict[str, bytes]:
    """Fingerprints of engines that differ in one setting each."""

    def engine(**arguments: Any) -> VllmConfig:
        return EngineArgs(model, **{"dtype": "float32", "max_model_len": 1024, **arguments}).create_engine_config()

    made = {"first": of(engine()), "dtype": of(engine(dtype="bfloat16")), "tenant": of(engine(), tenant_salt="a")}
    # A longer context has no effect, except that it selects LongRoPE's factors.
    made["longer"] = of(engine(max_model_len=2048))
    long_rope = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0}}
    for name, length in (("long", 1024), ("long, longer", 2048)):
        config = engine(max_model_len=length)
        config.model_config.hf_config = SimpleNamespace(to_dict=lambda: long_rope)
        made[name] = of(config)
    made["overrides"] = of(engine(hf_overrides={"rope_theta": 5000.0}))
    # This model has no images, so set the configuration of a multi-modal model.
    for name, value in (
        ("mm_processor_kwargs", {"num_crops": 4}), ("media_io_kwargs", {"video": {"num_frames": 40}}), ("video_pruning_rate", 0.5),
    ):  # fmt: skip
        config = engine()
        object.__setattr__(config.model_config, "multimodal_config", MultiModalConfig(**{name: value}))
        made[name] = of(config)
    for name, value in (("fp8", "fp8"), ("int8", "int8_per_channel_weight_only")):
        config = engine()
        # Set after validation, because this platform may not support it.
        object.__setattr__(config.model_config, "quantization", value)
        made[name] = of(config)
    for part, name, value in (
        ("model_config", "model_impl", "transformers"), ("model_config", "disable_sliding_window", True),
        ("model_config", "model_class_overrides", {"A": "b:C"}), ("cache_config", "kv_cache_dtype_skip_layers", ["0"]),
        ("cache_config", "cache_dtype", "fp8_e5m2"), ("cache_config", "mamba_ssm_cache_dtype", "float16"), ("attention_config", "flash_attn_version", 2),
        ("attention_config", "backend_per_kind", {"full_attention": "TRITON_ATTN"}), ("kernel_config", "linear_backend", "marlin"),
    ):  # fmt: skip
        config = engine()
        object.__setattr__(getattr(config, part), name, value)
        made[name] = of(config)
    # Files that settings name, by content.
    for name, content in (("file", "{}"), ("the same file", "{}"), ("another file", "[]")):
        Path(scratch).write_text(content)
        config = engine()
        config.model_config.hf_overrides = {"quantization_config_file": scratch}
        made[name] = of(config)
        multimodal = MultiModalConfig()
        object.__setattr__(multimodal, "mm_encoder_fp8_scale_path", scratch)
        object.__setattr__(config.model_config, "multimodal_config", multimodal)
        made[f"scales of {name}"] = of(config)
    made["draft"] = fingerprint(engine(), Settings.of({"region": "shm:none"}), ["digest", "draft"], FACTS, SHARD)
    made["shard"] = fingerprint(engine(), Settings.of({"region": "shm:none"}), "digest", FACTS, SHARD | {"number": 1})
    # Texts of tokens decide which rows of n-gram tables a model reads.
    for name in ("tokens", "other tokens"):
        folder = Path(f"{scratch} {name}")
        folder.mkdir()
        (folder / "tokenizer.json").write_text(name)
        config = engine()
        config.model_config.hf_text_config.engram_layer_ids = [1]
        object.__setattr__(config.model_config, "tokenizer", str(folder))
        made[name] = of(config)
    return made


def test_engines_with_different_kv_have_different_fingerprints(tiny: str, tmp_path: Path) -> None:
    made = in_child(fingerprints, tiny, str(tmp_path / "scratch.json"))
    assert made.pop("the same file") == made["file"]
    assert made.pop("scales of the same file") == made["scales of file"]
    assert made.pop("longer") == made["first"]
    assert len(set(made.values())) == len(made), made


def a_config(model: str, name: str = "", download_dir: str | None = None, **changes: Any) -> VllmConfig:
    """The configuration of an engine for this folder. `name` then replaces the model's name."""
    config = EngineArgs(model, dtype="float32", max_model_len=1024, download_dir=download_dir).create_engine_config()
    for part, attribute, value in [
        *([(config.model_config, "model", name)] if name else []),
        *((config.load_config if key == "load_format" else config.model_config, key, value) for key, value in changes.items()),
    ]:
        object.__setattr__(part, attribute, value)
    return config


def of_a_folder(_: Any, model: str, folder: str) -> dict[str, str]:
    """Digests of one model in different states."""
    made = {"first": model_digest(a_config(model))}
    config = a_config(model)
    # Models change this object while they load.
    config.model_config.hf_config.update({"num_key_value_heads": 7, "loaded": True})
    made["mutated"] = model_digest(config)
    made["seed"] = model_digest(a_config(model, seed=5))
    copy = Path(shutil.copytree(model, folder))
    made["copy"] = model_digest(a_config(str(copy)))
    told = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**told, "transformers_version": "9", "_name_or_path": "elsewhere"}))
    made["told by another"] = model_digest(a_config(str(copy)))
    (copy / "config.json").write_text(json.dumps({**told, "rope_theta": 5000.0}))
    made["configuration"] = model_digest(a_config(str(copy)))
    (copy / "config.json").write_text(json.dumps(told))
    with (copy / "model.safetensors").open("r+b") as weights:
        weights.seek(-2, 2)
        last = weights.read(1)
        weights.seek(-2, 2)
        weights.write(bytes([last[0] ^ 1]))
    made["weights"] = model_digest(a_config(str(copy)))
    for seed in (1, 2):
        made[f"dummy {seed}"] = model_digest(a_config(model, load_format="dummy", seed=seed))
    # Without a configuration file, vLLM's `hf_config` counts.
    config = a_config(model)
    (copy / "config.json").unlink()
    object.__setattr__(config.model_config, "model", str(copy))
    made["without a configuration"] = model_digest(config)
    config.model_config.hf_config.update({"rope_theta": 5000.0})
    made["without, and another"] = model_digest(config)
    return made


def test_a_digest_covers_the_files_and_nothing_else(tiny: str, tmp_path: Path) -> None:
    made = in_child(of_a_folder, tiny, str(tmp_path / "copy"))
    for name in ("mutated", "seed", "copy", "told by another"):
        assert made.pop(name) == made["first"], name
    assert len(set(made.values())) == len(made), made


def snapshot(cache: Path, model: str, commit: str, change: Callable[[bytes], bytes] = bytes) -> None:
    """Adds a commit of `org/model` to a cache of huggingface_hub: links to blobs.

    The reference `main` names the newest commit."""
    repository = cache / "models--org--model"
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    (repository / "blobs").mkdir(exist_ok=True)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    for name in ("config.json", "model.safetensors"):
        content = Path(model, name).read_bytes()
        blob = repository / "blobs" / f"{commit}-{name}"
        blob.write_bytes(change(content) if name == "model.safetensors" else content)
        (folder / name).symlink_to(Path("..", "..", "blobs", blob.name))


def of_a_hub(_: Any, model: str, cache: str) -> dict[str, str]:
    commits = {name: digit * 40 for name, digit in (("old", "a"), ("new", "b"), ("again", "c"))}

    def main() -> str:
        return model_digest(a_config(model, "org/model", cache))

    made = {"folder": model_digest(a_config(model))}
    snapshot(Path(cache), model, commits["old"])
    made["old"] = main()
    snapshot(Path(cache), model, commits["new"], lambda content: content[:-1] + b"x")
    made["new"] = main()
    for name in ("old", "new"):
        made[f"{name} by its commit"] = model_digest(a_config(model, "org/model", cache, revision=commits[name]))
    snapshot(Path(cache), model, commits["again"])
    made["again"] = main()
    return made


def test_a_digest_of_a_repository_is_that_of_its_snapshot(tiny: str, tmp_path: Path) -> None:
    made = in_child(of_a_hub, tiny, str(tmp_path))
    assert made["old"] != made["new"]
    # Equal content has equal digests under any revision.
    assert made["old"] == made["old by its commit"] == made["again"]
    assert made["new"] == made["new by its commit"]


def of_a_draft(_: Any, model: str, draft: str) -> list[str | None]:
    def digest() -> str | None:
        speculative = {"method": "eagle", "model": draft, "num_speculative_tokens": 2}
        return draft_digest(EngineArgs(model, dtype="float32", max_model_len=1024, speculative_config=speculative).create_engine_config())

    made = [draft_digest(EngineArgs(model, dtype="float32", max_model_len=1024).create_engine_config()), digest(), digest()]
    with Path(draft, "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x77")
    return [*made, digest()]


def test_the_name_covers_a_draft_model(tiny: str, eagle: str, tmp_path: Path) -> None:
    none, one, same, other = in_child(of_a_draft, tiny, str(shutil.copytree(eagle, tmp_path / "eagle")))
    assert none is None
    assert one == same != other


def refusals(_: Any, model: str, cases: list[dict[str, Any]]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(model_digest(a_config(model, **case)))
        except ValueError as error:
            said.append(str(error))
    return said


def test_weights_without_local_files_need_a_model_fingerprint(tiny: str, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [
        {"name": "org/none-such", "download_dir": str(tmp_path)},
        {"name": "s3://bucket/model"},
        {"name": "org/model:Q4_K_M", "load_format": "gguf"},
        {"model_weights": "s3://bucket/model"},
        {"load_format": "tensorizer"},
        {"load_format": "a_plugin_s"},
        {"name": str(tmp_path)},
    ]
    for case, said in zip(cases, in_child(refusals, tiny, cases), strict=True):
        place = case.get("model_weights") or case.get("name") or tiny
        assert f"finds none of {place} (load format {case.get('load_format', 'auto')}) on this machine" in said
        assert "model_fingerprint" in said


def test_the_content_of_a_gguf_file_names_it(tiny: str, tmp_path: Path) -> None:
    one, other = tmp_path / "a" / "model.gguf", tmp_path / "b" / "model.gguf"
    for file, content in ((one, b"one"), (other, b"other")):
        file.parent.mkdir()
        file.write_bytes(content)
    cases = [{"name": str(file), "load_format": "gguf"} for file in (one, other, one)]
    first, second, again = in_child(refusals, tiny, cases)
    assert first == again != second


def starts_named(_: Any, model: str, region: str, connector: dict[str, Any]) -> str:
    from engines import Engine

    # Replace the model's name only for the connector, because vLLM must load the folder before.
    from cenote.vllm import connector as made

    straight = made.Shards

    def shards(config: VllmConfig, *rest: Any) -> Any:
        object.__setattr__(config.model_config, "model", "s3://bucket/model")
        return straight(config, *rest)

    made.Shards = shards  # type: ignore[assignment,misc]
    try:
        Engine(model, region, connector=connector)
    except ValueError as error:
        return str(error)
    return "started"


@pytest.mark.parametrize(("connector", "said"), [({}, "set model_fingerprint in kv_connector_extra_config"), ({"model_fingerprint": "mine"}, "started")])
def test_an_engine_without_local_weights_starts_only_with_a_model_fingerprint(tiny: str, region: str, connector: dict[str, Any], said: str) -> None:
    assert said in in_child(starts_named, tiny, region, connector)
