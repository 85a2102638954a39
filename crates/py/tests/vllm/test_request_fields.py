"""The list of vLLM's request fields by which `cenote serve` knows what it must not ignore is complete."""
import importlib
from pathlib import Path

import pytest

LIST = Path(__file__).parents[4] / "crates/serve/tests/serve/vllm_request_fields.txt"
PLACES = {
    "CompletionRequest": ("vllm.entrypoints.openai.completion.protocol", "vllm.entrypoints.openai.protocol"),
    "ChatCompletionRequest": ("vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.openai.protocol"),
}


def fields(name):
    for place in PLACES[name]:
        try:
            return set(getattr(importlib.import_module(place), name).model_fields)
        except (ImportError, AttributeError):
            continue
    pytest.fail(f"vLLM has no {name} where this test looks for it")


@pytest.mark.parametrize("name", PLACES)
def test_each_field_of_vllm_s_requests_is_listed(name):
    listed = {line.split()[1] for line in LIST.read_text().splitlines() if not line.startswith("#")}
    assert fields(name) - listed == set()
