"""DeepSeek-V4.1's Engram and Qwen3.8's PLE with tables of a region, in the place of vLLM's own.

`install` replaces the two classes that hold tables. Hashing, sharding of heads over ranks, staging,
prefetch on a side stream and all that follows stay vLLM's. See docs/guides/engram.md#vllm.

A lookup that fails raises: an engine has no other source of these rows, and zeros would be wrong
results.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
import vllm
from torch import nn
from vllm.config import get_current_vllm_config
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.utils import set_weight_attrs
from vllm.models.deepseek_v41.common import engram as deepseek
from vllm.models.qwen4_exp.common import ngram_embedding as qwen
from vllm.platforms import current_platform

import cenote
from cenote.device import DeviceTable
from cenote.vllm.log import logger_of
from cenote.vllm.tables import Settings, opened_of, settings
from cenote.vllm.version import check_version

logger = logger_of(__name__)

# Formats of a table by the model that reads it.
_DEEPSEEK = "e4m3-ue8m0"
_QWEN = {"e4m3": torch.float8_e4m3fn, "bf16": torch.bfloat16}
# Bytes of rows that are compared at a time.
_COMPARED_BYTES = 16 << 20


class Reader:
    """Rows of one table for tensors of row numbers, on the processor or by the GPU."""

    def __init__(self, table: cenote.Table, region: cenote.Region) -> None:
        self.table, self.region = table, region
        self._places: dict[torch.device, DeviceTable] = {}

    def prepare(self, device: torch.device) -> None:
        """Registers the region for a GPU. Later gathers allocate nothing, so graphs can hold them."""
        if device.type == "cuda" and device not in self._places:
            from cenote.device.cuda import CudaDevice

            self._places[device] = DeviceTable(CudaDevice.of(device), self.region, self.table)

    def gather(self, ids: torch.Tensor, out: torch.Tensor, rows: range, known_heads: int) -> None:
        """Fills `out`, of shape (tokens, heads, …), with the rows of `ids`, of shape (tokens, ≥ heads).

        Numbers outside of `rows`, and heads from `known_heads` on, give zeros."""
        tokens, heads = out.shape[0], out.shape[1]
        if tokens * heads == 0:
            return
        decode = out.dtype == torch.bfloat16 and self.table.facts["format"] != "bf16"
        if out.stride(-1) != 1 or (heads > 1 and out.stride(1) != out.shape[2]):
            raise ValueError(f"rows of a token must be contiguous, and the output has strides {out.stride()}")
        if ids.device.type == "cuda":
            self.prepare(ids.device)
            self._places[ids.device].gather(
                (ids.data_ptr(), ids.element_size()), out.data_ptr(), tokens, heads,
                id_strides=(ids.stride(0), ids.stride(1)), known_heads=known_heads, first_row=rows.start, end_row=rows.stop,
                out_stride=out.stride(0) * out.element_size(), decode=decode,
            )  # fmt: skip
            return
        owned = torch.zeros(tokens, heads, dtype=torch.bool)
        owned[:, :known_heads] = (ids[:, :known_heads] >= rows.start) & (ids[:, :known_heads] < rows.stop)
        numbers = torch.zeros(tokens, heads, dtype=torch.int64)
        numbers[:, :known_heads] = ids[:, :known_heads]
        numbers.masked_fill_(~owned, 0)
        gathered = torch.empty((tokens, heads, out.shape[2]), dtype=out.dtype)
        self.table.gather(numbers, gathered.view(torch.uint8), dtype="bfloat16" if decode else "stored")
        # By bytes: not every type has a fill.
        gathered.view(torch.uint8)[~owned] = 0
        out.copy_(gathered)

    def compare(self, loaded: torch.Tensor, rows: range, place: range, first_row: int | None = None) -> None:
        """Raises ValueError if rows of the checkpoint are not those of the table.

        `rows` are those that this rank reads, and `place` the bytes of a stored row that `loaded` has.
        It has all rows, or those of a shard from `first_row` on. Names, sizes and times prove nothing
        about rows, so all bytes are compared."""
        table, whole, first_row = self.table, first_row is None, first_row or 0
        fits = first_row + loaded.shape[0] <= table.rows and not (whole and loaded.shape[0] != table.rows)
        if loaded.dim() != 2 or not fits or loaded.shape[1] * loaded.element_size() != len(place):
            raise self.other(f"the checkpoint has a tensor of {tuple(loaded.shape)} for rows from {first_row} on")
        begin, end = max(rows.start, first_row), min(rows.stop, first_row + loaded.shape[0])
        step = max(1, _COMPARED_BYTES // table.row_bytes)
        stored = torch.empty((step, table.row_bytes), dtype=torch.uint8, device="cpu")
        for row in range(begin, end, step):
            numbers = torch.arange(row, min(row + step, end), dtype=torch.int64, device="cpu")
            ours = stored[: len(numbers)]
            table.gather(numbers, ours)
            theirs = loaded[row - first_row : row - first_row + len(numbers)].contiguous().cpu().view(torch.uint8)
            differs = (ours[:, place.start : place.stop] != theirs).any(dim=1)
            if bool(differs.any()):
                raise self.other(f"row {row + int(differs.nonzero()[0])} of the checkpoint is another one")

    def other(self, what: str) -> ValueError:
        return ValueError(
            f"CENOTE_ENGRAM: table {self.table.name} (digest {self.table.digest[:16]}) is not the table of the checkpoint that vLLM "
            f"loads: {what}; load this checkpoint's tables under names of their own, and give those in `tables`"
        )


def _reader(given: Settings, layer: int, rows: int, values: int, formats: list[str]) -> Reader:
    """Opens the table of a layer. Raises ValueError if it is another than the model reads."""
    model = get_current_vllm_config().model_config.model
    tables = opened_of(given)
    table = tables.table(given.name_of(layer, model))
    facts = table.facts
    if facts["format"] not in formats or table.row_values != values or table.rows != rows:
        raise ValueError(
            f"CENOTE_ENGRAM: table {table.name} has {table.rows} rows of {table.row_values} values in {facts['format']}, and layer "
            f"{layer} of {model} reads {rows} rows of {values} values in {' or '.join(formats)}"
        )
    if facts.get("layer") not in (None, layer):
        raise ValueError(f"CENOTE_ENGRAM: table {table.name} is of layer {facts['layer']}, and layer {layer} reads it")
    logger.info("Cenote: layer %d reads table %s (%d rows, digest %s)", layer, table.name, table.rows, table.digest[:16])
    return Reader(table, tables.region)


class RegionEngramEmbedding(deepseek.ParallelEngramEmbedding):
    """The heads of this rank, read out of the region."""

    def __init__(self, given: Settings, layer: int, rows: int, dim: int, head_sizes: tuple[int, ...], block_size: int = 32) -> None:
        nn.Module.__init__(self)
        self.reader = _reader(given, layer, rows, dim, [_DEEPSEEK])
        if block_size != 32:
            raise ValueError(f"a scale of {block_size} values; tables of the region have one for 32")
        self.num_embeddings, self.dim, self.block_size = self.reader.table.rows, dim, block_size
        self.n_hash_cols = len(head_sizes)
        self.tp_size, self.dp_size = get_tensor_model_parallel_world_size(), 1
        # Replicas read the same region, so heads are shared out among tensor-parallel ranks only.
        shards, rank = self._get_shard_info()
        self.part_n_hash_cols = -(-self.n_hash_cols // shards)
        self.head_start = rank * self.part_n_hash_cols
        head_end = self.head_start + self.part_n_hash_cols
        self.vocab_start_idx, self.vocab_end_idx = sum(head_sizes[: self.head_start]), sum(head_sizes[:head_end])
        self.part_num_embeddings = self.vocab_end_idx - self.vocab_start_idx
        # vLLM prefetches tables of host memory on a side stream.
        self.cpu_offload, self.dp_shared_memory, self.use_thp = torch.cuda.is_available(), False, False
        device = torch.empty(0).device
        self.reader.prepare(device)
        # Without rows: checkpoints name these parameters.
        self.weight = nn.Parameter(torch.empty(0, dim, dtype=torch.float8_e4m3fn, device="cpu"), requires_grad=False)
        self.weight_scale_inv = nn.Parameter(torch.empty(0, dim // block_size, dtype=torch.uint8, device="cpu"), requires_grad=False)
        self._compares = given.compare
        for param in (self.weight, self.weight_scale_inv):
            set_weight_attrs(param, {"weight_loader": self._compare})

    def _compare(self, param: nn.Parameter, loaded_weight: torch.Tensor, **_: Any) -> None:
        """Takes a table's tensor of the checkpoint: the region has it already."""
        if self._compares:
            rows = range(self.vocab_start_idx, self.vocab_end_idx)
            scales = range(self.dim, self.reader.table.row_bytes)
            self.reader.compare(loaded_weight, rows, scales if param is self.weight_scale_inv else range(self.dim))

    def lookup(self, indices: torch.Tensor, out: torch.Tensor, background: bool = False) -> None:
        """Rows of this rank's heads, as bfloat16, or packed for bytes."""
        del background
        heads = self.part_n_hash_cols
        known = max(0, min(heads, self.n_hash_cols - self.head_start))
        self.reader.gather(indices[:, self.head_start :], out, range(self.vocab_start_idx, self.vocab_end_idx), known)


def _create_embedding(self: Any, layout: Any, layer_hash_index: int) -> Any:
    given = settings()
    if given is None:
        return _OWN["deepseek"](self, layout, layer_hash_index)
    config = get_current_vllm_config().engram_config
    if deepseek.get_engram_dp_size() > 1 and not (config is not None and config.dp_shared_memory):
        raise ValueError(
            "CENOTE_ENGRAM: replicas of one deployment would exchange rows that all can read: give --engram-config.dp_shared_memory true"
        )
    sizes = tuple(size for order in layout.primes[layer_hash_index] for size in order)
    rows = layout.num_embeddings[layer_hash_index]
    return RegionEngramEmbedding(given, layout.layer_ids[layer_hash_index], rows, layout.head_dim, sizes)


class RegionPLEEmbedding(qwen.Qwen4ExpPLEPinnedHostEmbedding):
    """The rows of this rank's part of the vocabulary, read out of the region."""

    supports_prefetch: ClassVar[bool] = torch.cuda.is_available()

    def __init__(self, num_embeddings: int, embedding_dim: int, **given: Any) -> None:
        chosen = settings()
        assert chosen is not None
        numbers = re.findall(r"\.layers\.(\d+)\.", f".{given['prefix']}.")
        if len(numbers) != 1:
            raise ValueError(f"CENOTE_ENGRAM: {given['prefix']} names no layer")
        # The configuration counts from one.
        reader = _reader(chosen, int(numbers[0]) + 1, num_embeddings, embedding_dim, list(_QWEN))
        table = reader.table
        # The base class of both kinds of storage: the pinned one would look at weights.
        super(qwen.Qwen4ExpPLEPinnedHostEmbedding, self).__init__(num_embeddings, embedding_dim, **given)
        self.reader, self._format, self._compares = reader, table.facts["format"], chosen.compare
        if self.weight.dtype != _QWEN[self._format]:
            raise ValueError(f"CENOTE_ENGRAM: table {table.name} is {self._format}, and the model's configuration says {self.weight.dtype}")
        heads = int(given.get("num_ngram_heads", 1))
        # vLLM's prefetch reads these attributes; its view stands for the device.
        self._uva_weight = torch.empty(0, dtype=torch.uint8)
        self.reader.prepare(self._uva_weight.device)
        self._prefetch_stream, self._prefetch_buffer = None, None
        self._prefetch_alloc_lock = qwen.threading.Lock()
        self._prefetch_rows = int(given.get("max_total_tokens", 0)) * self.etp_data_parallel_size
        self._num_ngram_heads, self._output_dim = heads, heads * self.embedding_dim
        scale = torch.tensor(table.facts.get("scale") or 1.0, dtype=torch.float32, device=self._uva_weight.device)
        self.register_buffer("_table_scale", scale, persistent=False)

    def allocate_embedding_weight(self, num_embeddings: int, embedding_dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Without rows: checkpoints name this parameter."""
        del num_embeddings
        return torch.empty(0, embedding_dim, dtype=dtype, device="cpu")

    def weight_loader(self, param: torch.Tensor, loaded_weight: torch.Tensor, checkpoint_start: int | None = None) -> None:
        if self._compares:
            self._compare(param, loaded_weight, checkpoint_start)
        if param is not self.weight:
            super().weight_loader(param, loaded_weight, checkpoint_start)

    def _compare(self, param: torch.Tensor, loaded_weight: torch.Tensor, first_row: int | None) -> None:
        if param is self.weight:
            rows = range(self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index)
            self.reader.compare(loaded_weight, rows, range(self.reader.table.row_bytes), first_row)
        elif self._format == "e4m3" and loaded_weight.numel() == 1:
            ours, theirs = self._table_scale.float().cpu(), loaded_weight.float().cpu()
            if float(ours) != float(theirs):
                raise self.reader.other(f"its scale is {float(ours)}, and the checkpoint's is {float(theirs)}")

    def _lookup(self, input_ids: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        shape = (*input_ids.shape, self.embedding_dim)
        if output is None:
            output = torch.empty(shape, dtype=self.weight.dtype, device=input_ids.device)
        elif tuple(output.shape) != shape or output.dtype != self.weight.dtype or output.device != input_ids.device:
            raise ValueError(f"rows of {shape} and {self.weight.dtype} do not fit an output of {tuple(output.shape)} and {output.dtype}")
        ids = input_ids.reshape(-1, input_ids.shape[-1])
        rows = range(self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index)
        self.reader.gather(ids, output.view(*ids.shape, self.embedding_dim), rows, ids.shape[1])
        return output

    def dequantize(self, embeddings: torch.Tensor, output_dtype: torch.dtype) -> torch.Tensor:
        """With the scale of the region's table, which a checkpoint's parameter repeats."""
        if self._format == "bf16":
            return embeddings
        return embeddings.to(output_dtype) * self._table_scale.to(output_dtype)

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        if self.supports_prefetch:
            return super().forward(input_)
        return self.sync_lookup(input_)


_OWN: dict[str, Any] = {}


def install() -> None:
    """Replaces vLLM's tables in this process. A second call has no effect."""
    check_version(vllm.__version__)
    given = settings()
    if _OWN or given is None:
        return
    if not (current_platform.is_cuda() or current_platform.is_cpu()):
        raise ValueError(f"CENOTE_ENGRAM: tables of a region are for NVIDIA GPUs and processors, not for {current_platform.device_name}")
    from vllm.models.qwen4_exp.nvidia import ngram_embedding as nvidia

    _OWN["deepseek"] = deepseek.Engram._create_embedding
    deepseek.Engram._create_embedding = _create_embedding  # type: ignore[method-assign]
    for name in ("Qwen4ExpPLEDeviceEmbedding", "Qwen4ExpPLEPinnedHostEmbedding"):
        _OWN[name] = getattr(nvidia, name)
        setattr(nvidia, name, RegionPLEEmbedding)
    if current_platform.is_cuda():
        from vllm.models.deepseek_v41.nvidia import model

        # vLLM asks whether /dev/shm has room for tables of its own, and makes none here.
        model.can_share_engram_tables = lambda layout: True
    logger.info("Cenote: n-gram tables are read from region %s", given.region)


def uninstall() -> None:
    """Takes `install` back, for tests."""
    from vllm.models.qwen4_exp.nvidia import ngram_embedding as nvidia

    if _OWN:
        deepseek.Engram._create_embedding = _OWN.pop("deepseek")  # type: ignore[method-assign]
        for name in list(_OWN):
            setattr(nvidia, name, _OWN.pop(name))
