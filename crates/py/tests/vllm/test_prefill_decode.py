"""A prefill server and a decode server on one region, at the same time, behind vLLM's example proxy."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import models
import pytest
from engines import BLOCK
from servers import Proxy, Server, Stream
from test_sharing import FULL, PROMPT, clean
from waiting import PATIENCE, until

# The proxy is in vLLM's source package, which `cargo xtask vllm` fetches.
PROXY = os.environ.get("CENOTE_TEST_PROXY")
pytestmark = pytest.mark.skipif(not PROXY, reason="CENOTE_TEST_PROXY names no proxy; run the tests with `cargo xtask vllm`")

TOKENS = 24
# Tokens of one step, so that a prompt takes several steps.
STEP = 256
# A prompt, and an answer, that a server works on for many times as long as a test needs to kill it.
LONG_PROMPT, LONG_ANSWER = 4000, 2000


@dataclass
class Pair:
    """The two servers, and a server without a connector."""

    model: str
    region: str
    folder: Path
    alone: Server
    prefill: Server
    decode: Server

    def server(self, name: str, role: str) -> Server:
        """A server of the pair. The caller waits for it."""
        return Server(self.model, f"shm:{self.region}", self.folder / name, "--max-num-batched-tokens", str(STEP), role=role)

    @contextlib.contextmanager
    def proxy(self, tokens: int = TOKENS) -> Iterator[Callable[[list[int]], Iterator[Stream]]]:
        """Streams answers through a new proxy. A proxy forgets a server that failed."""
        assert PROXY
        proxy = Proxy(PROXY, self.model, self.folder / "proxy", self.prefill, self.decode)
        try:
            proxy.wait()
            yield lambda prompt: proxy.stream(self.model, prompt, tokens)
        finally:
            proxy.end()

    def expected(self, prompt: list[int]) -> str:
        """The answer of the server without a connector."""
        return last(self.alone.stream(self.model, prompt, TOKENS)).text

    def close(self) -> None:
        for server in (self.alone, self.prefill, self.decode):
            server.end()


def last(pieces: Iterator[Stream]) -> Stream:
    """The stream when it has ended."""
    *_, stream = pieces
    return stream


def total(server: Server, counter: str) -> float:
    return sum(server.counter(counter).values())


def reaches(server: Server, counter: str, value: float) -> None:
    """Waits until a counter has reached a value: a step's counts follow its answer."""
    until(lambda: (counter, value, server.get("/metrics")), lambda: total(server, counter) >= value)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    model = models.make_elsewhere(folder / "model", "mid")
    region = f"cenote-vllm-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    alone = Server(model, None, folder / "alone", "--max-num-batched-tokens", str(STEP))
    made = Pair(model, region, folder, alone, alone, alone)
    try:
        made.prefill = made.server("prefill", "kv_producer")
        made.decode = made.server("decode", "kv_consumer")
        for server in (alone, made.prefill, made.decode):
            server.wait()
        yield made
        made.close()
        clean(f"shm:{region}")
    finally:
        made.close()
        Path("/dev/shm", region).unlink(missing_ok=True)


def test_streams_come_from_the_decode_server_which_computes_no_full_block(pair: Pair) -> None:
    prompts = [models.prompt(PROMPT, 300 + number) for number in range(4)]
    before = total(pair.decode, "loaded_blocks")
    with pair.proxy() as ask, ThreadPoolExecutor(len(prompts)) as threads:
        streams = list(threads.map(lambda prompt: last(ask(prompt)), prompts))
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.whole
        assert stream.pieces >= TOKENS // 2, "the answer comes in pieces"
        assert stream.text == pair.expected(prompt)
    reaches(pair.decode, "loaded_blocks", before + len(prompts) * FULL // BLOCK)
    assert total(pair.decode, "failed_blocks") == 0
    assert total(pair.decode, "saved_blocks") == 0, "a consumer saves nothing"


def test_blocks_of_a_killed_prefill_server_serve(pair: Pair) -> None:
    prompt = models.prompt(LONG_PROMPT, 400)
    saved = total(pair.prefill, "saved_blocks")
    with pair.proxy() as ask:
        ended: list[Stream] = []
        client = threading.Thread(target=lambda: ended.append(last(ask(prompt))))
        client.start()
        # Killed in the middle of the prompt.
        reaches(pair.prefill, "saved_blocks", saved + 2 * STEP // BLOCK)
        pair.prefill.kill()
        client.join(PATIENCE)
        assert ended
        assert not ended[0].whole, "the proxy needs the prefill server"
    text, cached = pair.decode.ask(prompt)
    assert pair.expected(prompt).startswith(text)
    assert 2 * STEP <= cached < LONG_PROMPT - STEP, "the blocks that were saved before the kill"
    pair.prefill = pair.server("prefill", "kv_producer")
    pair.prefill.wait()
    prompt = models.prompt(PROMPT, 401)
    with pair.proxy() as ask:
        stream = last(ask(prompt))
    assert (stream.whole, stream.text) == (True, pair.expected(prompt))
    reaches(pair.prefill, "saved_blocks", FULL // BLOCK)


def test_a_killed_decode_server_breaks_its_streams_only(pair: Pair) -> None:
    prompt = models.prompt(PROMPT, 500)
    with pair.proxy(LONG_ANSWER) as ask:
        pieces = ask(prompt)
        for _ in range(3):
            broken = next(pieces)
        assert not broken.whole
        pair.decode.kill()
        assert not last(pieces).whole
    pair.decode = pair.server("decode", "kv_consumer")
    pair.decode.wait()
    with pair.proxy() as ask:
        stream = last(ask(prompt))
    assert (stream.whole, stream.text) == (True, pair.expected(prompt))
    reaches(pair.decode, "loaded_blocks", FULL // BLOCK)
    assert total(pair.decode, "failed_blocks") == 0
