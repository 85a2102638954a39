"""The engine on a real model: its greedy texts are those of transformers, and a second request finds the first one's KV.

`cargo xtask ci` makes the model; by hand, `CENOTE_TEST_MODEL` names its folder."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib import request

import pytest
from waiting import PATIENCE, PATIENCE_WITH_ENGINES, until

COMMAND = Path(sysconfig.get_path("scripts"), "cenote")
REFERENCE: dict[str, Any] = json.loads(Path(__file__).with_name("reference.json").read_text())
TOKENS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the model, with a region of its own."""
    model = os.environ.get("CENOTE_TEST_MODEL")
    if model is None:
        pytest.skip("no model from PyPI: `cargo xtask ci` sets CENOTE_TEST_MODEL where the package index answers")
    said, words = (tmp_path_factory.mktemp("server") / name for name in ("stdout", "stderr"))
    flags = ["--model", model, "--port", "0", "--region-size", "256MiB"]
    with said.open("w") as stdout, words.open("w") as stderr:
        process = subprocess.Popen([COMMAND, "serve", *flags], stdout=stdout, stderr=stderr)
    try:
        until(lambda: f"the server's address; it said {words.read_text()}", lambda: said.read_text() or process.poll(), PATIENCE_WITH_ENGINES)
        address = said.read_text().strip()
        assert address, words.read_text()
        yield address
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0, words.read_text()


def ask(address: str, path: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"model": "smollm2", "temperature": 0, "max_tokens": TOKENS, **fields}).encode()
    post = request.Request(f"{address}/v1/{path}", body, {"content-type": "application/json"})
    with request.urlopen(post, timeout=PATIENCE_WITH_ENGINES) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_greedy_texts_are_those_of_transformers(server: str) -> None:
    for prompt, wanted in REFERENCE["completions"].items():
        assert wanted["margin"] > 0.01, "a closer choice may differ by rounding"
        answer = ask(server, "completions", prompt=prompt)
        assert answer["choices"][0]["text"] == wanted["text"], prompt
        assert answer["usage"]["prompt_tokens"] == wanted["tokens"], prompt


def test_the_second_of_two_equal_chats_finds_its_prefix(server: str) -> None:
    messages = [{"role": "user", "content": REFERENCE["message"]}]
    answers = [ask(server, "chat/completions", messages=messages) for _ in range(2)]
    wanted = REFERENCE["chat"]
    assert wanted["margin"] > 0.01
    for answer in answers:
        assert answer["choices"][0]["message"]["content"] == wanted["text"]
        assert answer["usage"]["prompt_tokens"] == wanted["tokens"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    # Whole blocks of 16 tokens, but for the last token, which is computed for its logits.
    assert cached == [0, (wanted["tokens"] - 1) // 16 * 16]
