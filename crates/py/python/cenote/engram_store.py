"""Rows of a model's n-gram tables for an engine's batches, fetched while the engine computes.

Engram pooling §4.3 has three hooks, and this class a call for each: the constructor belongs into the
initialization of SGLang's `ModelRunner`, `prefetch` where a `ForwardBatch` is made, and `wait` into
the layer that uses the rows. It imports nothing of an engine.

    store = EngramStore(region, engram.addresses(folder), {1: "v41.L1", 14: "v41.L14"}, max_tokens=8192)
    store.prefetch_batch(forward_batch)
    ...
    rows = store.wait(14)  # bfloat16 of shape (tokens, columns, values), or None: look them up otherwise
"""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import cenote
from cenote import engram
from cenote.serving import serving

logger = logging.getLogger(__name__)

# Bytes of rows that are compared at a time.
_COMPARED_BYTES = 16 << 20


class EngramStore:
    """Tables of a region for one engine's batches. One thread calls.

    `allocate` makes writable memory of so many bytes, that the gathering threads fill: page-locked
    tensors, for example. There are `depth` buffers for each layer, so rows of a batch stay until
    `depth` batches later. Raises CenoteError or ValueError if a table is missing or another than the
    model's."""

    def __init__(
        self,
        region: cenote.Region,
        addresses: engram.Addresses,
        tables: Mapping[int, str],
        *,
        max_tokens: int,
        dtype: Literal["stored", "bfloat16"] = "bfloat16",
        depth: int = 2,
        allocate: Callable[[int], Any] | None = None,
        verify: bool = True,
        threads: int | None = None,
    ) -> None:
        if max_tokens < 1 or depth < 1:
            raise ValueError(f"max_tokens is {max_tokens} and depth is {depth}; give at least 1")
        sizes = dict(zip(addresses.layers, addresses.table_rows, strict=True))
        if unknown := sorted(set(tables) - set(sizes)):
            raise ValueError(f"layers {unknown} have no tables; those of the model are {addresses.layers}")
        self.addresses, self.dtype, self.max_tokens, self._depth = addresses, dtype, max_tokens, depth
        self.tables = {layer: engram.Table(region, name, verify=verify, threads=threads) for layer, name in tables.items()}
        for layer, table in self.tables.items():
            if table.rows < sizes[layer] or table.facts.get("layer") not in (None, layer):
                raise ValueError(
                    f"table {table.name} has {table.rows} rows for layer {table.facts.get('layer')}, and layer {layer} reads {sizes[layer]}"
                )
        make = allocate or (lambda size: memoryview(bytearray(size)))
        self._buffers = {layer: [make(max_tokens * self._token_bytes(layer)) for _ in range(depth)] for layer in self.tables}
        # Rows on their way by layer and buffer. Dropping one waits until its threads have ended.
        self._under_way: dict[tuple[int, int], engram.Pending] = {}
        self._batch, self._tokens = 0, 0
        self._started: set[int] = set()
        self._told: set[tuple[str, str]] = set()
        self.counts: Counter[str] = Counter()
        """`batches`, `rows` asked for, `misses` and `late` answers of `wait`, `errors`."""

    def _token_bytes(self, layer: int) -> int:
        table = self.tables[layer]
        return self.addresses.columns * (table.row_bytes if self.dtype == "stored" else 2 * table.row_values)

    @property
    def digests(self) -> dict[int, str]:
        """The digest of each layer's table: facts that the name of the engine's KV must cover."""
        return {layer: table.digest for layer, table in self.tables.items()}

    def compare(self, layer: int, loaded: Any, first_row: int = 0) -> None:
        """Raises ValueError if rows that the engine has loaded are not those of a layer's table.

        `loaded` is memory of whole stored rows from `first_row` on: a checkpoint's tensor, or a shard
        of it, on the processor. Names, sizes and times prove nothing about rows, so that all bytes are
        compared."""
        table = self.tables[layer]
        theirs = memoryview(loaded).cast("B")
        count, rest = divmod(theirs.nbytes, table.row_bytes)
        if rest or not 0 <= first_row <= table.rows - count:
            raise ValueError(
                f"table {table.name} has {table.rows} rows of {table.row_bytes} bytes, and not {theirs.nbytes} bytes from row {first_row} on"
            )
        step = max(1, _COMPARED_BYTES // table.row_bytes)
        stored = bytearray(min(step, count) * table.row_bytes)
        for row in range(0, count, step):
            numbers = array("q", range(first_row + row, first_row + min(row + step, count)))
            ours = memoryview(stored)[: len(numbers) * table.row_bytes]
            table.gather(numbers, ours)
            there = theirs[row * table.row_bytes :][: ours.nbytes]
            # Bytes compare at the speed of memory, and views item by item.
            if bytes(ours) != bytes(there):
                size = table.row_bytes
                differs = next(at for at in range(len(numbers)) if bytes(ours[at * size :][:size]) != bytes(there[at * size :][:size]))
                raise ValueError(
                    f"table {table.name} (digest {table.digest[:16]}) is not the one that the engine has loaded: row {numbers[differs]} "
                    f"is another one; load this checkpoint's tables under names of their own"
                )

    @serving(lambda: None)
    def prefetch(self, tokens: Any, starts: Any = None, lookback: Any = None, masked: Any = None) -> None:
        """Begins to fetch the rows of a batch, for all layers. The arguments are those of `Addresses.rows`.

        An error is counted and makes the batch a miss."""
        self._begin()
        for layer, table in self.tables.items():
            rows = self.addresses.rows(tokens, starts=starts, lookback=lookback, masked=masked, layer=layer)
            count = rows.nbytes // 8 // self.addresses.columns
            if count > self.max_tokens:
                raise ValueError(f"a batch of {count} tokens, and max_tokens is {self.max_tokens}")
            place = self._batch % self._depth
            out = self._buffers[layer][place][: count * self._token_bytes(layer)]
            self._under_way.pop((layer, place), None)
            self._under_way[layer, place] = table.start(rows, out, dtype=self.dtype)
            self._started.add(layer)
            self._tokens = count
            self.counts["rows"] += count * self.addresses.columns

    @serving(lambda: None)
    def prefetch_batch(self, batch: Any) -> None:
        """Begins to fetch the rows of a `ForwardBatch` of SGLang.

        It reads the batch's ids and the token table of `ngram_embedding_info`; if these are on a GPU,
        the call waits for them."""
        # First, so that a batch that cannot be read does not answer with the last one's rows.
        self._started.clear()
        tokens, starts, lookback = batch_of(batch, self.addresses.lookback)
        self.prefetch(tokens, starts, lookback)

    def _begin(self) -> None:
        self._batch += 1
        self._started.clear()
        self.counts["batches"] += 1

    def wait(self, layer: int, timeout: float | None = None) -> Any | None:
        """The rows of the last batch for a layer: memory of tokens × columns × row. None is a miss.

        None follows an error, or `timeout` seconds. The engine then looks the rows up otherwise."""
        rows = self._wait(layer, timeout)
        if rows is None:
            self.counts["misses"] += 1
        return rows

    @serving(lambda: None)
    def _wait(self, layer: int, timeout: float | None) -> Any | None:
        if layer not in self._started:
            return None
        place = self._batch % self._depth
        if not self._under_way[layer, place].wait(timeout):
            self.counts["late"] += 1
            return None
        return self._buffers[layer][place][: self._tokens * self._token_bytes(layer)]

    def went_wrong(self, where: str, error: BaseException) -> None:
        self._started.clear()
        self.counts["errors"] += 1
        kind = (where, f"{type(error).__name__}: {error}")
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("Cenote: %s failed, so the engine looks these rows up otherwise: %s", where, kind[1], exc_info=error)

    def close(self) -> None:
        """Waits for all rows on their way. No call may follow."""
        self._started.clear()
        self._under_way.clear()


def batch_of(batch: Any, back: int) -> tuple[list[int], list[int], list[int]]:
    """Tokens, starts and lookback of a `ForwardBatch`.

    The token table has a row for each request, by its number in `req_pool_indices`, and a column for
    each position."""
    tokens = _numbers(batch.input_ids)
    requests = _numbers(batch.req_pool_indices)
    lengths = [1] * len(requests) if batch.forward_mode.is_decode() else _numbers(batch.extend_seq_lens)
    positions = _numbers(batch.positions)
    table = batch.ngram_embedding_info.token_table
    starts, lookback = [0], []
    for request, length in zip(requests, lengths, strict=True):
        first = positions[starts[-1]] if length > 0 else 0
        before = _numbers(table[request][max(0, first - back) : first])[::-1]
        lookback += before + [-1] * (back - len(before))
        starts.append(starts[-1] + length)
    # Padding of the batch has no request.
    return tokens[: starts[-1]], starts, lookback


def _numbers(given: Any) -> list[int]:
    numbers: Sequence[int] = given.tolist() if hasattr(given, "tolist") else given
    return list(numbers)
