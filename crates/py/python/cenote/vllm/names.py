"""The facts of a request, besides its tokens, that name its blocks."""

from __future__ import annotations

import os
import re
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
from vllm import envs

from cenote.adapters import Adapter, Adapters, Loaded
from cenote.vllm.log import logger_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

logger = logger_of(__name__)

# vLLM's hash of an image, with an adapter's name before it where that counts. Any other text is a name that a client chose.
_HASH = re.compile("(?:.*:)?[0-9a-f]{64}(?:[0-9a-f]{64})?", re.DOTALL)


@dataclass(frozen=True)
class AdapterUse:
    """An adapter as a request names it, and what it is."""

    number: int
    path: str
    adapter: Adapter


class RequestNames:
    """Of one engine's requests."""

    def __init__(self, config: VllmConfig) -> None:
        self.adapters = Adapters(_facts(config), find_adapter) if config.lora_config is not None else None

    def is_named(self, request: Request) -> bool | None:
        """Whether everything is known that the KV of a request follows from. None: not yet."""
        if not all(_HASH.fullmatch(str(feature.identifier)) for feature in request.mm_features or ()):
            return False
        if request.lora_request is None:
            return True
        if self.adapters is None:
            return False
        found = self.adapters.get(*_call(request.lora_request))
        return None if isinstance(found, Future) else found is not None

    def use(self, request: Request) -> AdapterUse | None:
        """The adapter of a request that is named."""
        lora = request.lora_request
        if lora is None:
            return None
        found = self.adapters.known(*_call(lora)) if self.adapters is not None else None
        if found is None:
            raise LookupError(f"the adapter {lora.lora_name} has no name")
        return AdapterUse(lora.lora_int_id, lora.lora_path, found)

    def keys(self, request: Request, keys: list[bytes]) -> list[bytes]:
        """Names of a request's blocks. They end as before."""
        use = self.use(request)
        return keys if use is None else [use.adapter.digest + key for key in keys]

    def close(self) -> None:
        if self.adapters is not None:
            self.adapters.close()


def _call(lora: LoRARequest) -> tuple[str, str, bool]:
    return lora.lora_name, lora.lora_path, bool(getattr(lora, "is_3d_lora_weight", False))


def _facts(config: VllmConfig) -> dict[str, Any]:
    """The settings that decide what an adapter does to the model."""
    lora = config.lora_config
    names = ("lora_dtype", "target_modules", "enable_tower_connector_lora", "enable_mixed_moe_lora_format", "enable_moe_shared_loras")
    return {name: str(getattr(lora, name, None)) for name in names}


def find_adapter(path: str) -> list[Path]:
    """The folder that vLLM reads an adapter from, as far as the network is not needed."""
    if os.path.isabs(path) or path.startswith("~") or Path(path).exists():
        return [Path(path).expanduser().absolute()]
    if envs.VLLM_USE_MODELSCOPE:
        raise ValueError(f"{path} is in a hub whose cache is not known here")
    folder = Path(huggingface_hub.snapshot_download(path, local_files_only=True))
    # The reference tells which commit vLLM loads.
    return [folder, folder.parent.parent / "refs" / "main"]


_loaded = Loaded(find_adapter)


def watch_adapters() -> Loaded:
    """Notes the adapters that vLLM loads in this process from now on. If vLLM loads them in another way, none is noted, and nothing
    of requests with adapters is saved."""
    try:
        from vllm.lora.worker_manager import WorkerLoRAManager

        straight = WorkerLoRAManager._load_adapter
    except (ImportError, AttributeError) as error:
        logger.warning("Cenote: requests with adapters share nothing, because this vLLM does not show what it loads: %s", error)
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
