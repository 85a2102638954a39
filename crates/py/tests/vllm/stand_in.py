"""A stand-in for TensorRT-LLM, which needs a GPU to be imported: its connector interface, its memory, and a runtime.

The classes have the methods of `tensorrt_llm/_torch/pyexecutor/connectors/kv_cache_connector.py` and the fields of
`kv_cache_layout.py` as NVIDIA published them in 2026. The runtime makes the calls of its executor in their order, reports
requests as differences as its scheduler's output does, and computes KV that all tokens so far determine."""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch


class Worker(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args, self._metadata = llm_args, None
        super().__init__()

    def bind_connector_meta(self, metadata: Any) -> None:
        self._metadata = metadata

    def get_connector_meta(self) -> Any:
        return self._metadata

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None: ...
    @abstractmethod
    def start_load_kv(self, stream: Any) -> None: ...
    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None: ...
    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None: ...
    @abstractmethod
    def wait_for_save(self, stream: Any) -> None: ...
    @abstractmethod
    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> tuple[list[int], list[int]]: ...


class Scheduler(ABC):
    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...
    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]: ...
    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool: ...
    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None: ...


def install() -> None:
    """Makes `tensorrt_llm` importable in this process."""
    names = ["tensorrt_llm"]
    for part in ("_torch", "pyexecutor", "connectors", "kv_cache_connector"):
        names.append(f"{names[-1]}.{part}")
    for name in names:
        sys.modules.setdefault(name, ModuleType(name))
    sys.modules["tensorrt_llm"].__version__ = "1.4.0"  # type: ignore[attr-defined]
    last: Any = sys.modules[names[-1]]
    last.KvCacheConnectorWorker, last.KvCacheConnectorScheduler = Worker, Scheduler


@dataclass
class Arguments:
    """An engine's arguments, those that matter here."""

    model: str = "/models/demo"
    dtype: str = "bfloat16"
    tensor_parallel_size: int = 1
    speculative_config: Any = None
    lora_config: Any = None
    quant: Any = None
    env_overrides: dict[str, str] = field(default_factory=dict)

    def model_dump(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Buffer:
    layer_id: int
    role: str
    expansion: int = 1


class Region:
    """A range of bytes that repeats per block."""

    def __init__(self, blocks: int, size: int, buffers: Sequence[Buffer]) -> None:
        self.size, self.buffers = size, tuple(buffers)
        # A stride that is longer than the range.
        self.memory = torch.zeros(blocks, size + 128, dtype=torch.uint8)

    def as_tensor(self) -> torch.Tensor:
        return self.memory[:, : self.size]


@dataclass
class Group:
    regions: tuple[Region, ...]
    layer_ids: tuple[int, ...] = (0, 1)
    window_size: int | None = None
    replicated_regions: tuple[Region, ...] = ()


@dataclass
class Layout:
    tokens_per_block: int
    groups: tuple[Group, ...]


@dataclass
class Request:
    request_id: int
    tokens: list[int]
    cache_salt: str | None = None
    lora_task_id: int | None = None
    multimodal_hashes: Any = None
    prompt_embedding_table: Any = None
    py_multimodal_data: Any = None
    py_lora_path: str | None = None

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


@dataclass
class Data:
    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    new_block_ids_by_layer_group: list[list[int]]


@dataclass
class Output:
    new_requests: list[Data] = field(default_factory=list)
    cached_requests: list[Data] = field(default_factory=list)


class Stream:
    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def kv(tokens: Sequence[int], salt: str | None, region: int, size: int) -> torch.Tensor:
    """The KV of a block in one range, which all tokens up to the block's end determine."""
    digest = hashlib.sha256(array("q", tokens).tobytes() + repr((salt, region)).encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    return torch.randint(0, 256, (size,), generator=generator, dtype=torch.uint8)


class Engine:
    """One rank: scheduler, worker, memory, and a runtime that computes prompts."""

    def __init__(self, connector: Any, layout: Layout, arguments: Arguments, chunk: int = 1 << 30) -> None:
        self.worker, self.scheduler = connector.CenoteWorker(arguments), connector.CenoteScheduler(arguments)
        self.layout, self.chunk, self.stream = layout, chunk, Stream()
        self.worker.register_kv_cache_layout(layout)
        self.regions = [*layout.groups[0].regions, *layout.groups[0].replicated_regions]
        self.free = list(range(len(self.regions[0].memory)))[::-1]
        self.number = 0

    def run(self, tokens: Sequence[int], *, salt: str | None = None, generate: int = 1, on_device: int = 0, **request: Any) -> int:
        """Computes a prompt and generates tokens. Checks the KV that the request uses. Returns the tokens that were loaded.

        `on_device` tokens are in the engine's own cache."""
        self.number += 1
        asked, size = Request(self.number, list(tokens), cache_salt=salt, **request), self.layout.tokens_per_block
        matched, is_async = self.scheduler.get_num_new_matched_tokens(asked, on_device)
        assert not is_async
        blocks = [self.free.pop() for _ in range(-(-(len(tokens) + generate) // size))]
        for block in range(on_device // size):
            self._write(asked, blocks, block)
        shown = -(-len(tokens) // size)
        self.scheduler.update_state_after_alloc(asked, blocks[:shown])
        position, told_tokens, told_blocks, external = on_device + matched, 0, 0, matched
        is_new, prompt = True, len(tokens)
        while len(asked.tokens) < prompt + generate:
            is_prompt = position < prompt
            scheduled = min(prompt - position, self.chunk) if is_prompt else 1
            shown = -(-len(asked.tokens) // size)
            reported = (position if is_prompt else len(asked.tokens) - 1) - external
            data = Data(self.number, asked.tokens[told_tokens:], blocks[told_blocks:shown], reported, scheduled, [blocks[told_blocks:shown]])
            told_tokens, told_blocks, external = len(asked.tokens), shown, 0
            metadata = self.scheduler.build_connector_meta(Output([data], []) if is_new else Output([], [data]))
            is_new = False
            self.worker.bind_connector_meta(metadata)
            self.worker.start_load_kv(self.stream)
            for layer in range(2):
                self.worker.wait_for_layer_load(layer, self.stream)
                self.worker.save_kv_layer(layer, self.stream)
            self._forward(asked, blocks, position, position + scheduled)
            position += scheduled
            self.worker.wait_for_save(self.stream)
            assert self.worker.get_finished([], []) == ([], [])
            if position >= prompt:
                asked.tokens.append(10_000 + len(asked.tokens))
        assert self.scheduler.request_finished(asked, blocks) is False
        self.free += blocks
        return int(matched)

    def _write(self, asked: Request, blocks: list[int], block: int) -> None:
        size = self.layout.tokens_per_block
        for number, region in enumerate(self.regions):
            region.as_tensor()[blocks[block]] = kv(asked.tokens[: (block + 1) * size], asked.cache_salt, number, region.size)

    def _forward(self, asked: Request, blocks: list[int], start: int, end: int) -> None:
        size = self.layout.tokens_per_block
        # Attention reads everything before the new tokens.
        for block in range(start // size):
            for number, region in enumerate(self.regions):
                wanted = kv(asked.tokens[: (block + 1) * size], asked.cache_salt, number, region.size)
                assert torch.equal(region.as_tensor()[blocks[block]], wanted), f"wrong KV in block {block}"
        for block in range(start // size, -(-end // size)):
            if (block + 1) * size <= end:
                self._write(asked, blocks, block)
            else:
                # Not complete: what other requests left, and a part of this one's.
                for region in self.regions:
                    region.as_tensor()[blocks[block]] = 0xEE

    def close(self) -> None:
        self.worker.shutdown()
