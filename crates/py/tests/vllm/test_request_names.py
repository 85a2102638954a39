"""Requests share only what their names cover: images by their bytes, and no other inputs beside tokens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vllm import PoolingParams, SamplingParams
from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFeatureSpec, MultiModalFieldElem, MultiModalKwargsItem, PlaceholderRange
from vllm.multimodal.parse import MultiModalDataParser
from vllm.multimodal.processing.inputs import ProcessorInputs
from vllm.v1.engine import EngineCoreRequest
from waiting import until

from cenote.vllm import media
from cenote.vllm.media import Media, digest_of
from cenote.vllm.names import RequestNames

CONFIG: Any = SimpleNamespace(lora_config=None)
BLACK, WHITE = torch.zeros(3, 4, 4), torch.ones(3, 4, 4)


@pytest.fixture
def names() -> Iterator[RequestNames]:
    made = RequestNames(CONFIG)
    yield made
    made.close()


def item(pixels: torch.Tensor) -> MultiModalKwargsItem:
    return MultiModalKwargsItem({"pixel_values": MultiModalFieldElem(pixels, MultiModalBatchedField())})


def image(pixels: torch.Tensor | None, identifier: str = "image-1", offset: int = 4, length: int = 8) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(None if pixels is None else item(pixels), "image", identifier, PlaceholderRange(offset, length))


def request(number: int, *features: Any, **more: Any) -> Any:
    return SimpleNamespace(request_id=f"r{number}", mm_features=list(features), lora_request=None, **more)


def is_named(names: RequestNames, asked: Any) -> bool:
    until("the hashes", lambda: names.is_named(asked) is not None)
    return bool(names.is_named(asked))


def key(names: RequestNames, asked: Any, end: int = 32) -> bytes:
    [made] = names.keys(asked, [b"hash"], [end])
    return made


def test_vllm_gives_a_clients_name_the_form_of_a_hash_and_no_form_counts(names: RequestNames) -> None:
    """A black and a white image under one `uuid` had one identifier, which was taken for a hash of their bytes."""
    parser = MultiModalDataParser()

    def identifier(colour: str) -> str:
        items = parser.parse_mm_data({"image": [Image.new("RGB", (8, 8), colour)]})
        inputs = ProcessorInputs([1], items, {"image": ["image-1"]}, hf_processor_mm_kwargs={"num_crops": 4})
        [found] = inputs.get_mm_hashes("model", "blake3")["image"]
        return found

    black, white = identifier("black"), identifier("white")
    assert black == white
    assert len(black) == 64
    for number, chosen in enumerate((black, "0" * 64, f"adapter:{'0' * 64}", "image-1")):
        assert not is_named(names, request(number, image(None, chosen))), "its bytes are not known"


def test_one_identifier_with_two_contents_ends_sharing(names: RequestNames) -> None:
    """vLLM's caches go by identifier, so either request may have computed with the other's image."""
    first, other = request(1, image(BLACK, "0" * 64)), request(2, image(WHITE, "0" * 64))
    assert is_named(names, first)
    assert key(names, first).endswith(b"hash")
    assert not is_named(names, other)
    assert not is_named(names, first), "it may have used the other's embeddings since"
    names.forget("r1")
    names.forget("r2")
    assert not is_named(names, request(3, image(BLACK, "0" * 64))), "vLLM's prefix cache may still have blocks of the other"
    assert is_named(names, request(4, image(WHITE, "1" * 64)))


def test_a_name_waits_for_all_hashes_of_its_identifier(names: RequestNames, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes: list[Future[bytes]] = []

    def submit(self: Any, work: Any, *arguments: Any) -> Future[bytes]:
        hashes.append(Future())
        return hashes[-1]

    monkeypatch.setattr(media.ThreadPoolExecutor, "submit", submit)
    first, other = request(1, image(BLACK)), request(2, image(WHITE))
    assert (names.is_named(first), names.is_named(other)) == (None, None)
    hashes[1].set_result(b"white")
    assert names.is_named(other) is None, "vLLM may have begun with the first one after a timeout"
    with pytest.raises(LookupError):
        key(names, first)
    hashes[0].set_result(b"black")
    assert (names.is_named(other), names.is_named(first)) == (False, False)
    with pytest.raises(LookupError):
        key(names, first)


def test_the_content_of_all_items_before_its_end_names_a_block(names: RequestNames) -> None:
    pair = request(1, image(BLACK, "a", 4), image(WHITE, "b", 40))
    alone, other = request(2, image(BLACK, "a", 4)), request(3, image(WHITE, "c", 4))
    longer = request(4, image(BLACK, "a", 4, length=9))
    assert all(is_named(names, asked) for asked in (pair, alone, other, longer))
    assert key(names, pair, 4) == b"hash", "no item begins before"
    assert key(names, pair, 32) == key(names, alone, 32) == key(names, alone, 64)
    assert len({key(names, asked, 64) for asked in (pair, alone, other, longer)}) == 4
    # The same content under another identifier is the same content.
    again = RequestNames(CONFIG)
    assert is_named(again, renamed := request(9, image(BLACK, "z", 4)))
    assert key(again, renamed) == key(names, alone)
    again.close()


def test_items_that_this_process_does_not_see_have_no_name(names: RequestNames) -> None:
    shared_memory = SimpleNamespace(multimodal_config=SimpleNamespace(mm_processor_cache_type="shm"))
    for config in (SimpleNamespace(ec_transfer_config=object()), SimpleNamespace(model_config=shared_memory)):
        config.lora_config = None
        assert not is_named(RequestNames(config), request(1, image(BLACK)))  # type: ignore[arg-type]
    assert not is_named(names, request(1, image(None)))
    assert not is_named(names, request(2, image(BLACK))), "what the identifier meant first is unknown"
    unknown = image(BLACK, "other")
    unknown.data = MultiModalKwargsItem({"pixel_values": MultiModalFieldElem(None, MultiModalBatchedField())})
    assert not is_named(names, request(3, unknown))
    unknown = image(BLACK, "third")
    unknown.data = {"pixel_values": object()}  # type: ignore[assignment]
    assert not is_named(names, request(4, unknown))


def test_a_full_table_gives_new_identifiers_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_KNOWN_MAX", 1)
    known = Media()
    until("the hash", lambda: known.is_named("r1", [image(BLACK, "a")]))
    until("the hash", lambda: known.is_named("r2", [image(BLACK, "b")]) is not None)
    assert known.is_named("r2", [image(BLACK, "b")]) is False
    until("the hash", lambda: known.is_named("r3", [image(BLACK, "a")]))
    known.close()


def test_items_that_vllms_cache_passes_again_are_hashed_once(names: RequestNames, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = image(BLACK)
    calls: list[Any] = []
    monkeypatch.setattr(media, "digest_of", lambda data: calls.append(data) or digest_of(data))
    assert is_named(names, request(1, feature))
    assert is_named(names, request(2, MultiModalFeatureSpec(feature.data, "image", "image-1", PlaceholderRange(7, 8))))
    assert len(calls) == 1


def test_a_digest_covers_names_types_shapes_and_bytes() -> None:
    numbers = torch.arange(12)
    contents: list[Any] = [
        item(numbers), item(numbers.reshape(3, 4)), item(numbers.to(torch.int32)), item(numbers.to(torch.bfloat16)), item(numbers + 1),
        MultiModalKwargsItem({"other": MultiModalFieldElem(numbers, MultiModalBatchedField())}), {"a": [numbers, numbers]},
        {"a": [numbers], "b": [numbers]}, {"a": torch.cat([numbers, numbers])}, np.arange(12), np.arange(12).reshape(3, 4), 1, 1.0, True, "1", b"1",
        [], {}, torch.tensor(1), numbers.reshape(3, 4).T,
    ]  # fmt: skip
    assert len({digest_of(content) for content in contents}) == len(contents)
    assert digest_of(item(numbers.reshape(3, 4).T)) == digest_of(item(numbers.reshape(3, 4).T.contiguous()))


def test_prompt_embeddings_and_extra_arguments_share_nothing(names: RequestNames) -> None:
    """vLLM's hash of embeddings leaves out which positions use the token instead, so 64 tokens of embeddings answered a
    prompt of tokens."""
    assert is_named(names, request(1, prompt_embeds=None, pooling_params=None))
    assert not is_named(names, request(2, prompt_embeds=torch.zeros(64, 8), prompt_is_token_ids=[True] * 64))
    assert not is_named(names, request(3, prompt_embeds=torch.zeros(64, 8), prompt_is_token_ids=None))
    assert is_named(names, request(4, pooling_params=PoolingParams()))
    assert not is_named(names, request(5, pooling_params=PoolingParams(extra_kwargs={"compressed_token_type_ids": 3})))


# Fields of vLLM's request, by what its hash of a block has of them.
_HASHED = {"prompt_token_ids", "cache_salt"}
# Hashed in part: this package adds the rest, or gives the request no name.
_NAMED = {"mm_features", "lora_request", "prompt_embeds", "prompt_is_token_ids", "pooling_params"}
# They decide which tokens follow, when, and where to: no KV of given tokens.
_OTHER = {
    "request_id", "sampling_params", "arrival_time", "data_parallel_rank", "client_index", "current_wave", "priority", "trace_headers",
    "resumable", "external_req_id", "reasoning_ended", "reasoning_parser_kwargs", "abort_immediately", "session_id", "kv_hints",
}  # fmt: skip


def test_every_field_of_vllms_request_is_known() -> None:
    """A field that a later version adds may decide KV without being in its hash. Decide which, and extend the lists."""
    fields = set(EngineCoreRequest.__struct_fields__)
    assert fields <= _HASHED | _NAMED | _OTHER, fields - _HASHED - _NAMED - _OTHER
    pooling = set(PoolingParams.__struct_fields__)
    assert pooling <= {
        "use_activation", "dimensions", "step_tag_id", "returned_token_ids", "task", "requires_token_ids", "skip_reading_prefix_cache",
        "late_interaction_params", "extra_kwargs", "output_kind", "truncate_prompt_tokens", "tok_params",
    }, pooling  # fmt: skip
    assert SamplingParams().extra_args is None
