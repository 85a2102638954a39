"""Invalid settings are refused at start, with the name of the setting."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest
from cenote.vllm.settings import Settings
from engines import Engine, in_child


def refused(_: Connection, model: str, region: str, connector: dict[str, Any], engine: dict[str, Any]) -> str:
    try:
        Engine(model, region, connector=connector, **engine)
    except Exception as error:
        return f"{error} {error.__cause__ or ''}"
    return "nothing was refused"


@pytest.mark.parametrize(
    ("connector", "engine", "said"),
    [
        ({"regoin": "x"}, {}, "unknown regoin"),
        ({"region": "shm:cenote-none-such"}, {}, "there is no such region"),
        ({"load": "layers"}, {}, "load is 'layers', but this setting was removed"),
        ({"timeout": -1}, {}, "timeout is -1"),
        ({"timeout": 0}, {}, "timeout is 0, so every load would time out; give seconds above 0"),
        ({"load_threads": 0}, {}, "load_threads is 0, so no thread would copy; give at least 1"),
        ({"load_threads": 0.5}, {}, "load_threads is 0.5; give an integer"),
        ({"region": "/no-such-folder/kv", "create_size": "64MiB"}, {}, "region: /no-such-folder/kv: the folder /no-such-folder does not exist"),
        ({"create_size": "4 parsecs"}, {}, "create_size: `4 parsecs` is not a size"),
        ({"create_size": "64MiB", "chunk_size": "3MiB"}, {}, "chunk size 3145728 is not a power of two"),
        ({"create_size": "64MiB", "eviction": "fifo"}, {}, "kv_connector_extra_config: no eviction policy is called `fifo`"),
        ({"gpu_copies": "fast"}, {}, "may be direct or staged"),
        ({"layout": {"order": "DHN"}}, {}, "layout has order 'DHN'"),
        ({"codec": "int8"}, {}, "needs a known page layout"),
        ({}, {"enable_prefix_caching": False}, "prefix caching is off"),
        ({}, {"prefix_caching_hash_algo": "xxhash"}, "set PYTHONHASHSEED"),
    ],
)
def test_a_refusal_names_the_setting(tiny: str, region: str, connector: dict[str, Any], engine: dict[str, Any], said: str) -> None:
    assert said in in_child(refused, tiny, region, connector, engine)


@pytest.mark.parametrize("load", ["async", "layers"])
def test_the_removed_setting_for_loads_is_refused_with_the_next_step(load: str) -> None:
    Settings.of({"region": "shm:none"})
    with pytest.raises(ValueError, match=f"load is '{load}', but this setting was removed.*delete the setting"):
        Settings.of({"region": "shm:none", "load": load})
