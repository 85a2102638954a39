"""Who may share: nobody whose KV would differ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cenote.vllm.identity import fingerprint
from cenote.vllm.settings import Settings
from engines import in_child
from vllm import EngineArgs
from vllm.config import VllmConfig

FACTS = {"number": 0, "kind": "full_attention"}


def of(config: VllmConfig, **settings: Any) -> bytes:
    return fingerprint(config, Settings.of({"region": "shm:none", **settings}), "digest", FACTS, 0, 0)


def fingerprints(_: Any, model: str) -> dict[str, bytes]:
    """Of engines that differ in one thing each."""

    def engine(**arguments: Any) -> VllmConfig:
        return EngineArgs(model, **{"dtype": "float32", "max_model_len": 1024, **arguments}).create_engine_config()

    made = {"first": of(engine()), "dtype": of(engine(dtype="bfloat16")), "tenant": of(engine(), tenant_salt="a")}
    # A longer context changes nothing by itself, and decides on LongRoPE's factors.
    made["longer"] = of(engine(max_model_len=2048))
    long_rope = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0}}
    for name, length in (("long", 1024), ("long, longer", 2048)):
        config = engine(max_model_len=length)
        config.model_config.hf_config = SimpleNamespace(to_dict=lambda: long_rope)
        made[name] = of(config)
    for name, value in (("fp8", "fp8"), ("int8", "int8_per_channel_weight_only")):
        config = engine()
        # This platform need not have it.
        object.__setattr__(config.model_config, "quantization", value)
        made[name] = of(config)
    return made


def test_engines_whose_kv_differs_do_not_share(tiny: str) -> None:
    made = in_child(fingerprints, tiny)
    assert made.pop("longer") == made["first"]
    assert len(set(made.values())) == len(made), made
