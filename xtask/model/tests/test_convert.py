"""A GGUF file becomes a folder with the same numbers, under other names and in another order."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
from gguf import GGMLQuantizationType as Type
from pypi_model import folder, tokenizers, weights
from pypi_model.errors import ModelError
from pypi_model.source import TYPES, Source


def read(path: Path) -> dict[str, Any]:
    """Values of a file of bfloat16 tensors, parsed without the library that wrote it."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__")
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        bits = np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
        found[name] = bits.view("<f4").reshape(entry["shape"])
    return found


def rounded(values: Any) -> Any:
    return (weights.bfloat16(values).astype("<u4") << 16).view("<f4")


def test_a_llama_gets_names_and_rows_of_hugging_face(tmp_path: Path) -> None:
    values = tiny.tensors()
    folder.convert(tiny.write(tmp_path / "tiny.gguf", values=values), tmp_path)
    found = read(tmp_path / "model.safetensors")
    assert len(found) == len(values)
    assert np.array_equal(found["model.layers.1.mlp.down_proj.weight"], rounded(values["blk.1.ffn_down.weight"]))
    assert np.array_equal(found["model.embed_tokens.weight"], rounded(values["token_embd.weight"]))
    # A head has eight rows: pairs (0, 1), (2, 3), … become (0, 4), (1, 5), …
    for part, heads in (("q", tiny.HEADS), ("k", tiny.KV_HEADS)):
        rows = [8 * head + row for head in range(heads) for row in (0, 2, 4, 6, 1, 3, 5, 7)]
        assert np.array_equal(found[f"model.layers.0.self_attn.{part}_proj.weight"], rounded(values[f"blk.0.attn_{part}.weight"][rows]))
    assert np.array_equal(found["model.layers.0.self_attn.v_proj.weight"], rounded(values["blk.0.attn_v.weight"]))


def test_the_configuration_is_that_of_the_file(tmp_path: Path) -> None:
    folder.convert(tiny.write(tmp_path / "tiny.gguf"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    wanted = {"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    wanted |= {"rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True, "eos_token_id": 2, "vocab_size": 8}
    assert {key: config[key] for key in wanted} == wanted
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    texts = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert texts["chat_template"] == "{{ messages }}"
    assert (texts["bos_token"], texts["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert tokenizer["model"]["merges"] == [["a", "b"], ["Ġ", "a"]]
    assert [token["id"] for token in tokenizer["added_tokens"]] == [0, 1, 2]
    values = tiny.tensors() | {"output.weight": np.ones((8, 32), np.float32)}
    folder.convert(tiny.write(tmp_path / "untied.gguf", values=values), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False


HALF = struct.pack("<e", 0.5)
NIBBLES = bytes((i % 16) | ((i + 3) % 16) << 4 for i in range(16))
LOW, HIGH = [i % 16 for i in range(16)], [(i + 3) % 16 for i in range(16)]


def blocks() -> dict[Type, tuple[bytes, list[float]]]:
    """Bytes of one block of each type, by ggml's layout, and the values that they mean."""
    ramp = [float(i - 16) for i in range(32)]
    quarter = [i - 128 for i in range(256)]
    fifth = sum(1 << i for i in range(32) if i % 3 == 0)
    five = [value + (16 if at % 3 == 0 else 0) - 16 for at, value in enumerate(LOW + HIGH)]
    # Eight runs of 32 values, each with a scale and a minimum of six bits in twelve bytes.
    scales, minima = [1, 2, 3, 4, 5, 6, 7, 63], [0, 1, 2, 3, 4, 5, 6, 62]
    packed = bytes(scales[i] & 63 | (scales[i + 4] >> 4) << 6 for i in range(4)) + bytes(minima[i] & 63 | (minima[i + 4] >> 4) << 6 for i in range(4))
    packed += bytes(scales[i + 4] & 15 | (minima[i + 4] & 15) << 4 for i in range(4))
    four = [(7 * i) % 16 for i in range(256)]
    pairs = b"".join(bytes(four[64 * run + i] | four[64 * run + 32 + i] << 4 for i in range(32)) for run in range(4))
    k4 = [0.5 * scales[i // 32] * four[i] - 0.25 * minima[i // 32] for i in range(256)]
    # Four low bits and two high ones of values from -32, in halves of 128; sixteen signed scales.
    six, signed = [(5 * i) % 64 for i in range(256)], [i - 8 for i in range(16)]
    low = b"".join(bytes(six[128 * h + 32 * q + i] & 15 | (six[128 * h + 32 * (q + 2) + i] & 15) << 4 for i in range(32)) for h in range(2) for q in range(2))
    high = b"".join(bytes(sum((six[128 * h + 32 * q + i] >> 4) << 2 * q for q in range(4)) for i in range(32)) for h in range(2))
    k6 = [0.5 * signed[i // 16] * (six[i] - 32) for i in range(256)]
    return {
        Type.F32: (struct.pack("<32f", *ramp), ramp),
        Type.F16: (struct.pack("<32e", *ramp), ramp),
        Type.Q4_0: (HALF + NIBBLES, [0.5 * (value - 8) for value in LOW + HIGH]),
        Type.Q4_1: (HALF + struct.pack("<e", -3.0) + NIBBLES, [0.5 * value - 3 for value in LOW + HIGH]),
        Type.Q5_0: (HALF + struct.pack("<I", fifth) + NIBBLES, [0.5 * value for value in five]),
        Type.Q8_0: (HALF + struct.pack("<32b", *quarter[::8]), [0.5 * value for value in quarter[::8]]),
        Type.Q4_K: (HALF + struct.pack("<e", 0.25) + packed + pairs, k4),
        Type.Q6_K: (low + high + struct.pack("<16b", *signed) + HALF, k6),
    }


def test_every_type_has_a_block() -> None:
    assert blocks().keys() == TYPES


@pytest.mark.parametrize("kind", sorted(TYPES, key=lambda kind: kind.name))
def test_a_block_of_each_type_means_its_values(kind: Type, tmp_path: Path) -> None:
    raw, wanted = blocks()[kind]
    # Two rows of as many blocks as fit a width of 256.
    row = np.frombuffer(raw * (256 // len(wanted)), np.uint8)
    content = np.stack([row, row])
    if kind in (Type.F32, Type.F16):
        content = content.view(np.float32 if kind == Type.F32 else np.float16)
    file = tiny.write(tmp_path / "tiny.gguf", values={"token_embd.weight": (content, kind)})
    ((name, values),) = Source(file).tensors()
    assert name == "token_embd.weight"
    assert values.dtype == np.float32
    assert values.tolist() == [wanted * (256 // len(wanted))] * 2


def test_bfloat16_rounds_to_the_nearest_and_to_even() -> None:
    one, step = 0x3F80_0000, 0x1_0000
    bits = np.array([one, one + 0x7FFF, one + 0x8000, one + 0x8001, one + step + 0x8000, 0x8000_0000], "<u4")
    assert weights.bfloat16(bits.view("<f4")).tolist() == [0x3F80, 0x3F80, 0x3F80, 0x3F81, 0x3F82, 0x8000]


GEMMA3 = {key.replace("llama.", "gemma3."): value for key, value in tiny.SETTINGS.items()} | {
    "gemma3.attention.key_length": 8,
    "gemma3.attention.sliding_window": 16,
    "gemma3.block_count": 6,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": "default",
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "<unk>", "a", "b", "ab", "\u2581", "\u2581ab", "\n\n"],
    "tokenizer.ggml.scores": [-1000.0, -1000.0, -1000.0, -1000.0, -4.0, -5.0, -6.0, -7.0, -2.0, -1000.0],
    "tokenizer.ggml.token_type": [3, 3, 3, 3, 1, 1, 1, 1, 1, 4],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.add_space_prefix": False,
}


def gemma3_tensors() -> dict[str, Any]:
    more = {"attn_q_norm": (8,), "attn_k_norm": (8,), "post_attention_norm": (tiny.WIDTH,), "post_ffw_norm": (tiny.WIDTH,)}
    shapes = {f"blk.{layer}.{part}.weight": shape for layer in range(6) for part, shape in (tiny.LLAMA | more).items()}
    shapes |= {"token_embd.weight": (10, tiny.WIDTH), "output_norm.weight": (tiny.WIDTH,)}
    return {name: np.full(shape, 1.5, np.float32) for name, shape in shapes.items()}


def test_gemma_3_has_windows_norms_about_one_and_a_first_token(tmp_path: Path) -> None:
    folder.convert(tiny.write(tmp_path / "tiny.gguf", GEMMA3, gemma3_tensors(), "gemma3"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention"] * 5 + ["full_attention"]
    assert (config["sliding_window"], config["query_pre_attn_scalar"], config["tie_word_embeddings"]) == (16, 8, True)
    found = read(tmp_path / "model.safetensors")
    for norm in ("model.norm", "model.layers.0.self_attn.q_norm", "model.layers.5.pre_feedforward_layernorm"):
        assert set(found[f"{norm}.weight"].tolist()) == {0.5}, norm
    assert set(found["model.layers.0.self_attn.q_proj.weight"].flat) == {1.5}
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    assert tokenizer["post_processor"]["special_tokens"]["<bos>"]["ids"] == [2]
    assert [(token["content"], token["special"]) for token in tokenizer["added_tokens"]][-1] == ("\n\n", False)
    assert tokenizer["model"]["merges"] == [["\u2581", "ab"], ["a", "b"]]


def test_pairs_with_better_scores_merge_first() -> None:
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    assert tokenizers.merges_of(tokens, [0, 0, 0, -2.0, -1.0, -3.0]) == [["b", "c"], ["a", "b"], ["a", "bc"], ["ab", "c"]]


def changed(**settings: Any) -> dict[str, Any]:
    return tiny.SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (changed(llama__rope__scaling__type="yarn"), "llama.rope.scaling.type"),
        (changed(llama__expert_count=8), "llama.expert_count"),
        (changed(llama__rope__dimension_count=4), "rotates a part of each head"),
        (changed(tokenizer__ggml__pre="other"), "tokenizer 'gpt2' with words by 'other'"),
        (changed(tokenizer__ggml__eos_token_id=8), "the eos token is 8 of 8"),
        (changed(tokenizer__ggml__token_type=[1]), "kinds of 1"),
        (changed(llama__block_count=3), "lacks 9 tensors, model.layers.2."),
        (changed(llama__block_count=1), "a tensor blk.1."),
        (changed(llama__attention__head_count=5), "which 5 heads cannot share"),
        ({key: value for key, value in tiny.SETTINGS.items() if key != "llama.rope.freq_base"}, "lacks the setting llama.rope.freq_base"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said.replace(".", r"\.")):
        folder.convert(tiny.write(tmp_path / "tiny.gguf", settings), tmp_path)


def test_unknown_architectures_types_and_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="architecture mamba; known are llama, gemma3"):
        folder.convert(tiny.write(tmp_path / "a.gguf", architecture="mamba"), tmp_path)
    values = tiny.tensors() | {"token_embd.weight": (gguf.quantize(np.ones((8, 32), np.float32), Type.Q5_1), Type.Q5_1)}
    with pytest.raises(ModelError, match="token_embd.weight has the type Q5_1"):
        folder.convert(tiny.write(tmp_path / "b.gguf", values=values), tmp_path)
    values = tiny.tensors() | {"output_norm.weight": np.full(tiny.WIDTH, np.nan, np.float32)}
    with pytest.raises(ModelError, match=r"output_norm\.weight has values that are no numbers"):
        folder.convert(tiny.write(tmp_path / "c.gguf", values=values), tmp_path)


@pytest.mark.parametrize("cut", [0, 3, 40, 400, 3000])
def test_a_damaged_file_is_named(cut: int, tmp_path: Path) -> None:
    whole = tiny.write(tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:cut])
    with pytest.raises(ModelError, match=r"cut\.gguf is no GGUF file that can be read"):
        folder.convert(tmp_path / "cut.gguf", tmp_path)
