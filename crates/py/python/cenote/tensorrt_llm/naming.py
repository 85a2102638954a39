"""Names of blocks. TensorRT-LLM reports no hashes of blocks under its newer cache manager, so this module chains its own."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# Arguments that name places. The content of the model and token ids are in the names.
_PLACES = {"model", "tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init", "kv_connector_config"}


def fingerprint(version: str, arguments: Any, layout: Any, model: str, device: str, tenant_salt: str) -> bytes:
    """The identity of one engine's blocks. `model` is the name of the model's content.

    All arguments of the engine count, also those that cannot affect KV: an argument that a later version adds must not be
    missing here. They count as digests, because some may be secret and facts are stored in the region. `layout` describes how a block lies in the engine's memory."""
    [group] = layout.groups
    facts = {
        "tensorrt-llm": version,
        "model": model,
        "arguments": _digests(arguments),
        "device": device,
        "block tokens": layout.tokens_per_block,
        "layers": list(group.layer_ids),
        "regions": [[region.size, [[ref.layer_id, ref.role, ref.expansion] for ref in region.buffers]] for region in _regions(group)],
        "tenant salt": tenant_salt,
    }
    return b"cenote tensorrt-llm v1 " + json.dumps(facts, sort_keys=True).encode()


def _regions(group: Any) -> list[Any]:
    return [*group.regions, *group.replicated_regions]


def _digests(arguments: Any) -> dict[str, str]:
    plain = _plain(arguments)
    if not isinstance(plain, dict):
        plain = {"arguments": plain}
    named = {name: json.dumps(value, sort_keys=True) for name, value in plain.items() if name not in _PLACES}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in named.items()}


def _plain(value: Any) -> Any:
    """A value as JSON. An object's address in this process is no part of it."""
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _ADDRESS.sub("", f"{type(value).__qualname__} {value!r}")


def is_named(request: Any) -> bool:
    """True if the tokens and the cache salt of a request decide its KV.

    An adapter's id does not cover its content; images, embeddings and other inputs beside the tokens have no name here."""
    others = (
        "lora_task_id", "lora_config", "lora_weights", "multimodal_hashes", "multimodal_positions", "multimodal_lengths",
        "multimodal_embedding", "prompt_embedding_table", "prompt_vocab_size", "mrope_rotary_cos_sin", "encoder_tokens",
        "skip_cross_attn_blocks", "cross_attention_mask", "position_ids", "encoder_input_features",
        # Where the PyTorch backend keeps them. Images have no hashes there if an item cannot be hashed.
        "py_multimodal_data", "py_mm_encoder_state", "py_encoder_input_features", "py_lora_path",
    )  # fmt: skip
    return not any(_is_given(getattr(request, name, None)) for name in others)


def _is_given(value: Any) -> bool:
    if value is None:
        return False
    try:
        return len(value) > 0
    except TypeError:
        return True


class Chain:
    """Keys of a request's full blocks, in order. A key covers all tokens up to the end of its block, and the cache salt."""

    def __init__(self, block_tokens: int, cache_salt: str | None) -> None:
        self.block_tokens = block_tokens
        salt = b"\0" if cache_salt is None else b"\1" + str(cache_salt).encode()
        self.keys: list[bytes] = []
        self._parent = hashlib.sha256(b"cenote tensorrt-llm salt v1" + salt).digest()

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Adds the full blocks of the request's tokens, which begin with those of earlier calls."""
        size = self.block_tokens
        for block in range(len(self.keys), len(tokens) // size):
            part = array("q", tokens[block * size : (block + 1) * size]).tobytes()
            self._parent = hashlib.sha256(self._parent + part).digest()
            self.keys.append(self._parent)
        return self.keys
