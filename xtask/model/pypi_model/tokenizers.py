"""`tokenizer.json` in the format of Hugging Face's tokenizers, and `tokenizer_config.json`."""

from dataclasses import dataclass
from typing import Any

from pypi_model.errors import ModelError
from pypi_model.source import Source

# llama.cpp's kinds of tokens (`llama_token_type`).
_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"


@dataclass(frozen=True)
class Texts:
    """The content of the two files."""

    tokenizer: dict[str, Any]
    config: dict[str, Any]


def of(source: Source) -> Texts:
    """The tokenizer of a model. Raises ModelError for a kind that is not known here."""
    model, before = source.text("tokenizer.ggml.model"), source.get("tokenizer.ggml.pre", "default")
    tokens: list[str] = source.need("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise ModelError(f"{source.name} has a token twice")
    kinds: list[int] = source.need("tokenizer.ggml.token_type")
    if len(kinds) != len(tokens):
        raise ModelError(f"{source.name} has {len(tokens)} tokens, but kinds of {len(kinds)}")
    if (model, before) == ("gpt2", "smollm"):
        parts = _bytes_in_words(source, tokens)
    elif (model, before) == ("llama", "default") and source.get("tokenizer.ggml.add_space_prefix") is False:
        parts = _sentence_pieces(source, tokens)
    else:
        raise ModelError(f"{source.name} has the tokenizer {model!r} with words by {before!r}, which this converter does not know")
    added = [_added(token, tokens[token], kind) for token, kind in enumerate(kinds) if kind in (_CONTROL, _USER_DEFINED)]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": _beginning(source, tokens)}
    return Texts(whole | parts, _config(source, tokens))


def _added(token: int, text: str, kind: int) -> dict[str, Any]:
    is_special = kind == _CONTROL
    # Pieces such as a run of spaces are found in the text that the normalizer returns.
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not is_special, "special": is_special}
    return {"id": token, "content": text} | flags


def _bytes_in_words(source: Source, tokens: list[str]) -> dict[str, Any]:
    """GPT-2's bytes as characters and its words, and each digit alone."""
    merges = [merge.split(" ") for merge in source.need("tokenizer.ggml.merges")]
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, by_bytes]},
        "decoder": by_bytes,
        "model": _model(tokens, merges, None, fuse_unk=False, byte_fallback=False),
    }


def _sentence_pieces(source: Source, tokens: list[str]) -> dict[str, Any]:
    """SentencePiece's pairs, the best first, with bytes for characters that no piece has."""
    scores: list[float] = source.need("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{source.name} has {len(tokens)} tokens, but scores of {len(scores)}")
    unknown = tokens[_token(source, "unknown", tokens)]
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": _model(tokens, merges_of(tokens, scores), unknown, fuse_unk=True, byte_fallback=True),
    }


def merges_of(tokens: list[str], scores: list[float]) -> list[list[str]]:
    """Pairs of tokens that are a token together, the one with the highest score first.

    Of one token's pairs, those with the earlier parts come first."""
    ids = {text: token for token, text in enumerate(tokens)}
    merges = []
    for token in sorted(range(len(tokens)), key=lambda token: (-scores[token], token)):
        text = tokens[token]
        pairs = ((ids.get(text[:cut]), ids.get(text[cut:])) for cut in range(1, len(text)))
        found = sorted((left, right) for left, right in pairs if left is not None and right is not None)
        merges.extend([tokens[left], tokens[right]] for left, right in found)
    return merges


def _model(tokens: list[str], merges: list[list[str]], unknown: str | None, *, fuse_unk: bool, byte_fallback: bool) -> dict[str, Any]:
    vocabulary = {text: token for token, text in enumerate(tokens)}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def _token(source: Source, role: str, tokens: list[str]) -> int:
    token = source.need(f"tokenizer.ggml.{role}_token_id")
    if not isinstance(token, int) or not 0 <= token < len(tokens):
        raise ModelError(f"{source.name}: the {role} token is {token!r} of {len(tokens)}")
    return token


def _beginning(source: Source, tokens: list[str]) -> dict[str, Any] | None:
    """What adds the token with which texts begin, for models that want it."""
    if not source.get("tokenizer.ggml.add_bos_token", False):
        return None
    token = _token(source, "bos", tokens)
    text = tokens[token]
    special = {"SpecialToken": {"id": text, "type_id": 0}}
    one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [special, one],
        "pair": [special, one, {"SpecialToken": {"id": text, "type_id": 1}}, two],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }


def _config(source: Source, tokens: list[str]) -> dict[str, Any]:
    end = _token(source, "eos", tokens)
    pad = source.get("tokenizer.ggml.padding_token_id", end)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[_token(source, "bos", tokens)],
        "eos_token": tokens[end],
        "unk_token": tokens[_token(source, "unknown", tokens)],
        "pad_token": tokens[pad],
        "add_bos_token": bool(source.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.size("context_length"),
    }
    template = source.get("tokenizer.chat_template")
    return config if template is None else config | {"chat_template": template}
