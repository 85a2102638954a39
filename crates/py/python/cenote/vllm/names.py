"""Facts of a request, other than its tokens, that name its blocks."""

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

# vLLM's hash of an image, possibly after an adapter's name. Any other text is a name from a client.
_HASH = re.compile("(?:.*:)?[0-9a-f]{64}(?:[0-9a-f]{64})?", re.DOTALL)


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

    def is_named(self, request: Request) -> bool | None:
        """True if all facts that decide the KV of a request are known. None: not yet known."""
        if not all(_HASH.fullmatch(str(feature.identifier)) for feature in request.mm_features or ()):
            return False
        if request.lora_request is None:
            return True
        if self.adapters is None:
            return False
        found = self.adapters.get(*_call(request.lora_request))
        return None if isinstance(found, Future) else found is not None

    def use(self, request: Request) -> AdapterUse | None:
        """The adapter of a request, or None. Raises LookupError if the adapter has no name."""
        lora = request.lora_request
        if lora is None:
            return None
        found = self.adapters.known(*_call(lora)) if self.adapters is not None else None
        if found is None:
            raise LookupError(f"the adapter {lora.lora_name} has no name")
        return AdapterUse(lora.lora_int_id, lora.lora_path, found)

    def keys(self, request: Request, keys: list[bytes]) -> list[bytes]:
        """Names of a request's blocks. The given keys are their suffixes."""
        use = self.use(request)
        return keys if use is None else [use.adapter.digest + key for key in keys]

    def close(self) -> None:
        if self.adapters is not None:
            self.adapters.close()


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
