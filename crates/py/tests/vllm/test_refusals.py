"""What cannot work is said at start-up, by name."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import pytest
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
        ({"load": "slowly"}, {}, "may be async or layers"),
        ({"timeout": -1}, {}, "timeout is -1"),
        ({"gpu_copies": "fast"}, {}, "may be direct or staged"),
        ({"layout": {"order": "DHN"}}, {}, "layout has order 'DHN'"),
        ({"codec": "int8"}, {}, "lays out a page"),
        ({}, {"enable_prefix_caching": False}, "prefix caching is off"),
        ({}, {"prefix_caching_hash_algo": "xxhash"}, "set PYTHONHASHSEED"),
    ],
)
def test_it_is_named(tiny: str, region: str, connector: dict[str, Any], engine: dict[str, Any], said: str) -> None:
    assert said in in_child(refused, tiny, region, connector, engine)
