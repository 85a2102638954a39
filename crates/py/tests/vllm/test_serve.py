"""`vllm serve` as in docs/guides/vllm.md: two servers on one region, one of them with two engines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import pytest
from engines import BLOCK
from test_sharing import FULL, PROMPT, clean

from cenote.vllm.stats import COUNTERS

# Seconds for a server's start on a busy machine.
START = 400


class Server:
    """One `vllm serve` with all its processes."""

    def __init__(self, model: str, region: str, log: Path, *arguments: str) -> None:
        self.model, self.log = model, log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        transfer = {
            "kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both",
            "kv_connector_extra_config": {"region": region, "create_size": "512MiB"},
        }  # fmt: skip
        host, port = self.address.split(":")
        command = [
            str(Path(sys.executable).parent / "vllm"), "serve", model, "--host", host, "--port", port, "--enforce-eager",
            "--max-model-len", "4096", "--dtype", "float32", "--block-size", str(BLOCK), "--enable-prompt-tokens-details",
            "--kv-transfer-config", json.dumps(transfer), *arguments,
        ]  # fmt: skip
        # As for a user: engines in separate processes.
        environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)

    def wait(self) -> None:
        deadline = time.monotonic() + START
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self.get("/health")
                return
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            # Poll period. No result depends on it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)

    def get(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(answer.read().decode())

    def ask(self, prompt: list[int]) -> tuple[str, int]:
        """The greedy answer, and the number of cached tokens of the prompt."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.get("/v1/completions", body))
        return answer["choices"][0]["text"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    def counter(self, name: str) -> dict[str, float]:
        """Values of a counter, by engine."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(f"vllm:cenote_{name}_total{{")]
        return {line.split('engine="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}

    def end(self) -> None:
        """Ends the server with SIGTERM, then with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a region that a server creates."""
    name = f"cenote-vllm-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield name
    Path("/dev/shm", name).unlink(missing_ok=True)


def test_servers_share_blocks_and_export_counters(tiny: str, name: str, tmp_path: Path) -> None:
    prompts = [models.prompt(PROMPT, 80 + number) for number in range(4)]
    with contextlib.ExitStack() as ends:
        one = Server(tiny, f"shm:{name}", tmp_path / "one")
        ends.callback(one.end)
        two = Server(tiny, f"shm:{name}", tmp_path / "two", "--data-parallel-size", "2")
        ends.callback(two.end)
        one.wait()
        two.wait()
        # All counters exist before the first request.
        for name_of in COUNTERS:
            assert one.counter(name_of) == {"0": 0}, name_of
            assert two.counter(name_of) == {"0": 0, "1": 0}, name_of
        cold = [one.ask(prompt) for prompt in prompts]
        assert [cached for _, cached in cold] == [0] * len(prompts)
        assert [two.ask(prompt) for prompt in prompts] == [(text, FULL) for text, _ in cold]
        blocks = FULL // BLOCK
        # A step exports its counts at its end, which is after its answer.
        deadline = time.monotonic() + 30
        while sum(two.counter("loaded_blocks").values()) < len(prompts) * blocks:
            assert time.monotonic() < deadline, two.get("/metrics")
        # One engine computed each block of each prompt, and another one loaded it once.
        assert sum(one.counter("saved_blocks").values()) >= len(prompts) * blocks
        assert sum(two.counter("hit_blocks").values()) == len(prompts) * blocks
        assert sum(two.counter("failed_blocks").values()) == 0
        assert set(two.counter("lookup_blocks")) == {"0", "1"}
    clean(f"shm:{name}")
