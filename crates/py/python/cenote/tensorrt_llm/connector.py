"""TensorRT-LLM's scheduler and worker of a KV cache connector, for engines of one rank.

TensorRT-LLM has no way to take back a promised block: after `get_num_new_matched_tokens` it computes the rest of the prompt
with whatever lies in the promised blocks. So the scheduler promises only blocks that it has copied out of the region and
verified. The worker copies them to the GPU from there, and nothing in the region can spoil them any more."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from typing import Any

import tensorrt_llm
import torch
from tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector import KvCacheConnectorScheduler, KvCacheConnectorWorker

import cenote
from cenote.attachment import SETTINGS, Attachment, Wanted, check_names
from cenote.clock import Deadline
from cenote.model_files import weights_name
from cenote.serving import FaultCounts, serving, serving_with
from cenote.tensorrt_llm import naming

logger = logging.getLogger(__name__)

_VARIABLE = "CENOTE_TENSORRT_LLM"
_SETTINGS = SETTINGS | {"model_folder", "model_fingerprint", "timeout", "staging_bytes"}
_NO_PAGE = -1


@dataclass(frozen=True)
class _Settings:
    wanted: Wanted
    given: dict[str, Any]
    # Seconds for which a lookup or a save copies blocks. The engine waits for both.
    timeout: float
    # Bytes of promised blocks, of all requests.
    staging_bytes: int

    @classmethod
    def read(cls) -> _Settings:
        text = os.environ.get(_VARIABLE, "")
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ValueError(f'{_VARIABLE} is no JSON ({error}); set it to {{"region": "shm:NAME", "model_folder": "MODEL"}}') from error
        if not isinstance(given, dict):
            raise ValueError(f'{_VARIABLE} is no JSON object; set it to {{"region": "shm:NAME", "model_folder": "MODEL"}}')
        check_names(_VARIABLE, given, _SETTINGS)
        timeout, staging = float(given.get("timeout", 0.5)), int(given.get("staging_bytes", 1 << 30))
        if not timeout > 0 or staging < 1:
            raise ValueError(f"{_VARIABLE}: timeout and staging_bytes must be above 0")
        return cls(Wanted.of(_VARIABLE, given), given, timeout, staging)


def _refuse(arguments: Any) -> None:
    """Refuses engines whose blocks have parts elsewhere, or KV that the tokens do not decide."""
    reasons = {
        "tensor_parallel_size": "several ranks, of which only the first could verify its blocks before they are promised",
        "pipeline_parallel_size": "several stages",
        "context_parallel_size": "a context split over ranks",
        "moe_cluster_parallel_size": "several ranks",
    }
    for name, reason in reasons.items():
        if int(getattr(arguments, name, None) or 1) > 1:
            raise ValueError(f"Cenote does not support {reason}: {name} is {getattr(arguments, name)}")
    for name in ("speculative_config", "lora_config", "sparse_attention_config"):
        if getattr(arguments, name, None) is not None:
            raise ValueError(f"Cenote does not support {name} of TensorRT-LLM")
    if getattr(arguments, "enable_attention_dp", False):
        raise ValueError("Cenote does not support enable_attention_dp of TensorRT-LLM")
    if getattr(getattr(arguments, "kv_cache_config", None), "max_attention_window", None):
        raise ValueError("Cenote does not support max_attention_window of TensorRT-LLM: a window's blocks are used again")


@dataclass
class _Metadata:
    """One step's work for the worker."""

    # Promised content, and the block of the GPU for it.
    loads: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    # Key, index in its sequence, and the block of the GPU with the content.
    saves: list[tuple[bytes, int, int]] = field(default_factory=list)


@dataclass
class _Request:
    chain: naming.Chain
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    # Blocks of the GPU, by index in the sequence.
    blocks: list[int] = field(default_factory=list)
    # Promised content that the GPU does not have yet, by index in the sequence.
    promised: dict[int, torch.Tensor] = field(default_factory=dict)
    # Blocks before this index are saved, or were looked at.
    saved: int = 0


# The worker of this process. The scheduler of the first rank is in the same process.
_worker: CenoteWorker | None = None


class CenoteWorker(KvCacheConnectorWorker, FaultCounts):  # type: ignore[misc]
    """Copies blocks between the GPU's memory and this process, and saves them in the region."""

    def __init__(self, llm_args: Any) -> None:
        global _worker
        KvCacheConnectorWorker.__init__(self, llm_args)
        self.count_faults(logger)
        _refuse(llm_args)
        self.settings = _Settings.read()
        self.model = weights_name(self.settings.given, _VARIABLE, logger)
        self.region: cenote.Region | None = None
        self.blocks: cenote.Namespace | None = None
        self._attachment: Attachment | None = None
        self._memory: list[torch.Tensor] = []
        self.block_bytes = self.block_tokens = 0
        self._staging: torch.Tensor | None = None
        _worker = self

    # --- start ---

    def register_kv_caches(self, kv_cache_tensor: torch.Tensor) -> None:
        raise ValueError("Cenote needs TensorRT-LLM's KVCacheManagerV2, which says how a block lies: set kv_cache_config.use_kv_cache_manager_v2")

    def register_kv_cache_layout(self, layout: Any) -> None:
        """Joins the region. The size of a block is known only from the engine's memory."""
        if len(layout.groups) != 1 or layout.groups[0].window_size is not None:
            windows = [group.window_size for group in layout.groups]
            raise ValueError(f"Cenote supports one group of full attention; this model has {len(windows)} groups with windows {windows}")
        [group] = layout.groups
        regions = [*group.regions, *group.replicated_regions]
        self._memory = [region.as_tensor() for region in regions]
        self.block_bytes, self.block_tokens = sum(region.size for region in regions), int(layout.tokens_per_block)
        if any(region.size % 64 for region in regions):
            raise ValueError(f"a block has parts of {[region.size for region in regions]} bytes, which are not all multiples of 64")
        wanted = self.settings.wanted
        device = self._memory[0].device
        kind = f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)}" if device.type == "cuda" else device.type
        identity = naming.fingerprint(
            str(tensorrt_llm.__version__), self._llm_args, layout, self.model.hold(logger), kind, wanted.salt
        )
        attachment = Attachment(wanted, "tensorrt-llm", self.block_bytes, logger)
        self.blocks = attachment.namespace(
            identity,
            self.block_bytes,
            label=str(getattr(self._llm_args, "model", "")).rstrip("/").rsplit("/", 1)[-1],
            block_tokens=self.block_tokens,
            num_layers=len(group.layer_ids),
            starts=True,
        )
        self.region, self._attachment = attachment.region, attachment
        self._staging = self._buffer()

    def _buffer(self) -> torch.Tensor:
        return torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=self._memory[0].device.type == "cuda")

    # --- for the scheduler ---

    def fetch(self, keys: list[bytes], limit: int) -> list[torch.Tensor]:
        """Copies blocks out of the region, in order up to the first that is missing or damaged, or beyond `limit`."""
        if self.blocks is None:
            raise RuntimeError("the engine has registered no memory")
        if self._attachment is not None:
            self._attachment.look()
        names, end = self.blocks.alias(keys[:limit]), Deadline(self.settings.timeout)
        # The scheduler waits neither for the cold tier nor for peers. A later request finds these blocks.
        self.blocks.promote(names)
        found = []
        with self.blocks.lookup(names) as lease:
            for at in range(len(lease)):
                content = self._buffer()
                if end.passed or not lease.read_into(at, [(content.data_ptr(), self.block_bytes)]):
                    break
                found.append(content)
        return found

    # --- TensorRT-LLM's calls in a step ---

    def start_load_kv(self, stream: Any) -> None:
        # A failure here ends the engine: without this content it would compute with the KV of another request.
        metadata = self.get_connector_meta()
        for content, block in metadata.loads if metadata is not None else ():
            start = 0
            for memory in self._memory:
                row = memory[block]
                row.copy_(content[start : start + row.numel()], non_blocking=False)
                start += row.numel()

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Loads are complete before the first layer."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Blocks are saved whole, after the last layer."""

    @serving(lambda: None)
    def wait_for_save(self, stream: Any) -> None:
        metadata = self.get_connector_meta()
        if metadata is None or not metadata.saves or self.blocks is None or self._staging is None:
            return
        names = self.blocks.alias([key for key, _, _ in metadata.saves])
        missing = [at for at, there in enumerate(self.blocks.present(names)) if not there]
        if not missing:
            return
        stream.synchronize()
        end = Deadline(self.settings.timeout)
        for at in missing:
            if end.passed:
                break
            _, depth, block = metadata.saves[at]
            start = 0
            for memory in self._memory:
                row = memory[block]
                self._staging[start : start + row.numel()].copy_(row)
                start += row.numel()
            self.blocks.publish(names[at], depth, [(self._staging.data_ptr(), self.block_bytes)])

    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> tuple[list[int], list[int]]:
        # No load and no save outlives its step.
        return list(finished_gen_req_ids), list(started_loading_req_ids)

    @serving(lambda: None)
    def shutdown(self) -> None:
        """Leaves the region."""
        self.blocks = None
        if self.region is not None:
            self.region.close()


class CenoteScheduler(KvCacheConnectorScheduler, FaultCounts):  # type: ignore[misc]
    """Chooses the blocks of each request that come from the region, and those that go there."""

    def __init__(self, llm_args: Any) -> None:
        KvCacheConnectorScheduler.__init__(self, llm_args)
        self.count_faults(logger)
        _refuse(llm_args)
        self.settings = _Settings.read()
        self.requests: dict[int, _Request] = {}
        # The engine removes a request's images after their use, and may run the request again.
        self.unnamed: set[int] = set()

    @serving(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        # A request that runs again has other blocks of the GPU.
        self.requests.pop(request.request_id, None)
        if not naming.is_named(request):
            self.unnamed.add(request.request_id)
        if _worker is None or not _worker.block_tokens or request.request_id in self.unnamed:
            return 0, False
        size = _worker.block_tokens
        tokens = [int(token) for token in request.get_tokens(0)]
        mine = _Request(naming.Chain(size, getattr(request, "cache_salt", None)), tokens)
        keys = mine.chain.extend(tokens)
        self.requests[request.request_id] = mine
        if num_computed_tokens % size:
            return 0, False
        # The engine has to compute at least one token.
        first, last = num_computed_tokens // size, (len(tokens) - 1) // size
        held = sum(len(other.promised) for other in self.requests.values())
        room = self.settings.staging_bytes // _worker.block_bytes - held
        if first >= last or room <= 0:
            return 0, False
        contents = _worker.fetch(keys[first:last], room)
        mine.promised = dict(enumerate(contents, first))
        return len(contents) * size, False

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        """The blocks come with the scheduler's output."""

    @serving_with(lambda *_: None)
    def cancel_load(self, request: Any, start: int, end: int) -> None:
        """Takes back a part of a promise that the engine does not use."""
        if (mine := self.requests.get(request.request_id)) is not None and _worker is not None:
            size = _worker.block_tokens
            mine.promised = {block: content for block, content in mine.promised.items() if not start <= block * size < end}

    def build_connector_meta(self, scheduler_output: Any) -> _Metadata:
        metadata = _Metadata()
        for data in scheduler_output.new_requests:
            if (mine := self.requests.get(data.request_id)) is not None:
                # The engine reports a request from its beginning again if it runs again.
                mine.tokens, mine.blocks, mine.saved = [], [], 0
        for data in (*scheduler_output.new_requests, *scheduler_output.cached_requests):
            if (mine := self.requests.get(data.request_id)) is not None:
                # Not guarded: a promise that is dropped here would leave the engine with another request's KV.
                self._blocks_of(mine, data)
                for index in [index for index in mine.promised if index < len(mine.blocks)]:
                    if mine.blocks[index] != _NO_PAGE:
                        metadata.loads.append((mine.promised.pop(index), mine.blocks[index]))
                self._saves(mine, data, metadata)
        return metadata

    def _blocks_of(self, mine: _Request, data: Any) -> None:
        grouped = getattr(data, "new_block_ids_by_layer_group", None)
        mine.blocks.extend(int(block) for block in (grouped[0] if grouped else data.new_block_ids))
        mine.tokens.extend(int(token) for token in data.new_tokens)

    @serving_with(lambda *_: None)
    def _saves(self, mine: _Request, data: Any, metadata: _Metadata) -> None:
        """Adds the blocks that are complete at the end of this step.

        `computed_position` leaves out what was loaded in a request's first step, so the rest of such blocks follows in the
        next step. That is late but never early."""
        length = min(len(mine.prompt), len(mine.tokens))
        if mine.prompt[:length] != mine.tokens[:length]:
            raise ValueError("the engine reports other tokens than those of the lookup")
        if len(mine.tokens) < len(mine.prompt):
            return
        keys = mine.chain.extend(mine.tokens)
        computed = min(int(data.computed_position) + int(data.num_scheduled_tokens), len(mine.tokens))
        end = min(computed // mine.chain.block_tokens, len(keys), len(mine.blocks))
        for index in range(mine.saved, end):
            if mine.blocks[index] != _NO_PAGE:
                metadata.saves.append((keys[index], index, mine.blocks[index]))
        mine.saved = max(mine.saved, end)

    @serving_with(lambda *_: False)
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self.requests.pop(request.request_id, None)
        self.unnamed.discard(request.request_id)
        # Nothing is being saved any more.
        return False

    @serving_with(lambda *_: None)
    def request_reset(self, request: Any) -> None:
        """The engine took the request's blocks away and will run it again."""
        self.requests.pop(request.request_id, None)
