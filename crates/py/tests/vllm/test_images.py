"""Engines share the KV of images by content, whatever names clients choose. Runs a model with images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import Engine, in_child
from models import prompt
from PIL import Image
from waiting import PATIENCE_WITH_ENGINES

# Runs in another process: torch starts threads, and a process with threads must not fork.
MAKE = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
from transformers import PreTrainedTokenizerFast
folder, words = Path(sys.argv[1]), 1000
vocabulary = {f"w{number}": number for number in range(words - 1)} | {"<image>": words - 1}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, bos_token="w1", eos_token="w2", unk_token="w0", pad_token="w3", additional_special_tokens=["<image>"]
)
vision = CLIPVisionConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=1, image_size=56, patch_size=14, projection_dim=64
)
text = LlamaConfig(
    vocab_size=words, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    max_position_embeddings=8192,
)
config = LlavaConfig(
    vision_config=vision, text_config=text, image_token_index=words - 1, vision_feature_layer=-1, vision_feature_select_strategy="full",
    projector_hidden_act="gelu",
)
torch.manual_seed(0)
model = LlavaForConditionalGeneration(config)
for weight in model.parameters():
    if weight.dim() > 1:
        torch.nn.init.normal_(weight, std=1.5 / weight.shape[-1] ** 0.5)
model.save_pretrained(folder)
# vLLM knows the encoder's weights by their older names.
weights = load_file(folder / "model.safetensors")
old, new = "vision_tower.", "vision_tower.vision_model."
weights = {name if new in name else name.replace(old, new): weight for name, weight in weights.items()}
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
images = CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
LlavaProcessor(
    image_processor=images, tokenizer=fast, patch_size=14, vision_feature_select_strategy="full", num_additional_image_tokens=1
).save_pretrained(folder)
fast.save_pretrained(folder)
"""


@pytest.fixture(scope="module")
def sees(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("sees") / "model"
    subprocess.run([sys.executable, "-c", MAKE, folder], check=True, timeout=PATIENCE_WITH_ENGINES)
    return str(folder)


def asks(_: Any, model: str, region: str | None, images: list[tuple[str, str | None]]) -> list[tuple[int, list[int]]]:
    """Cached tokens and answers for images, each of a colour and with a client's name or none."""
    engine, answers = Engine(model, region, max_model_len=1024), []
    before, after = (" ".join(f"w{token}" for token in prompt(100, seed)) for seed in (1, 2))
    for colour, name in images:
        asked: dict[str, Any] = {"prompt": f"{before} <image> {after}", "multi_modal_data": {"image": Image.new("RGB", (56, 56), colour)}}
        if name is not None:
            # vLLM hashes the name with these, so that it has the form of a hash of the bytes.
            asked |= {"multi_modal_uuids": {"image": [name]}, "mm_processor_kwargs": {"do_normalize": True}}
        [answer] = engine.llm.generate([asked], engine.sampling(8), use_tqdm=False)
        answers.append((answer.num_cached_tokens or 0, list(answer.outputs[0].token_ids)))
    return answers


def test_an_image_is_shared_by_its_bytes_and_not_by_a_clients_name(sees: str, region: str) -> None:
    """A white image under the `uuid` of a black one was answered from the black one's KV."""
    (_, white), (text, black) = in_child(asks, sees, None, [("white", None), ("black", None)])
    assert white != black
    first = in_child(asks, sees, region, [("black", None), ("black", "image-1")])
    assert [tokens for _, tokens in first] == [black, black]
    same, other, named = in_child(asks, sees, region, [("black", None), ("white", None), ("white", "image-1")])
    assert same[0] > text
    assert same[1] == black
    # The text before the image alone is shared.
    assert (other, named) == ((text, white), (text, white))
    # What was computed under that name is shared with those that have the same bytes.
    [again] = in_child(asks, sees, region, [("white", "image-1")])
    assert again[0] > text
    assert again[1] == white
