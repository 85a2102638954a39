"""The cost of a prompt that another vLLM process has computed, with each connector: the same engine, model and prompts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from peers.processes import Server, Unable, cpu_seconds, free_port, listens
from peers.stores import version_of

TOKENS = 2000
# Seconds for an engine's start and all its prompts; generous, because a busy machine is slow and a hung engine is rare.
PATIENCE = 1800
# Generated after the first token, to be compared with what the engine says without a connector.
MORE = 32
_TESTS = Path(__file__).resolve().parents[3] / "crates/py/tests/vllm"


@dataclass
class Answer:
    """A prompt's first token, what it took, and the tokens after it."""

    wall: float
    cpu: float
    # Of a server beside the engine; in `cpu` as well.
    server_cpu: float
    hit_tokens: int
    tokens: list[int]


@dataclass
class Rival:
    """One connector."""

    name: str
    about: str
    packages: Sequence[Path] = ()
    # What a `KVTransferConfig` is made of; None: no connector.
    transfer: dict[str, Any] | None = None
    # Process id of a server beside the engine.
    server: int | None = None


@dataclass
class Taken:
    """A connector's answers, round by round: of the process that computed and saved, and of the one that came after it."""

    about: str
    first: list[Answer] = field(default_factory=list)
    second: list[Answer] = field(default_factory=list)


def _answer(_: Connection, model: str, rival: Rival, prompts: list[list[int]]) -> list[Answer]:
    import engines
    import models
    from vllm.config import KVTransferConfig

    if rival.name.startswith("LMCache"):
        _let_lmcache_in()
    sys.path[:0] = [str(folder) for folder in rival.packages]
    transfer = None if rival.transfer is None else KVTransferConfig(**rival.transfer)
    engine = engines.Engine(model, None, transfer=transfer)
    # What is compiled and loaded at first is no part of a prompt's cost.
    engine.ask(models.prompt(engines.BLOCK + 1, 999), 2)

    def cost() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_seconds(*([rival.server] if rival.server else []))

    answers = []
    for prompt in prompts:
        before = cost()
        first = engine.ask(prompt, 1)
        wall, cpu, server = (now - then for now, then in zip(cost(), before, strict=True))
        # vLLM has the prompt now: the rest tells whether what it has is right.
        rest = engine.ask(prompt, 1 + MORE)
        answers.append(Answer(wall, cpu + server, server, first.cached, rest.tokens))
    # Some connectors save behind the answer; what they need for it, they get.
    deadline, idle = time.monotonic() + 20, 0
    while rival.server and idle < 3 and time.monotonic() < deadline:
        used = cpu_seconds(os.getpid(), rival.server)
        time.sleep(0.3)
        idle = idle + 1 if cpu_seconds(os.getpid(), rival.server) - used < 0.03 else 0
    return answers


def _let_lmcache_in() -> None:
    """LMCache imports modules with attributes whose `__dict__` is no dictionary, and the pass of vLLM 0.32 that rebinds kernels
    trips over them. It looks at the same attributes here, and passes over those."""
    import builtins

    from vllm.triton_utils import dispatcher

    def mapping(value: Any) -> Any:
        found = builtins.vars(value)
        return found if isinstance(found, dict | type(type.__dict__)) else {}

    dispatcher.vars = mapping  # type: ignore[attr-defined]


def _lmcache(chunk: int, packages: Path, interpreter: str) -> tuple[Server, Rival]:
    port, http, metrics = free_port(), free_port(), free_port()
    command = [
        interpreter, "-m", "lmcache.v1.multiprocess.server", "--host", "localhost", "--port", port, "--chunk-size", chunk,
        "--l1-size-gb", 2, "--eviction-policy", "LRU", "--supported-transfer-mode", "auto", "--prometheus-port", metrics,
    ]  # fmt: skip
    server = Server(f"lmcache-{chunk}", [str(part) for part in command], {"PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"})
    server.wait(lambda: listens(port), 180)
    transfer = {
        "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": port},
    }  # fmt: skip
    about = f"lmcache {version_of(packages, 'lmcache')}, LMCacheMPConnector and its server, chunks of {chunk} tokens"
    return server, Rival(f"LMCache, chunks of {chunk}", about, [packages], transfer, server.process.pid)


def measure(packages: Path, rounds: int, prompts_each: int, failed: dict[str, str]) -> dict[str, Taken]:
    """All connectors, round by round beside each other. `failed` gets who cannot take part, with the reason."""
    sys.path.insert(0, str(_TESTS))
    folder = Path(tempfile.mkdtemp(prefix="cenote-peers-", dir="/dev/shm"))
    servers: list[Server] = []
    region = f"cenote-peers-vllm-{os.getpid()}"
    try:
        import engines
        import models

        import cenote

        model = models.make_elsewhere(folder / "model", "mid")
        cenote.Region.create(f"shm:{region}", "2GiB", chunk_size="16MiB", max_hosts=1)
        ours = {
            "kv_connector": "CenoteConnector", "kv_connector_module_path": "cenote.vllm", "kv_role": "kv_both",
            "kv_connector_extra_config": {"region": f"shm:{region}"},
        }  # fmt: skip
        example = {
            "kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(folder / "example")},
        }  # fmt: skip
        (folder / "example").mkdir()
        rivals = [
            Rival("no connector", "every process computes"),
            Rival("ExampleConnector", "vLLM's own, files of a prompt's layers in /dev/shm", transfer=example),
        ]
        # Its own size of a chunk, and the engine's, in which more of a prompt is whole.
        for chunk in (256, engines.BLOCK):
            try:
                if not (packages / "lmcache").is_dir():
                    break
                server, rival = _lmcache(chunk, packages, sys.executable)
                servers.append(server)
                rivals.append(rival)
            except Unable as error:
                failed[f"LMCache, chunks of {chunk}"] = str(error)
        rivals.append(Rival("Cenote", "no server; every block checksummed", transfer=ours))
        taken = {rival.name: Taken(rival.about) for rival in rivals}
        for round_ in range(rounds):
            prompts = [models.prompt(TOKENS, 1000 + prompts_each * round_ + number) for number in range(prompts_each)]
            for rival in rivals:
                if rival.name in failed:
                    continue
                print(f"round {round_ + 1} of {rounds}: vLLM, {rival.name}", file=sys.stderr, flush=True)
                try:
                    run = taken[rival.name]
                    run.first += engines.in_child(_answer, model, rival, prompts, timeout=PATIENCE)
                    if rival.transfer is not None:
                        run.second += engines.in_child(_answer, model, rival, prompts, timeout=PATIENCE)
                    wanted = [answer.tokens for answer in taken["no connector"].first]
                    for answers in (run.first, run.second) if run.second else (run.first,):
                        if [answer.tokens for answer in answers] != wanted:
                            raise Unable("its tokens are not those of the engine without a connector")
                except (AssertionError, TimeoutError, Unable) as error:
                    failed[rival.name] = str(error).strip().splitlines()[-1][:300]
                    print(f"{rival.name}: {error}", file=sys.stderr, flush=True)
                    if rival.transfer is None:
                        raise Unable(f"the engine without a connector, against which all are measured: {error}") from error
        return {name: run for name, run in taken.items() if name not in failed}
    finally:
        for server in servers:
            server.end()
        shutil.rmtree(folder, ignore_errors=True)
        Path("/dev/shm", region).unlink(missing_ok=True)
