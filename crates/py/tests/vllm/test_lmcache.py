"""LMCache on a region: its own L2 benchmark, and two of its servers between two vLLM engines.

`CENOTE_TEST_LMCACHE` names a folder with LMCache. A separate folder, because LMCache pins other
versions of packages than vLLM's environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import models
import pytest
from engines import BLOCK, Answer, Engine, in_child
from waiting import PATIENCE, PATIENCE_WITH_ENGINES, until

import cenote

PACKAGES = os.environ.get("CENOTE_TEST_LMCACHE", "")
pytestmark = pytest.mark.skipif(not PACKAGES, reason="CENOTE_TEST_LMCACHE names no folder with LMCache")

PROMPT = 2000
FULL = (PROMPT - 1) // BLOCK * BLOCK


def plugin(region: str) -> str:
    params = {"region": region, "model_fingerprint": "random"}
    module = {"module_path": "cenote.lmcache", "class_name": "CenoteL2Adapter"}
    return json.dumps({"type": "plugin", **module, "adapter_params": params})


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": PACKAGES, "OMP_NUM_THREADS": "1", "LMCACHE_DISABLE_BANNER": "1"}


def test_lmcaches_own_l2_benchmark_verifies_all_keys(region: str) -> None:
    program = "from lmcache.cli.main import main; main()"
    arguments = ["--num-keys", "16", "--data-size-kb", "512", "--rounds", "2", "--lookup-max-hit-rate", "1", "--no-skip-verify"]
    command = [sys.executable, "-c", program, "bench", "l2", "--l2-adapter", plugin(region), *arguments]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_WITH_ENGINES, check=False)
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    assert "All 16 keys data verified OK" in said, said
    counts = re.findall(r"(success_keys|found|loaded)=(\d+)/16", said)
    assert len(counts) >= 6, said
    assert {count for _, count in counts} == {"16"}, said
    assert "Cenote:" not in said, said
    with cenote.Region.open(region) as check:
        check.gc()
        assert check.check(payloads=True)["is_clean"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server(region: str, log: Path) -> Iterator[int]:
    """An LMCache server with the region as its L2."""
    port = free_port()
    command = [
        sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "localhost", "--port", port, "--chunk-size", BLOCK,
        "--l1-size-gb", 1, "--eviction-policy", "LRU", "--supported-transfer-mode", "auto",
        "--prometheus-port", free_port(), "--l2-adapter", plugin(region),
    ]  # fmt: skip
    with log.open("wb") as said:
        process = subprocess.Popen([str(part) for part in command], env=environment(), stdout=said, stderr=said)
    try:

        def listens() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(lambda: log.read_text(errors="replace"), listens, PATIENCE_WITH_ENGINES)
        yield port
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)


def let_lmcache_in() -> None:
    """Lets vLLM 0.32 start with LMCache. See docs/guides/lmcache.md.

    LMCache imports modules with attributes that have a `__dict__` other than a dictionary. vLLM's
    pass that rebinds kernels raises AttributeError for them."""
    import builtins

    from vllm.triton_utils import dispatcher

    def mapping(value: Any) -> Any:
        found = builtins.vars(value)
        return found if isinstance(found, dict | type(type.__dict__)) else {}

    dispatcher.vars = mapping  # type: ignore[attr-defined]
    sys.path.insert(0, PACKAGES)


def ask(_: Connection, model: str, port: int | None, prompt: list[int]) -> Answer:
    transfer = None
    if port is not None:
        let_lmcache_in()
        from vllm.config import KVTransferConfig

        extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": port}
        transfer = KVTransferConfig(kv_connector="LMCacheMPConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    return Engine(model, None, transfer=transfer).ask(prompt, 32)


def test_an_lmcache_server_loads_the_prefix_of_another(tiny: str, region: str, tmp_path: Path) -> None:
    prompt = models.prompt(PROMPT, 40)
    alone = in_child(ask, tiny, None, prompt)
    with server(region, tmp_path / "first") as port:
        cold = in_child(ask, tiny, port, prompt)
        # LMCache stores asynchronously, after the answer.
        with cenote.Region.open(region) as watch:
            until(
                lambda: (watch.info(), (tmp_path / "first").read_text(errors="replace")),
                lambda: watch.info()["blocks_ready"] >= FULL // BLOCK,
            )
    with server(region, tmp_path / "second") as port:
        warm = in_child(ask, tiny, port, prompt)
    assert (alone.cached, cold.cached) == (0, 0)
    assert warm.cached == FULL, (tmp_path / "second").read_text(errors="replace")
    assert cold.tokens == alone.tokens
    assert warm.tokens == alone.tokens
    with cenote.Region.open(region) as check:
        check.gc()
        report = check.check(payloads=True)
        assert report["is_clean"], report
        assert (report["reserved"], report["pinned"]) == (0, 0)
