"""N-gram embedding tables in a region: one copy for all processes of a host or a rack.

>>> from cenote import Region, engram
>>> engram.load("shm:kv", "v41", model="DeepSeek-V4.1-Flash")  # tables v41.L1 and v41.L14
>>> with Region.open("shm:kv", worker="me") as region:
...     table = engram.Table(region, "v41.L1")
...     rows = engram.addresses("DeepSeek-V4.1-Flash").rows([5, 7, 9], layer=1)  # of shape (3, 24)
...     values = torch.empty(3 * 24, table.row_values, dtype=torch.bfloat16)
...     table.gather(rows, values, dtype="bfloat16")

See docs/guides/engram.md.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from cenote._native import Addresses, Pending, Table, tables
from cenote._native import check_table as check
from cenote._native import default_table_name as default_name
from cenote._native import drop_table as drop
from cenote._native import load_tables as load

__all__ = ["Addresses", "Pending", "Table", "addresses", "check", "default_name", "drop", "load", "tables"]


def addresses(folder: str | PathLike[str]) -> Addresses:
    """The addresses of a model's tables, from `config.json` and `tokenizer.json` in its folder.

    Raises OSError if there is no configuration, and ValueError if it has no tables."""
    tokenizer = Path(folder, "tokenizer.json")
    return Addresses(Path(folder, "config.json").read_bytes(), tokenizer=tokenizer.read_bytes() if tokenizer.is_file() else None)
