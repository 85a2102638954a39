"""vLLM engines in child processes. This module imports vLLM once; each engine is a forked child."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

# One thread: two would compete in spin loops on a small machine, and the number of threads changes
# the order of sums.
os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    OMP_NUM_THREADS="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL=os.environ.get("CENOTE_TEST_LOG", "WARNING"),
)

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

from cenote import _native

# Scripts that import this module have only its folder on their path.
sys.path.append(str(Path(__file__).parents[1]))
from waiting import GRACE, PATIENCE, PATIENCE_WITH_ENGINES, Stuck, until

BLOCK = 32
_PROCESSES = multiprocessing.get_context("fork")


@dataclass
class Answer:
    """The answer to a prompt."""

    tokens: list[int]
    cached: int
    cpu_seconds: float


class Engine:
    """One engine. With `region` None it has the connector of `transfer`, or none."""

    def __init__(
        self,
        model: str,
        region: str | None,
        role: str = "kv_both",
        connector: dict[str, Any] | None = None,
        transfer: KVTransferConfig | None = None,
        **engine: Any,
    ) -> None:
        if region is not None:
            transfer = KVTransferConfig(
                kv_connector="CenoteConnector",
                kv_connector_module_path="cenote.vllm",
                kv_role=role,
                kv_connector_extra_config={"region": region, "timeout": PATIENCE, **(connector or {})},
            )
        settings = {
            "enforce_eager": True, "max_model_len": 4096, "dtype": "float32", "seed": 0, "block_size": BLOCK,
            "enable_prefix_caching": True,
        }  # fmt: skip
        self.llm = LLM(model, kv_transfer_config=transfer, **{**settings, **engine})

    def ask(self, prompt: list[int], tokens: int = 16, **sampling: Any) -> Answer:
        """Greedy tokens for a prompt."""
        parameters = self.sampling(tokens, **sampling)
        began = time.process_time()
        answer = self.llm.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)[0]
        took = time.process_time() - began
        return Answer(list(answer.outputs[0].token_ids), answer.num_cached_tokens or 0, took)

    def sampling(self, tokens: int, **sampling: Any) -> SamplingParams:
        """Parameters for exactly `tokens` greedy tokens."""
        return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, **sampling)

    def forget(self) -> None:
        """Empties vLLM's own prefix cache."""
        assert self.llm.reset_prefix_cache()


class Child:
    """A process that runs a function with a pipe. Its process group includes all its children."""

    running: ClassVar[list[Child]] = []

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=_work, args=(theirs, function, arguments))
        self.process.start()
        # Parent and child both set the group, so that the order of the two does not matter.
        with contextlib.suppress(ProcessLookupError):
            os.setpgid(self.process.pid or 0, self.process.pid or 0)
        theirs.close()
        Child.running.append(self)

    def receive(self) -> Any:
        """The next message of the function."""
        if not self.pipe.poll(PATIENCE_WITH_ENGINES):
            self.kill()
            raise TimeoutError(f"the child sent nothing for {PATIENCE_WITH_ENGINES} s")
        kind, said = self.pipe.recv()
        if kind == "failed":
            raise AssertionError(said)
        return said

    def send(self, said: Any) -> None:
        self.pipe.send(said)

    def end(self) -> int | None:
        """Waits for the process and returns its exit code."""
        self.process.join(PATIENCE_WITH_ENGINES)
        if self.process.is_alive():
            self.kill()
            raise TimeoutError(f"the child did not end within {PATIENCE_WITH_ENGINES} s")
        Child.running.remove(self)
        return self.process.exitcode

    def kill(self) -> None:
        """Ends the process group: SIGTERM first, so that children can clean up, then SIGKILL."""
        if self not in Child.running:
            return
        Child.running.remove(self)
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signalled(self.process.pid, number)
            with contextlib.suppress(Stuck):
                until("the end of the group", self._has_ended, GRACE)
        self.process.join(PATIENCE)

    def _has_ended(self) -> bool:
        # A look reaps the process, which is in its group until then.
        return not self.process.is_alive() and not _signalled(self.process.pid, 0)


def _signalled(group: int | None, number: int) -> bool:
    """Sends a signal to a group. Returns True if the group has a process."""
    assert group
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _work(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    code = 0
    os.setpgid(0, 0)
    # Only an import of the package reads the variable, and the parent has imported it.
    _native._fail_loads(int(os.environ.get("CENOTE_TEST_FAIL_LOADS", "0")))
    try:
        pipe.send(("said", function(pipe, *arguments)))
    except BaseException:
        code = 1
        pipe.send(("failed", traceback.format_exc()))
    # Skip the exit handlers, which are those of the parent's test run.
    os._exit(code)


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a function in a child process and returns its result."""
    child = Child(function, *arguments)
    try:
        said = child.receive()
        child.end()
    except BaseException:
        child.kill()
        raise
    return said
