"""Cost of a prompt that another vLLM process has computed, for each connector.

Engine, model and prompts are the same for all connectors."""

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
# The part of a connector's time that runs beside the engine.
COPIES = "copies, beside the engine"
# Tokens generated after the first one, for comparison with the engine without a connector.
MORE = 32
TESTS = Path(__file__).resolve().parents[3] / "crates/py/tests/vllm"


@dataclass
class Answer:
    """Cost of a prompt's first token, and the generated tokens."""

    wall: float
    cpu: float
    # CPU seconds of the connector's server; `cpu` includes them.
    server_cpu: float
    hit_tokens: int
    tokens: list[int]
    # Wall seconds of the same prompt out of vLLM's own cache.
    local: float = 0.0
    # Wall seconds of the connector's parts, where they are measured.
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class Rival:
    """One connector."""

    name: str
    about: str
    packages: Sequence[Path] = ()
    # Arguments of `KVTransferConfig`; None: no connector.
    transfer: dict[str, Any] | None = None
    # Process id of the connector's server, if it has one.
    server: int | None = None
    # False: it finds what the rival before it has saved.
    saves: bool = True


@dataclass
class Taken:
    """A connector's answers from all rounds.

    `first` is from the process that computes and saves, `second` from the later process."""

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
    # Warm-up, so that compilation is not part of a prompt's cost.
    engine.ask(models.prompt(engines.BLOCK + 1, 999), 2)

    def cost() -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_seconds(*([rival.server] if rival.server else []))

    answers = []
    for prompt in prompts:
        _parts(rival)
        before = cost()
        first = engine.ask(prompt, 1)
        wall, cpu, server = (now - then for now, then in zip(cost(), before, strict=True))
        parts, before = _parts(rival), cost()
        engine.ask(prompt, 1)
        local = cost()[0] - before[0]
        # vLLM's cache has the prompt now. The further tokens show whether its KV is right.
        rest = engine.ask(prompt, 1 + MORE)
        answers.append(Answer(wall, cpu + server, server, first.cached, rest.tokens, local, parts))
    # Some connectors save asynchronously after the answer. Wait until engine and server are idle.
    deadline, idle = time.monotonic() + 20, 0
    while rival.server and idle < 3 and time.monotonic() < deadline:
        used = cpu_seconds(os.getpid(), rival.server)
        time.sleep(0.3)
        idle = idle + 1 if cpu_seconds(os.getpid(), rival.server) - used < 0.03 else 0
    return answers


def _parts(rival: Rival) -> dict[str, float]:
    """Seconds of the connector's parts since the last call, if it is the timed one."""
    if rival.transfer is None or rival.transfer["kv_connector"] != "TimedConnector":
        return {}
    from peers import timed

    return timed.take()


def _let_lmcache_in() -> None:
    """Lets vLLM 0.32 start with LMCache. See docs/guides/lmcache.md.

    LMCache imports modules with attributes that have a `__dict__` other than a dictionary. vLLM's
    pass that rebinds kernels raises for them; this replacement skips them."""
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
    """Measures all connectors, which alternate in every round.

    `failed` gets the reasons of connectors that cannot take part."""
    sys.path.insert(0, str(TESTS))
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
        # LMCache's default chunk size, and the engine's block size, which covers more of a prompt.
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
        timed = ours | {"kv_connector": "TimedConnector", "kv_connector_module_path": "peers.timed"}
        rivals.append(Rival("Cenote, timed", "with a clock around each call", transfer=timed, saves=False))
        taken = {rival.name: Taken(rival.about) for rival in rivals}
        for round_ in range(rounds):
            prompts = [models.prompt(TOKENS, 1000 + prompts_each * round_ + number) for number in range(prompts_each)]
            for rival in rivals:
                if rival.name in failed:
                    continue
                print(f"round {round_ + 1} of {rounds}: vLLM, {rival.name}", file=sys.stderr, flush=True)
                try:
                    run = taken[rival.name]
                    if rival.saves:
                        run.first += engines.in_child(_answer, model, rival, prompts)
                    if rival.transfer is not None:
                        run.second += engines.in_child(_answer, model, rival, prompts)
                    wanted = [answer.tokens for answer in taken["no connector"].first]
                    for answers in (run.first, run.second):
                        if answers and [answer.tokens for answer in answers] != wanted:
                            raise Unable("its tokens differ from those of the engine without a connector")
                except (AssertionError, TimeoutError, Unable) as error:
                    failed[rival.name] = str(error).strip().splitlines()[-1][:300]
                    print(f"{rival.name}: {error}", file=sys.stderr, flush=True)
                    if rival.transfer is None:
                        raise Unable(f"the baseline engine without a connector failed: {error}") from error
        return {name: run for name, run in taken.items() if name not in failed}
    finally:
        for server in servers:
            server.end()
        shutil.rmtree(folder, ignore_errors=True)
        Path("/dev/shm", region).unlink(missing_ok=True)
