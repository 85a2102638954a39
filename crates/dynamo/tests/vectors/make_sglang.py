"""Writes sglang.json: page keys of SGLang 0.5.23, computed by SGLang's own functions.

Run it with `target/sglang/bin/python`, which `cargo xtask sglang` makes."""

import json
from array import array
from pathlib import Path
from types import SimpleNamespace

from sglang.srt.mem_cache.utils import get_storage_hash_str

TOKENS = [7, 255, 256, 65535, 65536, 2**31 - 1, 0, 128_000, 2**31, 2**32 - 1, 1, 2]


class Key(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.token_ids)


cases = []
for size in (1, 4, 12):
    for salt in (None, "tenant-a", "é" * 200):
        key = Key(token_ids=array("q", TOKENS), extra_key=None, cache_salt=salt)
        cases.append({"size": size, "salt": salt, "keys": get_storage_hash_str(key, page_size=size)})
path = Path(__file__).parent / "sglang.json"
path.write_text(json.dumps({"tokens": TOKENS, "cases": cases}, indent=1, ensure_ascii=False) + "\n")
