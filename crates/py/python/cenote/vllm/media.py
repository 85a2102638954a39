"""Images, audio and videos of requests, named by the bytes that the model gets.

vLLM's identifier of an item is no proof of its content: a client may choose it (`uuid`), and vLLM hashes that
choice together with settings, so the result has the form of a content hash. vLLM's caches (processed items,
encoder outputs, prefixes) go by identifier. So an item counts only if this process has hashed its bytes, and if
its identifier had no other content in this engine's life. A request that fails either shares nothing.

See docs/guides/vllm.md#names."""

from __future__ import annotations

import hashlib
import threading
import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logger_of(__name__)

# Identifiers whose content is remembered, about 200 bytes each. Forgetting one would be unsafe: vLLM's prefix
# cache may still hold its blocks. Later identifiers have no name.
_KNOWN_MAX = 1 << 19
_THREADS = 2

# Content of an identifier that had several, or one that could not be hashed.
_UNKNOWN = b""


@dataclass
class _Items:
    """The items of one request, in order of their places."""

    keys: list[bytes] = field(default_factory=list)
    digests: list[Future[bytes]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    # Per item: the digest of it and of all items before.
    chain: list[bytes] = field(default_factory=list)
    lost: bool = False


class Media:
    """The items of one engine's requests. The scheduler's thread calls it; other threads hash."""

    def __init__(self, sees: bool = True) -> None:
        """`sees`: False if this process does not get the bytes that the model computes from."""
        self.sees = sees
        self._requests: dict[str, _Items] = {}
        # By digest of an identifier: its content so far, and hashes that are not complete.
        self._known: dict[bytes, bytes] = {}
        self._pending: dict[bytes, list[Future[bytes]]] = {}
        # Hashes of items that vLLM's cache passes again, by object.
        self._hashed: dict[int, tuple[weakref.ref[Any], Future[bytes]]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._is_full = False
        self._lock = threading.Lock()

    def is_named(self, request_id: str, features: Sequence[Any]) -> bool | None:
        """True if the content of all these items is known. None: they are being hashed.

        Call it before the engine computes with the items, and in each step that does."""
        if not features:
            return True
        items = self._requests.setdefault(request_id, _Items())
        for feature in features[len(items.keys) :]:
            self._begin(items, feature)
        contents = [self._content(key) for key in items.keys]
        for content, digest in zip(contents, items.digests, strict=True):
            # Sticky: the request has computed with its own content or with the other one.
            items.lost |= content == _UNKNOWN or (content is not None and digest.result() != content)
        if items.lost:
            return False
        return None if None in contents else True

    def prefix(self, request_id: str, features: Sequence[Any], end: int) -> bytes:
        """The name of all items that begin before token `end`; empty without one.

        Raises LookupError unless `is_named` has returned True."""
        if not features or features[0].mm_position.offset >= end:
            return b""
        items = self._requests[request_id]
        if items.lost:
            raise LookupError(f"the images of request {request_id} have no name")
        for number in range(len(items.chain), len(items.digests)):
            digest = items.digests[number]
            if not digest.done():
                raise LookupError(f"the images of request {request_id} have no name yet")
            before = items.chain[-1] if items.chain else b"cenote media v1"
            whole = hashlib.sha256(before + digest.result() + _place(features[number]))
            items.chain.append(whole.digest())
        return items.chain[bisect_left(items.offsets, end) - 1]

    def forget(self, request_id: str) -> None:
        """Forgets a request. Its identifiers stay known."""
        self._requests.pop(request_id, None)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, items: _Items, feature: Any) -> None:
        key = hashlib.blake2b(str(feature.identifier).encode(), digest_size=16).digest()
        digest = self._hash(getattr(feature, "data", None))
        items.keys.append(key)
        items.digests.append(digest)
        items.offsets.append(feature.mm_position.offset)
        self._pending.setdefault(key, []).append(digest)

    def _content(self, key: bytes) -> bytes | None:
        """The content of an identifier; None while a hash of it is not complete."""
        waiting = [digest for digest in self._pending.pop(key, ()) if not self._settle(key, digest)]
        if waiting:
            self._pending[key] = waiting
            return None
        return self._known.get(key, _UNKNOWN)

    def _settle(self, key: bytes, digest: Future[bytes]) -> bool:
        if not digest.done():
            return False
        content = _UNKNOWN if digest.cancelled() or digest.exception() else digest.result()
        if key in self._known:
            if self._known[key] != content:
                self._known[key] = _UNKNOWN
        elif len(self._known) < _KNOWN_MAX:
            self._known[key] = content
        elif not self._is_full:
            self._is_full = True
            logger.warning("Cenote: requests with new images share nothing until a restart, because this engine has seen %d of them", _KNOWN_MAX)
        return True

    def _hash(self, data: Any) -> Future[bytes]:
        with self._lock:
            known = self._hashed.get(id(data))
        if known is not None and known[0]() is data:
            return known[1]
        if data is None or not self.sees:
            failed: Future[bytes] = Future()
            failed.set_exception(LookupError("the content is not in this process"))
            return failed
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "cenote-media")
        digest = self._threads.submit(digest_of, data)
        number = id(data)

        def is_gone(_: Any) -> None:
            with self._lock:
                self._hashed.pop(number, None)

        try:
            reference = weakref.ref(data, is_gone)
        except TypeError:
            return digest
        with self._lock:
            self._hashed[number] = reference, digest
        return digest


def media_of(config: VllmConfig) -> Media:
    """The items of an engine with this configuration."""
    multi_modal = getattr(getattr(config, "model_config", None), "multimodal_config", None)
    # In these cases the scheduler's process gets addresses, or another process computes the embeddings.
    elsewhere = getattr(multi_modal, "mm_processor_cache_type", None) == "shm" or getattr(config, "ec_transfer_config", None) is not None
    return Media(sees=not elsewhere)


def _place(feature: Any) -> bytes:
    """How an item lies in the prompt, apart from its offset, which vLLM's hash has."""
    mask = feature.mm_position.is_embed
    facts = hashlib.sha256(f"{getattr(feature, 'modality', None)} {feature.mm_position.length}".encode())
    if mask is not None:
        _feed(facts, mask)
    return facts.digest()


def digest_of(data: Any) -> bytes:
    """A digest of processed data: names, types, shapes and bytes. Raises TypeError for an unknown type."""
    digest = hashlib.sha256(b"cenote media item v1")
    _feed(digest, data)
    return digest.digest()


def _feed(digest: Any, value: Any) -> None:
    """Each value begins with its kind and length, so no two values give the same bytes."""
    match value:
        case None:
            # vLLM has the content elsewhere.
            raise TypeError("no content")
        case bool() | int() | float():
            _feed_bytes(digest, b"number", repr(value).encode())
        case str():
            _feed_bytes(digest, b"text", value.encode())
        case bytes():
            _feed_bytes(digest, b"bytes", value)
        case torch.Tensor():
            if value.device.type != "cpu" or value.layout != torch.strided:
                raise TypeError(f"a tensor on {value.device}")
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
            _feed_bytes(digest, f"tensor {value.dtype} {tuple(value.shape)}".encode(), flat.numpy().data)
        case np.ndarray() if not value.dtype.hasobject:
            flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            _feed_bytes(digest, f"array {value.dtype.str} {value.shape}".encode(), flat.data)
        case list() | tuple():
            _feed_bytes(digest, b"list", len(value).to_bytes(8, "little"))
            for each in value:
                _feed(digest, each)
        case Mapping():
            _feed_bytes(digest, b"mapping", len(value).to_bytes(8, "little"))
            for name in sorted(value):
                _feed(digest, str(name))
                _feed(digest, value[name])
        case _ if hasattr(value, "field") and hasattr(value, "data"):
            # An element of vLLM's item. Its field says how elements become a batch.
            _feed_bytes(digest, b"element", type(value.field).__name__.encode())
            _feed(digest, value.data)
        case _:
            raise TypeError(f"content of type {type(value).__name__}")


def _feed_bytes(digest: Any, kind: bytes, data: Any) -> None:
    for each in (kind, data):
        digest.update(len(each).to_bytes(8, "little"))
        digest.update(each)
