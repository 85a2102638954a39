"""DeepSeek-V4.1's Engram and Qwen3.8's PLE with tables of a region, against vLLM's own tables.

The modules are vLLM's, with tiny configurations, on the processor. What only a GPU can run is left
out: the kernels of the gates, and vLLM's own lookup of Engram, whose recorded results
(`../vectors/engram.json`) count instead. `../test_device_rows.py` runs our kernel."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import in_child
from vllm.config import VllmConfig, set_current_vllm_config

sys.path.append(str(Path(__file__).parents[1]))

import tables_of  # noqa: E402
import test_engram_vectors as recorded  # noqa: E402

import cenote  # noqa: E402
from cenote import engram  # noqa: E402

QWEN = {
    "ple_layer_ids": [2], "ple_embed_dim": 128, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 300, "seed": 7,
    "make_ngram_vocab_size_divisible_by": 64, "split_ngram_parts": 4, "vocab_size": 100, "eos_token_id": 9, "num_hidden_layers": 4,
}  # fmt: skip
PREFIX = "model.layers.1.ple.ple_embedding"


# Contexts that end with the process.
_entered: list[Any] = []


def start(model: str, **text_config: Any) -> Any:
    """A configuration for modules, and one rank. For a child process, which ends with it."""
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    config = VllmConfig()
    named = SimpleNamespace(model=model, hf_text_config=SimpleNamespace(**text_config), is_moe=False)
    object.__setattr__(config, "model_config", named)
    _entered.append(set_current_vllm_config(config))
    _entered[-1].__enter__()
    init_distributed_environment(1, 0, f"file://{Path(model).parent}/rendezvous-{os.getpid()}", 0, "gloo")
    initialize_model_parallel()
    return config


def serve(region: str, **given: Any) -> None:
    os.environ["CENOTE_ENGRAM"] = json.dumps({"region": region, **given})
    from cenote.vllm.engram import install

    install()


def ngram_module(dtype: str | None) -> Any:
    from vllm.models.qwen4_exp.nvidia.ngram_embedding import Qwen4ExpNGramEmbedding

    config: Any = SimpleNamespace(**QWEN, **({"ple_embedding_dtype": dtype} if dtype else {}))
    return Qwen4ExpNGramEmbedding(config, 128, 0, 64, data_parallel_rank=0, prefix=PREFIX, params_dtype=torch.bfloat16)


def batch() -> list[torch.Tensor]:
    """Two sequences: a whole one, and one behind an end of a sequence."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 100, (11,), generator=generator)
    tokens[3] = 9
    return [tokens, torch.tensor([0, 7, 11]), torch.tensor([[9, 9], [9, 42]])]


def ple(_: Any, region: str, folder: str, dtype: str | None) -> dict[str, Any]:
    """Rows of a batch by vLLM's table, and by the region's."""
    start(folder, ple_layer_ids=[2])
    own = ngram_module(dtype)
    rows = own.ngram_embedding.org_vocab_size
    kind, width = ("F8_E4M3", 32) if dtype else ("BF16", 64)
    shard = -(-rows // 4)
    content = tables_of.noise(rows * width, 11)
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for part in range(4):
        data = content[part * shard * width : (part + 1) * shard * width]
        tensors[f"{PREFIX}.ngram_embedding.shard_{part}.weight"] = (kind, [len(data) // width, 32], data)
    if dtype:
        tensors[f"{PREFIX}.ngram_embedding.weight_scale"] = ("F32", [1], torch.tensor([0.0123]).numpy().tobytes())
    Path(folder, "config.json").write_text(json.dumps({"text_config": QWEN}))
    tables_of.write(Path(folder, "model.safetensors"), tensors)
    engram.load(region, "tiny", model=folder)

    def weights() -> Any:
        from safetensors.torch import load_file

        named = load_file(Path(folder, "model.safetensors"))
        return [(name.removeprefix(f"{PREFIX}."), tensor) for name, tensor in named.items()]

    def rows_of(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
        stored = module(torch.empty(11, 1), *batch())
        return stored.view(torch.uint8), module.ngram_embedding.dequantize(stored, torch.bfloat16).view(torch.int16)

    loaded = own.load_weights(weights())
    wanted = rows_of(own)
    serve(region, tables="tiny")
    served = ngram_module(dtype)
    again = served.load_weights(weights())
    refused = []
    for number, (changed, tensor) in enumerate(weights()):
        if tensor.numel():
            tensor = tensor.clone()
            tensor.view(torch.uint8).view(-1)[-1] ^= 1
            try:
                served.load_weights([*weights()[:number], (changed, tensor)])
            except ValueError as error:
                refused.append("not the table of the checkpoint" in str(error))
    got = rows_of(served)
    return {
        "refused": refused == [True] * len(weights()),
        "equal": [torch.equal(ours, theirs) for ours, theirs in zip(got, wanted, strict=True)],
        "loaded": loaded == again,
        "class": type(served.ngram_embedding).__name__,
        "kept": served.ngram_embedding.weight.numel(),
        "addresses": engram.addresses(folder).rows(batch()[0][:7], layer=2).tolist()
        == served.compute_ngram_ids(*batch())[:7].tolist(),
        "some": bool(wanted[0].float().std() > 0),
    }


@pytest.mark.parametrize("dtype", [None, "float8_e4m3fn"])
def test_ple_computes_the_same_rows(region: str, tmp_path: Path, dtype: str | None) -> None:
    (folder := tmp_path / "Tiny").mkdir()
    assert in_child(ple, region, str(folder), dtype) == {
        "refused": True, "equal": [True, True], "loaded": True, "class": "RegionPLEEmbedding", "kept": 0, "addresses": True, "some": True,
    }  # fmt: skip


def checkpoint_of(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a table, as vLLM's loader gives them."""
    rows, dim = sum(case["sizes"]), case["dim"]
    values, scales = (torch.tensor(list(bytes.fromhex(case[name])), dtype=torch.uint8) for name in ("values", "scales"))
    return {"weight": values.view(torch.float8_e4m3fn).view(rows, dim), "weight_scale_inv": scales.view(rows, dim // 32)}


def deepseek(_: Any, region: str, folder: str, number: int) -> dict[str, Any]:
    """Staged rows of an Engram module, as its projection gets them."""
    case = recorded.VECTORS["deepseek"][number]
    config = start(folder, engram_layer_ids=[1])
    from vllm.config.engram import EngramConfig
    from vllm.models.deepseek_v41.common.engram import Engram

    config.engram_config = EngramConfig()
    recorded.load_deepseek(region, "v41.L1", case, Path(folder))
    serve(region, layers={"1": "v41.L1"})
    heads = len(case["sizes"])
    layout: Any = SimpleNamespace(
        layer_ids=(1,), num_embeddings=(sum(case["sizes"]),), max_ngram_size=2, n_heads=heads, head_dim=case["dim"],
        primes=[[case["sizes"]]],
    )  # fmt: skip
    model: Any = SimpleNamespace(hidden_size=64, hc_mult=2, rms_norm_eps=1e-6)
    torch.set_default_dtype(torch.bfloat16)
    module = Engram(model, None, layout, 0, False, "model.layers.1.engram")
    table: Any = module.embed_tokens
    for name, parameter in table.named_parameters():
        # As a checkpoint gives them.
        parameter.weight_loader(parameter, checkpoint_of(case)[name], name=name)
    ids = torch.tensor(case["ids"], dtype=torch.int32)
    module.prepare_embeddings(ids)
    rows = module.embed(ids)
    packed = torch.full((len(ids), 1, heads, case["dim"] * 33 // 32), 7, dtype=torch.uint8)
    table.lookup(ids, packed[:, 0])
    wanted = torch.frombuffer(bytearray.fromhex(case["ranks"][0]["bf16"]), dtype=torch.bfloat16).view(len(ids), heads, case["dim"])
    return {
        "class": type(table).__name__,
        "rows": torch.equal(rows.view(torch.int16), wanted.view(torch.int16)),
        "packed": bytes(packed.flatten().tolist()).hex() == case["ranks"][0]["packed"],
        "kept": sum(parameter.numel() for parameter in table.parameters()),
    }


def test_engram_stages_the_same_rows(region: str, tmp_path: Path) -> None:
    assert in_child(deepseek, region, str(tmp_path), 0) == {
        "class": "RegionEngramEmbedding", "rows": True, "packed": True, "kept": 0,
    }  # fmt: skip


def ranks(_: Any, region: str, folder: str, number: int) -> list[bool]:
    """Rows of each rank of a tensor-parallel group, whose size the module reads from vLLM."""
    case = recorded.VECTORS["deepseek"][number]
    start(folder, engram_layer_ids=[1])
    recorded.load_deepseek(region, "v41.L1", case, Path(folder))
    serve(region, tables="v41")
    from vllm.models.deepseek_v41.common import engram as theirs

    from cenote.vllm import engram as ours
    from cenote.vllm.tables import settings

    given = settings()
    assert given is not None
    equal = []
    for rank, wanted in enumerate(case["ranks"]):
        for module in (theirs, ours):
            module.get_tensor_model_parallel_world_size = lambda: case["shards"]  # type: ignore[attr-defined]
        theirs.get_tensor_model_parallel_rank = lambda rank=rank: rank
        table = ours.RegionEngramEmbedding(given, 1, sum(case["sizes"]), case["dim"], tuple(case["sizes"]))
        ids = torch.tensor(case["ids"], dtype=torch.int32)
        out = torch.full((len(ids), table.part_n_hash_cols, case["dim"]), 7, dtype=torch.bfloat16)
        table.lookup(ids, out)
        equal.append(bytes(out.view(torch.uint8).flatten().tolist()).hex() == wanted["bf16"])
    return equal


@pytest.mark.parametrize("number", [1, 2])
def test_ranks_read_their_heads_and_no_others(region: str, tmp_path: Path, number: int) -> None:
    assert in_child(ranks, region, str(tmp_path), number) == [True] * recorded.VECTORS["deepseek"][number]["shards"]


def other_checkpoints(_: Any, region: str, folder: str) -> list[dict[str, Any]]:
    """What each rank says of checkpoints with one other row."""
    case = recorded.VECTORS["deepseek"][1]
    start(folder, engram_layer_ids=[1])
    recorded.load_deepseek(region, "v41.L1", case, Path(folder))
    serve(region, tables="v41")
    from vllm.models.deepseek_v41.common import engram as theirs

    from cenote.vllm import engram as ours
    from cenote.vllm.tables import Settings

    found = []
    for rank in range(case["shards"]):
        for module in (theirs, ours):
            module.get_tensor_model_parallel_world_size = lambda: case["shards"]  # type: ignore[attr-defined]
        theirs.get_tensor_model_parallel_rank = lambda rank=rank: rank
        rows, sizes = sum(case["sizes"]), tuple(case["sizes"])
        for compare in (True, False):
            given = Settings(region, "v41", compare=compare)
            table = ours.RegionEngramEmbedding(given, 1, rows, case["dim"], sizes)
            for name in ("weight", "weight_scale_inv"):
                for row in (0, table.vocab_start_idx, table.vocab_end_idx - 1, rows - 1):
                    changed = checkpoint_of(case)[name]
                    changed.view(torch.uint8)[row, -1] ^= 1
                    parameter = getattr(table, name)
                    try:
                        parameter.weight_loader(parameter, changed)
                        said = ""
                    except ValueError as error:
                        said = str(error)
                    reads = row in range(table.vocab_start_idx, table.vocab_end_idx)
                    found.append({"refused": f"row {row} of the checkpoint" in said, "wanted": compare and reads})
            try:
                table.weight.weight_loader(table.weight, checkpoint_of(case)["weight"][:, :32])
                found.append({"refused": False, "wanted": False})
            except ValueError as error:
                found.append({"refused": True, "wanted": compare, "said": str(error)})
    return found


def test_a_table_with_other_rows_than_the_checkpoints_is_refused(region: str, tmp_path: Path) -> None:
    """`…/run-1/final` and `…/run-2/final` had tables of one name, and an engine read the other one's."""
    found = in_child(other_checkpoints, region, str(tmp_path))
    assert all(each["refused"] == each["wanted"] for each in found), found
    assert any(each["wanted"] for each in found)


def refusals(_: Any, region: str, folder: str) -> list[str]:
    case = recorded.VECTORS["deepseek"][0]
    config = start(folder, engram_layer_ids=[1])
    recorded.load_deepseek(region, "v41.L1", case, Path(folder))
    recorded.load_qwen(region, "other.L2", recorded.VECTORS["qwen"][1], Path(folder))
    serve(region, tables="v41")
    from vllm.models.deepseek_v41.common import engram as theirs

    from cenote.vllm.engram import RegionEngramEmbedding
    from cenote.vllm.tables import Settings

    said = []

    def told(call: Any) -> None:
        try:
            call()
            said.append("nothing was refused")
        except (ValueError, cenote.CenoteError) as error:
            said.append(str(error))

    given, sizes = Settings(region, "v41"), tuple(case["sizes"])
    told(lambda: RegionEngramEmbedding(given, 2, sum(sizes), 64, sizes))
    told(lambda: RegionEngramEmbedding(given, 1, sum(sizes) + 23, 64, (*sizes, 23)))
    told(lambda: RegionEngramEmbedding(given, 1, sum(sizes), 32, sizes))
    told(lambda: RegionEngramEmbedding(Settings(region, layers={"1": "other.L2"}), 1, sum(sizes[:1]), 32, sizes[:1]))
    told(lambda: RegionEngramEmbedding(Settings("shm:cenote-none-such"), 1, sum(sizes), 64, sizes))
    theirs.get_engram_dp_size = lambda: 2
    layout = SimpleNamespace(primes=[[sizes]], layer_ids=(1,), head_dim=64)
    config.engram_config = SimpleNamespace(dp_shared_memory=False)
    told(lambda: theirs.Engram._create_embedding(SimpleNamespace(), layout, 0))
    for text in ('{"region": ""}', '{"regoin": "x"}', '{"region": "x", "threads": "2"}', "{"):
        told(lambda text=text: Settings.of(text))
    table = RegionEngramEmbedding(given, 1, sum(sizes), 64, sizes)
    engram.drop(region, "v41.L1")
    told(lambda: table.lookup(torch.zeros(1, 4, dtype=torch.int32), torch.empty(1, 4, 64, dtype=torch.bfloat16)))
    return said


def test_what_does_not_fit_is_refused_by_name(region: str, tmp_path: Path) -> None:
    words = [
        "no table `v41.L2`", "60 rows of 64 values", "of 64 values", "in e4m3", "there is no such region", "dp_shared_memory",
        "no region is given", "unknown regoin", "threads is '2'", "CENOTE_ENGRAM", "was dropped",
    ]  # fmt: skip
    said = in_child(refusals, region, str(tmp_path))
    for text, word in zip(said, words, strict=True):
        assert word in text


def names(_: Any, region: str, model: str, folder: str) -> dict[str, bytes]:
    """Fingerprints of engines with different tables."""
    from test_identity import of
    from vllm import EngineArgs

    def name() -> bytes:
        config = EngineArgs(model, dtype="float32", max_model_len=1024).create_engine_config()
        config.model_config.hf_text_config.engram_layer_ids = [1]
        return of(config)

    made = {"own tables": name()}
    case = recorded.VECTORS["deepseek"][0]
    recorded.load_deepseek(region, "a.L1", case, Path(folder))
    recorded.load_deepseek(region, "b.L1", case, Path(folder))
    changed = {**case, "values": case["values"][:-2] + ("00" if case["values"][-2:] != "00" else "01")}
    recorded.load_deepseek(region, "c.L1", changed, Path(folder))
    for table in "abc":
        os.environ["CENOTE_ENGRAM"] = json.dumps({"region": region, "tables": table})
        made[table] = name()
    # The table of a name is another one later.
    os.environ["CENOTE_ENGRAM"] = json.dumps({"region": region, "tables": "a", "threads": 2})
    engram.drop(region, "a.L1")
    recorded.load_deepseek(region, "a.L1", changed, Path(folder))
    made["a, loaded anew"] = name()
    os.environ["CENOTE_ENGRAM"] = json.dumps({"region": region, "tables": "d"})
    try:
        made["missing"] = name()
    except ValueError as error:
        made["missing"] = str(error).encode()
    return made


def test_another_table_is_another_namespace(region: str, tiny: str, tmp_path: Path) -> None:
    made = in_child(names, region, tiny, str(tmp_path))
    assert b"no table d.L1" in made.pop("missing")
    # By content: equal tables of two names share.
    assert made["a"] == made["b"]
    assert made["c"] == made["a, loaded anew"]
    assert len({made["own tables"], made["a"], made["c"]}) == 3


def test_a_process_without_the_setting_keeps_vllms_tables() -> None:
    from importlib.metadata import entry_points

    from cenote.vllm_plugin import register

    (plugin,) = [each for each in entry_points(group="vllm.general_plugins") if each.name == "cenote"]
    assert plugin.load() is register
    assert "CENOTE_ENGRAM" not in os.environ
    register()
    from vllm.models.deepseek_v41.common.engram import Engram

    assert Engram._create_embedding.__module__ == Engram.__module__
