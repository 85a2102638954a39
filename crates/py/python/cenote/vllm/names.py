"""Facts of a request, other than its tokens, that name its blocks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from vllm import envs

from cenote.adapters import Adapter, Adapters, Loaded
from cenote.vllm.log import logger_of
from cenote.vllm.media import media_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

logger = logger_of(__name__)

@dataclass(frozen=True)
class AdapterUse:
    """The number and path of an adapter in a request, and the adapter's content."""

    number: int
    path: str
    adapter: Adapter


class RequestNames:
    """Names of the blocks of one engine's requests."""

    def __init__(self, config: VllmConfig) -> None:
        self.adapters = Adapters(_facts(config), find_adapter) if config.lora_config is not None else None
        self.media = media_of(config)

    def is_named(self, request: Request) -> bool | None:
        """True if all facts that decide the KV of a request are known. None: not yet known."""
        media = self.media.is_named(_id(request), _features(request))
        if media is False or has_unhashed_inputs(request):
            return False
        if request.lora_request is None:
            return media
        if self.adapters is None:
            return False
        found = self.adapters.get(*_call(request.lora_request))
        if isinstance(found, Future):
            return None
        return media if found is not None else False

    def use(self, request: Request) -> AdapterUse | None:
        """The adapter of a request, or None. Raises LookupError if the adapter has no name."""
        lora = request.lora_request
        if lora is None:
            return None
        found = self.adapters.known(*_call(lora)) if self.adapters is not None else None
        if found is None:
            raise LookupError(f"the adapter {lora.lora_name} has no name")
        return AdapterUse(lora.lora_int_id, lora.lora_path, found)

    def keys(self, request: Request, keys: list[bytes], ends: Sequence[int]) -> list[bytes]:
        """Names of a request's blocks, which end at these tokens. The given keys are their suffixes."""
        if features := _features(request):
            keys = [self.media.prefix(_id(request), features, end) + key for key, end in zip(keys, ends, strict=True)]
        use = self.use(request)
        return keys if use is None else [use.adapter.digest + key for key in keys]

    def forget(self, request_id: str) -> None:
        """Forgets a request that has ended."""
        self.media.forget(request_id)

    def close(self) -> None:
        self.media.close()
        if self.adapters is not None:
            self.adapters.close()


def has_unhashed_inputs(request: Request) -> bool:
    """True if a request has inputs that decide its KV and that vLLM's hash of a block leaves out.

    - Prompt embeddings: the hash has their bytes, but neither their element type nor the mask of the positions
      that use the token instead (`prompt_is_token_ids`). vLLM's own prefix cache gives one request's blocks to
      another, so a mask in the name would not help: blocks after such a hit follow from the other request.
    - Extra arguments of pooling requests, such as the types of tokens."""
    pooling = getattr(request, "pooling_params", None)
    return getattr(request, "prompt_embeds", None) is not None or bool(getattr(pooling, "extra_kwargs", None))


def _id(request: Request) -> str:
    return str(getattr(request, "request_id", ""))


def _features(request: Request) -> Sequence[Any]:
    return getattr(request, "mm_features", None) or ()


def _call(lora: LoRARequest) -> tuple[str, str, bool]:
    return lora.lora_name, lora.lora_path, bool(getattr(lora, "is_3d_lora_weight", False))


def _facts(config: VllmConfig) -> dict[str, Any]:
    """The settings that decide the effect of an adapter."""
    lora = config.lora_config
    names = ("lora_dtype", "target_modules", "enable_tower_connector_lora", "enable_mixed_moe_lora_format", "enable_moe_shared_loras")
    return {name: str(getattr(lora, name, None)) for name in names}


def find_adapter(path: str) -> list[Path]:
    """The local folder from which vLLM reads an adapter, then files that decide the folder.

    Raises OSError or ValueError if the folder cannot be found without the network."""
    if os.path.isabs(path) or path.startswith("~") or Path(path).exists():
        return [Path(path).expanduser().absolute()]
    if envs.VLLM_USE_MODELSCOPE:
        raise ValueError(f"{path} is in ModelScope, which Cenote does not support for adapters")
    folder = Path(huggingface_hub.snapshot_download(path, local_files_only=True))
    # The reference decides the commit that vLLM loads.
    return [folder, folder.parent.parent / "refs" / "main"]


_loaded = Loaded(find_adapter)


def watch_adapters() -> Loaded:
    """Records the adapters that vLLM loads in this process from now on.

    If this vLLM loads adapters in another way, the record stays empty, and the connector saves no
    blocks of requests with adapters."""
    try:
        from vllm.lora.worker_manager import WorkerLoRAManager

        straight = WorkerLoRAManager._load_adapter
    except (ImportError, AttributeError) as error:
        logger.warning("Cenote: requests with adapters share nothing, because this vLLM has no hook for loaded adapters: %s", error)
        return _loaded
    if getattr(straight, "noted", False):
        return _loaded

    def load(self: Any, lora_request: LoRARequest, *rest: Any, **named: Any) -> Any:
        before = _loaded.look(lora_request.lora_path)
        try:
            return straight(self, lora_request, *rest, **named)
        finally:
            _loaded.note(lora_request.lora_int_id, lora_request.lora_path, before)

    load.noted = True  # type: ignore[attr-defined]
    WorkerLoRAManager._load_adapter = load  # type: ignore[method-assign]
    return _loaded
