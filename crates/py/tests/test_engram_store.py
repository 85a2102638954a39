"""Rows for an engine's batches: fetched beside it, and misses where they cannot be."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE
from tables_of import Made
from test_engram import DEEPSEEK, addresses_of

import cenote
from cenote import engram
from cenote.engram_store import EngramStore, batch_of

# Tables of layers 1 and 3 of the small configuration.
ADDRESSES = addresses_of(DEEPSEEK, engram_num_embeddings=[10**6, 10**6])


class Stored:
    """Both tables in a region, and a store over them."""

    def __init__(self, region: cenote.Region, folder: Path, **how: Any) -> None:
        sizes = zip((1, 3), ADDRESSES.table_rows, strict=True)
        self.made = {layer: Made(folder, "e4m3-ue8m0", rows + 5, 64, seed=layer) for layer, rows in sizes}
        for layer, made in self.made.items():
            engram.load(region, f"m.L{layer}", **made.how)  # type: ignore[arg-type]
        self.store = EngramStore(region, ADDRESSES, {1: "m.L1", 3: "m.L3"}, **{"max_tokens": 64, **how})

    def expect(self, layer: int, tokens: list[int], dtype: str = "bfloat16", **how: Any) -> bytes:
        rows = sum(ADDRESSES.rows(tokens, layer=layer, **how).tolist(), [])
        return self.made[layer].decoded(rows) if dtype == "bfloat16" else self.made[layer].gathered(rows)


@pytest.fixture
def stored(region: cenote.Region, tmp_path: Path) -> Stored:
    return Stored(region, tmp_path)


def test_rows_of_a_batch_arrive_for_each_layer(stored: Stored) -> None:
    store = stored.store
    for tokens, starts, lookback in ([1, 2, 3], None, None), ([9] * 64, None, None), ([5, 6, 7], [0, 2, 3], [4, -1, 8, 9]):
        store.prefetch(tokens, starts, lookback)
        for layer in (1, 3):
            rows = store.wait(layer, PATIENCE)
            assert rows is not None
            assert bytes(rows) == stored.expect(layer, tokens, starts=starts, lookback=lookback)
    assert store.counts == {"batches": 3, "rows": 2 * 4 * (3 + 64 + 3)}
    assert store.digests == {1: store.tables[1].digest, 3: store.tables[3].digest}
    assert len(set(store.digests.values())) == 2


def test_rows_stay_until_their_buffer_is_used_again(region: cenote.Region, tmp_path: Path) -> None:
    allocated: list[bytearray] = []

    def allocate(size: int) -> memoryview:
        allocated.append(bytearray(size))
        return memoryview(allocated[-1])

    stored = Stored(region, tmp_path, dtype="stored", depth=2, allocate=allocate)
    assert [len(memory) for memory in allocated] == [64 * 4 * 66] * 4
    kept = []
    for token in range(6):
        stored.store.prefetch([token] * 3)
        kept.append(stored.store.wait(layer=1))
        for age in range(min(2, len(kept))):
            rows = kept[-1 - age]
            assert rows is not None
            assert bytes(rows) == stored.expect(1, [token - age] * 3, "stored")
    stored.store.close()


class Mode:
    def __init__(self, decode: bool) -> None:
        self.decode = decode

    def is_decode(self) -> bool:
        return self.decode


def forward_batch(sequences: dict[int, list[int]], lengths: dict[int, int], decode: bool = False, pad: int = 0) -> Any:
    """A batch of the last tokens of sequences, as SGLang describes it."""
    table = [sequences.get(request, []) for request in range(max(sequences) + 1)]
    tokens, positions = [], []
    for request, length in lengths.items():
        end = len(sequences[request])
        tokens += sequences[request][end - length :]
        positions += range(end - length, end)
    return SimpleNamespace(
        input_ids=tokens + [0] * pad, positions=positions + [0] * pad, req_pool_indices=list(lengths),
        extend_seq_lens=list(lengths.values()), forward_mode=Mode(decode), ngram_embedding_info=SimpleNamespace(token_table=table),
    )  # fmt: skip


def test_a_forward_batch_has_the_rows_of_whole_sequences(stored: Stored) -> None:
    sequences = {3: [7, 1, 5, 9, 2, 8], 0: [4, 4], 5: list(range(20, 60))}
    for lengths, decode, pad in (({3: 6, 0: 2, 5: 40}, False, 0), ({5: 7, 0: 1}, False, 3), ({0: 1, 3: 1, 5: 1}, True, 5)):
        batch = forward_batch(sequences, lengths, decode, pad)
        stored.store.prefetch_batch(batch)
        for layer in (1, 3):
            wanted = b""
            for request, length in lengths.items():
                whole = stored.expect(layer, sequences[request])
                wanted += whole[len(whole) // len(sequences[request]) * (len(sequences[request]) - length) :]
            rows = stored.store.wait(layer)
            assert rows is not None
            assert bytes(rows) == wanted
    assert stored.store.counts["errors"] == 0
    assert batch_of(forward_batch({0: [1, 2]}, {0: 1}), 2) == ([2], [0, 1], [1, -1])


def test_faults_are_counted_misses(region: cenote.Region, stored: Stored, caplog: pytest.LogCaptureFixture) -> None:
    store = stored.store
    assert store.wait(layer=1) is None
    store.prefetch([1, 2])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            # A token that the model does not have, a batch that is too long, one that is none.
            for wrong in ([80], [1] * 65):
                store.prefetch(wrong)
                assert store.wait(layer=1) is store.wait(layer=3) is None
            store.prefetch_batch(SimpleNamespace())
            assert store.wait(layer=1) is None
    assert len(caplog.records) == 3, "each kind is logged once"
    assert (store.counts["errors"], store.counts["misses"]) == (6, 11)
    store.prefetch([1, 2])
    rows = store.wait(layer=1)
    assert rows is not None
    assert bytes(rows) == stored.expect(1, [1, 2])
    assert store.wait(layer=2) is None
    # A table that goes away under the engine.
    engram.drop(region, "m.L1")
    store.prefetch([1, 2])
    assert store.wait(layer=1) is None
    assert store.counts["errors"] == 7
    store.close()


def test_rows_that_the_engine_has_loaded_are_compared(stored: Stored) -> None:
    store, made = stored.store, stored.made[3]
    size, rows = store.tables[3].row_bytes, store.tables[3].rows
    whole = made.gathered(list(range(rows)))
    store.compare(3, whole)
    store.compare(3, whole[-5 * size :], first_row=rows - 5)
    store.compare(3, b"")
    changed = bytearray(whole)
    changed[7 * size + size - 1] ^= 1
    with pytest.raises(ValueError, match="row 7 is another one"):
        store.compare(3, changed)
    # A shard of another place.
    with pytest.raises(ValueError, match="row 1 is another one"):
        store.compare(3, whole[: 5 * size], first_row=1)
    for loaded, first_row in ((whole + whole[:size], 0), (whole[:size], rows), (whole[:-1], 0), (whole[:size], -1)):
        with pytest.raises(ValueError, match=f"has {rows} rows of {size} bytes"):
            store.compare(3, loaded, first_row)


def test_a_store_refuses_tables_of_others(region: cenote.Region, tmp_path: Path) -> None:
    Stored(region, tmp_path)
    for tables, said in (({2: "m.L1"}, "layers"), ({3: "m.L1"}, "rows"), ({1: "none"}, "no table")):
        with pytest.raises((ValueError, cenote.CenoteError), match=said):
            EngramStore(region, ADDRESSES, tables, max_tokens=8)
    for how in ({"max_tokens": 0}, {"max_tokens": 1, "depth": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            EngramStore(region, ADDRESSES, {}, **how)
