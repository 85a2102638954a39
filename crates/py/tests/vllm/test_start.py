"""The log of an engine at start, at the users' log level."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from engines import in_child
from waiting import PATIENCE_WITH_ENGINES

import cenote
from cenote.facts import key_of


def log_of_start(model: str, region: str, connector: dict[str, Any] | None = None) -> list[str]:
    """Starts an engine in another process. Returns the connector's log lines as `LEVEL text`."""
    command = [sys.executable, __file__, model, region, json.dumps(connector or {})]
    environment = {**os.environ, "CENOTE_TEST_LOG": "INFO", "NO_COLOR": "1"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_WITH_ENGINES)
    log = ran.stdout + ran.stderr
    assert ran.returncode == 0, log[-4000:]
    lines = [line for line in log.splitlines() if "Cenote: " in line]
    return [f"{'WARNING' if ' WARNING ' in line else 'INFO'} {line[line.index('Cenote: ') :]}" for line in lines]


def test_the_log_contains_the_connectors_info_lines(tiny: str, region: str) -> None:
    lines = log_of_start(tiny, region)
    assert any(line.startswith("INFO Cenote: digest of ") for line in lines), lines
    assert any(line.startswith("INFO Cenote: kv_load_failure_policy is set to recompute") for line in lines), lines


def test_an_engine_logs_the_regions_content_and_warns_if_no_block_is_for_it(tiny: str, region: str) -> None:
    with cenote.Region.open(region) as other:
        blocks = other.namespace(b"another model", 4096)
        assert blocks.publish(bytes([1]) * 16, 0, bytes(4096)) == "published"
    lines = log_of_start(tiny, region)
    [info] = [line for line in lines if line.startswith(f"INFO Cenote: region {region} has 1 GiB and holds 1 blocks, 0 of them")]
    with cenote.Region.open(region) as other:
        [own] = [row["fingerprint"][:12] for row in other.info()["namespaces"] if row["id"] != blocks.id]
    assert info.endswith(f"for this engine (fingerprint {own})")
    assert any(line.startswith(f"WARNING Cenote: region {region} holds 1 blocks of 1 other fingerprints and none") for line in lines)


def test_creation_settings_without_effect_are_logged(tiny: str, region: str) -> None:
    ignored = {"create_size": "2GiB", "chunk_size": "16MiB", "mode": "0660", "eviction": "sieve"}
    warnings = [line for line in log_of_start(tiny, region, ignored) if line.startswith("WARNING ")]
    assert warnings == [
        f"WARNING Cenote: region {region} already exists, so these settings have no effect: create_size is 2 GiB, and the region has 1 GiB; "
        "mode is 0660, and the region has 0600; eviction is sieve, and the region has lru. Leave them out, or recreate the region: "
        f"`cenote pool destroy --region {region}` removes it with its blocks"
    ]


def starts(_: Connection, model: str, region: str, connector: dict[str, Any]) -> None:
    from engines import Engine

    Engine(model, region, connector=connector)


def test_the_region_stores_the_facts_that_separate_two_engines(tiny: str, region: str) -> None:
    for connector in ({}, {"tenant_salt": "a secret"}, {"tenant_salt": "a secret"}):
        in_child(starts, tiny, region, connector)
    with cenote.Region.open(region) as look:
        rows = look.info()["namespaces"]
        one, other = (json.loads(look.get_object(key_of(row["fingerprint"])) or b"") for row in rows)
        assert look.info()["objects"] == 2
        assert look.check(payloads=True)["is_clean"]
    assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} == {"tenant salt"}
    assert "a secret" not in json.dumps(other)
    assert {"made by", "model", "layout", "cache, cache_dtype", "group, block tokens"} <= one.keys()


if __name__ == "__main__":
    from engines import Engine

    Engine(sys.argv[1], sys.argv[2], connector=json.loads(sys.argv[3]))
