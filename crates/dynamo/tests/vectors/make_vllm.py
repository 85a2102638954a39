"""Writes vllm.json: block hashes of vLLM 0.32, computed by vLLM's own functions."""

import json
import os
from pathlib import Path

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils

TOKENS = [7, 255, 256, 65535, 65536, 2**31 - 1, 0, 128_000, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 2**31, 2**32 - 1]


def chain(algorithm: str, size: int, salt: str | None) -> list[str]:
    hash_function, parent, hashes = get_hash_fn_by_name(algorithm), None, []
    kv_cache_utils.init_none_hash(hash_function)
    for start in range(0, len(TOKENS) - size + 1, size):
        extra = (("cache_salt", salt),) if salt and start == 0 else None
        parent = kv_cache_utils.hash_block_tokens(hash_function, parent, TOKENS[start : start + size], extra)
        hashes.append(parent.hex())
    return hashes


cases = []
for seed in (None, "0", "a longer seed"):
    os.environ.pop("PYTHONHASHSEED", None)
    if seed is not None:
        os.environ["PYTHONHASHSEED"] = seed
    for algorithm in ("sha256", "sha256_cbor"):
        for size in (1, 2, 3, 4, 24):
            for salt in (None, "tenant-a", "é" * 200):
                cases.append({"seed": seed, "algorithm": algorithm, "size": size, "salt": salt, "hashes": chain(algorithm, size, salt)})
path = Path(__file__).parent / "vllm.json"
path.write_text(json.dumps({"tokens": TOKENS, "cases": cases}, indent=1, ensure_ascii=False) + "\n")
