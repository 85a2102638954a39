"""Client processes with a pipe, servers, and the CPU time of both."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")


class Unable(Exception):
    """A rival cannot take part. The text is the reason."""


@contextlib.contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for processes that start within the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Child:
    """A new interpreter that runs a function with a pipe and its own package folders."""

    def __init__(
        self, packages: Sequence[Path], variables: dict[str, str], function: Callable[..., None], *arguments: Any
    ) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        with environment(variables):
            self.process = _SPAWN.Process(target=_work, args=(theirs, packages, function, arguments), daemon=True)
            self.process.start()
        theirs.close()

    def ask(self, *said: Any, timeout: float = 120) -> Any:
        """Sends a request and returns the answer."""
        self.pipe.send(said)
        return self.receive(timeout)

    def receive(self, timeout: float = 120) -> Any:
        if not self.pipe.poll(timeout):
            self.process.kill()
            raise Unable(f"a client sent nothing for {timeout:.0f} s")
        try:
            kind, said = self.pipe.recv()
        except EOFError:
            self.process.join(10)
            raise Unable(f"a client died, exit code {self.process.exitcode}") from None
        if kind == "failed":
            raise Unable(said)
        return said

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(("end",))
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(10)


def _work(pipe: Connection, packages: Sequence[Path], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    sys.path[:0] = [str(folder) for folder in packages]
    try:
        function(pipe, *arguments)
    except Unable as error:
        pipe.send(("failed", str(error)))
    except BaseException as error:
        traceback.print_exc()
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
    # Skip exit handlers: those of some rivals' clients wait for servers that have ended.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Server:
    """A rival's server, with its output in a file."""

    def __init__(self, name: str, command: Sequence[str | Path], variables: dict[str, str] | None = None) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix=f"cenote-peers-{name}-")
        self.log = Path(self.folder.name, "log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder.name, env=os.environ | (variables or {}), start_new_session=True,
            )  # fmt: skip

    def wait(self, ready: Callable[[], bool], timeout: float = 60) -> None:
        """Waits until `ready` holds.

        Raises `Unable` if the server ends, or after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not ready():
            if (code := self.process.poll()) is not None:
                raise Unable(f"{self.name} ended with code {code}: {self.last_words()}")
            if time.monotonic() > deadline:
                raise Unable(f"{self.name} was not ready within {timeout:.0f} s: {self.last_words()}")
            time.sleep(0.05)

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no output"

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self.folder.cleanup()


def cpu_seconds(*processes: int) -> float:
    """CPU seconds of these processes, including all their threads and children."""
    total = 0.0
    for process in processes:
        clock = ctypes.c_int()
        if ctypes.CDLL(None).clock_getcpuclockid(process, ctypes.byref(clock)) == 0:
            with contextlib.suppress(OSError):
                total += time.clock_gettime(clock.value)
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                total += cpu_seconds(*map(int, thread.read_text().split()))
    return total


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
