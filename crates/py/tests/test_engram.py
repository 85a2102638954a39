"""N-gram tables from files into a region, and rows into memory of all kinds."""

from __future__ import annotations

import array
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, until
import tables_of
from tables_of import Made
from test_blocks import BOOLEAN, Tensor

import cenote
from cenote import engram

FORMATS: list[tuple[str, int, float | None]] = [("e4m3-ue8m0", 256, None), ("e4m3", 160, 0.0123), ("f16", 160, None), ("bf16", 160, None)]


@pytest.fixture
def made(region: cenote.Region, tmp_path: Path) -> Made:
    made = Made(tmp_path, "e4m3-ue8m0", 3000, 64)
    engram.load(region, "t", **made.how)  # type: ignore[arg-type]
    return made


def some_rows(rows: int, count: int, seed: int = 3) -> list[int]:
    choose = random.Random(seed)
    return [0, rows - 1, 0, *(choose.randrange(rows) for _ in range(count - 3))]


@pytest.mark.parametrize(("stored", "values", "scale"), FORMATS)
def test_rows_are_those_of_the_file(region: cenote.Region, tmp_path: Path, stored: str, values: int, scale: float | None) -> None:
    made = Made(tmp_path, stored, 1000, values, scale=scale)
    (loaded,) = engram.load(region, "t", **made.how)  # type: ignore[arg-type]
    assert (loaded["table"], loaded["outcome"], loaded["rows"], loaded["format"]) == ("t", "loaded", 1000, stored)
    assert engram.load(region, "t", **made.how)[0]["outcome"] == "found"  # type: ignore[arg-type]
    rows = some_rows(1000, 700)
    for threads in (1, 3):
        table = engram.Table(region, "t", threads=threads)
        assert (table.rows, table.row_bytes, table.row_values, table.threads) == (1000, made.row_bytes, values, threads)
        assert table.digest == loaded["digest"]
        assert table.gather(rows) == made.gathered(rows)
        assert table.gather(rows, dtype="bfloat16") == made.decoded(rows)
        out = bytearray(len(rows) * values * 2)
        pending = table.start(rows, out, dtype="bfloat16")
        assert pending.wait(PATIENCE)
        assert pending.wait(0), "a second wait has the same answer"
        assert pending.seconds is not None
        assert out == made.decoded(rows)


def test_numbers_and_memory_may_be_of_any_kind(region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t")
    rows = some_rows(made.rows, 50)
    wanted = made.gathered(rows)
    for kind in "iIlLqQ":
        assert table.gather(array.array(kind, rows)) == wanted, kind
    for given in (tuple(rows), range(50), memoryview(array.array("q", rows)).cast("B").cast("q", (5, 10))):
        numbers = list(given) if not isinstance(given, memoryview) else rows
        assert table.gather(given) == made.gathered(numbers)
    assert table.gather(bytes([5, 7])) == made.gathered([5, 7])
    for out in (bytearray(len(wanted)), array.array("B", bytes(len(wanted))), memoryview(bytearray(len(wanted)))):
        assert table.gather(rows, out) is out
        assert bytes(out) == wanted
    memory = ctypes.create_string_buffer(len(wanted))
    table.gather(rows, (ctypes.addressof(memory), len(wanted)))
    assert memory.raw == wanted
    assert table.gather([]) == b""
    table.start([], bytearray()).wait()


def test_what_cannot_be_is_refused_and_changes_nothing(region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t")
    out = bytearray(b"x" * made.row_bytes)
    for wrong in ([made.rows], [-1], [2**63 - 1], array.array("Q", [2**64 - 1])):
        for call in (table.gather, table.start):
            with pytest.raises(ValueError):
                call(wrong, out)
    for call in (table.gather, table.start):
        with pytest.raises(ValueError, match="2 rows of the table have"):
            call([1, 2], out)
        with pytest.raises(ValueError, match="whole numbers"):
            call(array.array("d", [1.0]), out)
        with pytest.raises(ValueError, match="stored or bfloat16"):
            call([1], out, dtype="float32")
        with pytest.raises(ValueError, match="one piece"):
            call([1, 2], [bytearray(made.row_bytes), bytearray(made.row_bytes)])
        with pytest.raises(BufferError):
            call([1], bytes(made.row_bytes))
    with pytest.raises(ValueError, match="even address"):
        table.gather([1], memoryview(bytearray(made.values * 2 + 1))[1:], dtype="bfloat16")
    with pytest.raises(TypeError):
        table.gather(["a"], out)  # type: ignore[list-item]
    assert out == b"x" * made.row_bytes
    for threads in (0, 65):
        with pytest.raises(ValueError, match="threads"):
            engram.Table(region, "t", threads=threads)
    with pytest.raises(cenote.CenoteError, match="no table `u`"):
        engram.Table(region, "u")


def test_a_load_names_what_is_wrong(region: cenote.Region, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no name of a table"):
        engram.load(region, "a/b", **made.how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give a model's folder"):
        engram.load(region, "t")
    with pytest.raises(OSError, match="none-such"):
        engram.load(region, "t", weights=tmp_path / "none-such", tensor="table")
    with pytest.raises(ValueError, match="other"):
        engram.load(region, "t", weights=made.path, tensor="other")
    with pytest.raises(cenote.CenoteError, match="another table `t`"):
        engram.load(region, "t", **Made(tmp_path, "bf16", 100, 64).how)  # type: ignore[arg-type]
    with pytest.raises(cenote.RegionFull):
        engram.load(region, "large", **Made(tmp_path, "bf16", 40000, 160).how)  # type: ignore[arg-type]
    with pytest.raises(cenote.RegionMissing):
        engram.tables("shm:cenote-none-such")
    assert [(table["name"], table["state"]) for table in engram.tables(region)] == [("t", "sealed")]
    assert engram.check(region, "t")["is_whole"]


def test_a_table_can_be_used_by_name_and_by_an_open_region(name: str, region: cenote.Region, made: Made) -> None:
    assert engram.tables(name) == engram.tables(region)
    assert engram.check(name, "t") == engram.check(region, "t")
    table = engram.Table(region, "t", verify=False)
    assert table.is_there
    pending = table.start([1], bytearray(made.row_bytes))
    assert pending.wait()
    assert engram.drop(name, "t")
    assert not engram.drop(region, "t")
    assert not table.is_there
    with pytest.raises(cenote.CenoteError, match="dropped"):
        table.gather([1])
    lost = table.start([1], bytearray(made.row_bytes))
    for _ in range(2):
        with pytest.raises(cenote.CenoteError, match="dropped"):
            lost.wait()


def test_a_closed_region_closes_its_tables(name: str, region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t")
    rows = some_rows(made.rows, 2000)
    out = bytearray(len(rows) * made.row_bytes)
    pending = table.start(rows, out)
    region.close()
    assert pending.wait()
    assert out == made.gathered(rows)
    with pytest.raises(cenote.CenoteError, match="is closed"):
        table.gather([1])
    with pytest.raises(cenote.CenoteError, match="is closed"):
        _ = table.rows
    # The worker has left, although the table's object lives.
    with cenote.Region.open(name) as again:
        assert [host["workers"] for host in again.info()["hosts"]] == [1]


def test_a_dropped_handle_waits_for_its_rows(region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t", threads=1)
    rows = some_rows(made.rows, 3000)
    for seed in range(20):
        out = bytearray(len(rows) * made.values * 2)
        del rows[seed]
        del out[seed * made.values * 2 :]
        out = bytearray(len(rows) * made.values * 2)
        pending = table.start(rows, out, dtype="bfloat16")
        del pending
        # No thread writes it any more, so its size may change.
        assert out == made.decoded(rows[:5]) + out[5 * made.values * 2 :]
        out.clear()


def test_many_threads_gather_at_once(region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t")
    failed: list[int] = []

    def work(seed: int) -> None:
        for at in range(20):
            rows = some_rows(made.rows, 100, seed * 100 + at)
            if table.gather(rows) != made.gathered(rows):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


WAITERS = """
import sys, threading
import cenote
from cenote import engram

name, rows, row_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
numbers = list(range(rows)) * 3
with cenote.Region.open(name, worker="waits") as region:
    table = engram.Table(region, "t")
    for _ in range(300):
        out = bytearray(len(numbers) * row_bytes)
        pending = table.start(numbers, out)
        waits = threading.Thread(target=pending.wait)
        waits.start()
        while not pending.wait(0):
            pending.seconds
        assert pending.seconds is not None
        waits.join()
        out.clear()
"""


def test_several_threads_wait_on_one_handle(name: str, region: cenote.Region, made: Made) -> None:
    """A thread released the memory with the handle locked, and waited for the interpreter. Another had
    the interpreter and waited for the handle."""
    subprocess.run([sys.executable, "-c", WAITERS, name, str(made.rows), str(made.row_bytes)], check=True, timeout=PATIENCE)


def test_a_wait_ends_in_time_beside_a_longer_one(region: cenote.Region, made: Made) -> None:
    table = engram.Table(region, "t", threads=1)
    rows = list(range(made.rows)) * 300

    def two_ended() -> bool:
        """True if two waits ended while the rows were on their way and another thread waited for them."""
        pending = table.start(rows, bytearray(len(rows) * made.values * 2), dtype="bfloat16")
        begun = threading.Event()

        def waits() -> None:
            begun.set()
            pending.wait()

        waiting = threading.Thread(target=waits)
        waiting.start()
        assert begun.wait(PATIENCE)
        # tidy: these waits must end without the rows.
        ended = [pending.wait(0.001) for _ in range(2)]
        waiting.join()
        return not any(ended)

    # The rows may come before a thread that the machine has delayed looks for them.
    until("two waits that end before the longer one", two_ended)


# Sizes of the models' published configurations, made small.
DEEPSEEK = {
    "engram_layer_ids": [1, 3], "engram_num_embeddings": [0, 0], "engram_max_ngram_size": 3, "engram_n_heads": 2, "engram_head_dim": 64,
    "engram_vocab_size": 200, "engram_compressed_vocab_size": 40, "engram_pad_token_id": 2, "num_hidden_layers": 4,
}  # fmt: skip
QWEN = {
    "ple_layer_ids": [2], "ple_embed_dim": 128, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 300, "seed": 7,
    "make_ngram_vocab_size_divisible_by": 64, "split_ngram_parts": 4, "vocab_size": 100, "eos_token_id": 9, "num_hidden_layers": 4,
}  # fmt: skip


def addresses_of(config: dict[str, Any], **changes: Any) -> engram.Addresses:
    map_ids = [token * 7 % 40 for token in range(80)] if "engram_layer_ids" in config else None
    return engram.Addresses(json.dumps({**config, **changes}), token_map=map_ids)


def deepseek() -> engram.Addresses:
    # Any sum is enough to learn the tables' sizes.
    return addresses_of(DEEPSEEK, engram_num_embeddings=[10**6, 10**6])


@pytest.mark.parametrize("family", ["deepseek", "qwen"])
def test_a_batch_has_the_rows_of_its_sequences(family: str) -> None:
    addresses = deepseek() if family == "deepseek" else addresses_of(QWEN)
    assert (addresses.columns, addresses.lookback) == (4, 2)
    choose = random.Random(5)
    sequences = [[choose.randrange(80) for _ in range(length)] for length in (9, 1, 30, 4)]
    whole = [addresses.rows(tokens).tolist() for tokens in sequences]
    assert all(len(rows) == len(tokens) for rows, tokens in zip(whole, sequences, strict=True))
    starts = [0]
    for tokens in sequences:
        starts.append(starts[-1] + len(tokens))
    flat = array.array("i", [token for tokens in sequences for token in tokens])
    together = addresses.rows(flat, starts=starts)
    assert (together.format, together.shape) == ("q", (44, 4 * len(addresses.layers)))
    assert together.tolist() == [row for rows in whole for row in rows]
    # In chunks, with the tokens before each: the newest first, -1 where there is none.
    for chunk in (1, 2, 5):
        for tokens, rows in zip(sequences, whole, strict=True):
            for at in range(0, len(tokens), chunk):
                before = [tokens[at - back] if at - back >= 0 else -1 for back in (1, 2)]
                assert addresses.rows(tokens[at : at + chunk], lookback=before).tolist() == rows[at : at + chunk]
    layers = [addresses.rows(flat, starts=starts, layer=layer).tolist() for layer in addresses.layers]
    assert [sum(columns, []) for columns in zip(*layers, strict=True)] == together.tolist()
    for layer, rows in zip(layers, addresses.table_rows, strict=True):
        assert 0 <= min(map(min, layer)) <= max(map(max, layer)) < rows
    assert addresses.rows([]).tolist() == []


def test_masked_tokens_change_their_rows_and_those_behind_them() -> None:
    addresses = deepseek()
    tokens = list(range(10, 20))
    flags = [at == 4 for at in range(10)]
    plain, masked = addresses.rows(tokens).tolist(), addresses.rows(tokens, masked=flags).tolist()
    assert [at for at in range(10) if plain[at] != masked[at]] == [4, 5, 6]
    # Booleans of numpy are buffers of the format `?`, and those of other libraries have a code of DLPack.
    for given in (memoryview(bytes(flags)).cast("?"), Tensor(bytes(flags), [10], kind=BOOLEAN)):
        assert addresses.rows(tokens, masked=given).tolist() == masked


def test_rows_need_tokens_of_the_model() -> None:
    addresses = deepseek()
    for tokens in ([80], [-1], [2**32]):
        with pytest.raises(ValueError):
            addresses.rows(tokens)
    # 2^32 + 1 was read as token 1.
    for before in ([80, 1], [2**32 + 1, 1], [1, 2**40]):
        with pytest.raises(ValueError, match="lookback"):
            addresses.rows([1, 2], lookback=before)
    for starts in ([0, 1], [1, 2], [0, 3, 2], []):
        with pytest.raises(ValueError, match="starts"):
            addresses.rows([1, 2], starts=starts)
    for wrong in ({"lookback": [1]}, {"masked": [1]}, {"layer": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            addresses.rows([1, 2], **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        engram.Addresses(json.dumps(DEEPSEEK))
    with pytest.raises(ValueError, match="no n-gram tables"):
        engram.Addresses("{}")


PREFIX = "model.layers.1.ple.ple_embedding.ngram_embedding"


def lengths_of(rows: int) -> list[int]:
    """Rows of the four shards of a table."""
    shard = -(-rows // 4)
    return [max(0, min(shard, rows - shard * part)) for part in range(4)]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """A folder as of a published model: Qwen's, with its table in shards."""
    folder = tmp_path / "Tiny-PLE"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": QWEN}))
    rows = -(-addresses_of(QWEN).table_rows[0] // 64) * 64
    tables_of.write(
        folder / "model.safetensors",
        {
            f"{PREFIX}.shard_{part}.weight": ("BF16", [length, 32], tables_of.noise(length * 64, part))
            for part, length in enumerate(lengths_of(rows))
        },
    )
    yield folder


def test_default_names_differ_by_folder_and_are_those_of_the_command(region: cenote.Region, name: str, model: Path) -> None:
    names = {engram.default_name(folder) for folder in ("/m/run-1/final", "/m/run-2/final", f"/m/{'n' * 40}1", f"/m/{'n' * 40}2", model)}
    assert len(names) == 5
    assert all(len(f"{each}.L9999") <= 36 for each in names)
    assert engram.default_name(model / ".." / model.name) == engram.default_name(model)
    (loaded,) = engram.load(region, engram.default_name(model), model=model)
    assert loaded["table"] == f"{engram.default_name(model)}.L2"


def test_equal_times_do_not_make_equal_tables(region: cenote.Region, tmp_path: Path) -> None:
    for folder, seed in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        made = Made(tmp_path / folder, "bf16", 500, 64, seed=seed)
        made.path = made.path.rename(made.path.with_name("table.safetensors"))
        os.utime(made.path, (1, 1))
        how = {"weights": made.path, "tensor": "table"}
        if folder == "one":
            engram.load(region, "same-time", **how)  # type: ignore[arg-type]
        else:
            with pytest.raises(cenote.CenoteError, match="another table"):
                engram.load(region, "same-time", **how)  # type: ignore[arg-type]


def test_image_tokens_are_masked_without_a_list() -> None:
    config = {
        "engram_layer_ids": [1], "engram_num_embeddings": [100_000], "engram_max_ngram_size": 3, "engram_n_heads": 2, "engram_head_dim": 32,
        "engram_vocab_size": 100, "engram_compressed_vocab_size": 50, "engram_pad_token_id": 2,
    }  # fmt: skip
    plain = engram.Addresses(json.dumps(config), token_map=list(range(50)))
    image = engram.Addresses(json.dumps({"image_token_id": 77, "text_config": config}), token_map=list(range(50)))
    tokens, dead = [5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 0]
    with_images = [77 if flag else token for token, flag in zip(tokens, dead, strict=True)]
    wanted = plain.rows(tokens, masked=dead).tolist()
    assert image.rows(with_images).tolist() == wanted != plain.rows(tokens).tolist()
    # In the tokens before a chunk, too: the newest is first.
    assert image.rows(with_images[4:], lookback=[77, 77]).tolist() == wanted[4:]
    with pytest.raises(ValueError, match="outside the vocabulary"):
        plain.rows(with_images)


def test_a_models_folder_has_tables_and_addresses(region: cenote.Region, model: Path) -> None:
    with pytest.raises(ValueError, match="layer 3"):
        engram.load(region, "m", model=model, layers=[3])
    (loaded,) = engram.load(region, "m", model=model)
    assert loaded["table"] == "m.L2"
    table, addresses = engram.Table(region, "m.L2"), engram.addresses(model)
    assert table.facts["layer"] == 2
    assert table.facts["model"] == "Tiny-PLE"
    rows = addresses.rows([5, 7, 9], layer=2)
    content = b"".join(tables_of.noise(length * 64, part) for part, length in enumerate(lengths_of(table.rows)))
    assert table.gather(rows) == b"".join(content[row * 64 :][:64] for row in sum(rows.tolist(), []))
