"""`vllm serve` with all its processes, as in docs/guides/vllm.md."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import BLOCK
from waiting import PATIENCE, PATIENCE_WITH_ENGINES, until


@dataclass
class Stream:
    """A streamed answer: its text, and the number of its pieces."""

    text: str = ""
    pieces: int = 0
    whole: bool = False
    """False if the stream ended before its answer did."""


class Process:
    """A server with its process group and its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, address: str, health: str, variables: dict[str, str] | None = None) -> None:
        self.log, self.address, self.health = log, address, health
        # As for a user: engines in separate processes.
        environment = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment | (variables or {}), stdout=output, stderr=output, start_new_session=True
            )

    def wait(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                self.get(self.health)
                return True
            return False

        until(lambda: self.log.read_text()[-4000:], is_ready, PATIENCE_WITH_ENGINES)

    def get(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.address}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def stream(self, model: str, prompt: list[int], tokens: int) -> Iterator[Stream]:
        """Streams a greedy answer. Yields it after each of its pieces; the last one is whole, or broken off."""
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        request = urllib.request.Request(
            f"http://{self.address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        answer = Stream()
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as lines:
                for line in lines:
                    said = line.decode().strip().removeprefix("data: ")
                    if said == "[DONE]":
                        answer.whole = True
                    elif said:
                        answer.text += json.loads(said)["choices"][0]["text"]
                        answer.pieces += 1
                        yield answer
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            # The server died, or a proxy before it wrote of an error.
            pass
        yield answer

    def kill(self) -> None:
        """Kills all processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def end(self) -> None:
        """Ends the server with SIGTERM, then with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)


def free_address() -> str:
    """Host and port of a free socket."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Server(Process):
    """One `vllm serve`. With `region` None it has no connector."""

    def __init__(
        self, model: str, region: str | None, log: Path, *arguments: str, role: str = "kv_both", size: str = "512MiB", **variables: str
    ) -> None:
        self.model = model
        address = free_address()
        host, port = address.split(":")
        command = [
            str(Path(sys.executable).parent / "vllm"), "serve", model, "--host", host, "--port", port, "--enforce-eager",
            "--max-model-len", "4096", "--dtype", "float32", "--block-size", str(BLOCK), "--enable-prompt-tokens-details",
            *arguments,
        ]  # fmt: skip
        if region is not None:
            transfer = {
                "kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": role,
                "kv_connector_extra_config": {"region": region, "create_size": size, "timeout": PATIENCE},
            }  # fmt: skip
            command += ["--kv-transfer-config", json.dumps(transfer)]
        super().__init__(command, log, address, "/health", variables)

    def ask(self, prompt: list[int]) -> tuple[str, int]:
        """The greedy answer, and the number of cached tokens of the prompt."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        answer = json.loads(self.get("/v1/completions", body))
        return answer["choices"][0]["text"], (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0

    def counter(self, name: str) -> dict[str, float]:
        """Values of a counter, by engine."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(f"vllm:cenote_{name}_total{{")]
        return {line.split('engine="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


class Proxy(Process):
    """vLLM's example proxy before prefill and decode servers."""

    def __init__(self, program: str, model: str, log: Path, prefill: Server, decode: Server) -> None:
        self.model = model
        address = free_address()
        command = [
            sys.executable, program, "--model", model, "--prefill", prefill.address, "--decode", decode.address,
            "--port", address.split(":")[1],
        ]  # fmt: skip
        super().__init__(command, log, address, "/status")
