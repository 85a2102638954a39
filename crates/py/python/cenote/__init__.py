"""KV-cache pool in shared memory for all LLM workers of a host or a rack. It needs no server.

>>> import cenote
>>> cenote.Region.create("shm:kv", "64MiB", exist_ok=True)
>>> with cenote.Region.open("shm:kv", worker="me") as region:
...     blocks = region.namespace(b"my model, bf16, rank 0 of 1", block_bytes=1 << 20)
...     page = bytearray(1 << 20)
...     names = blocks.hash_tokens(list(range(40)), block_tokens=16)
...     for number in range(len(names)):
...         blocks.publish(names[number], number, page)
...     with blocks.lookup(names) as lease:
...         found = len(lease)
...         for number in range(found):
...             if not lease.read_into(number, page):
...                 break  # damaged: a miss

`examples/share.py` of the source tree does this with two processes.
`cenote.engram` has n-gram embedding tables. `cenote.vllm` is a KV connector for vLLM. This package does not import it.
"""

from cenote._native import (
    FORMAT_VERSION,
    Addresses,
    BlockName,
    BlockView,
    CenoteError,
    Codec,
    Filling,
    Follower,
    Hashes,
    KvMemory,
    Lease,
    Load,
    Namespace,
    Pending,
    Promotion,
    Region,
    RegionFull,
    RegionMismatch,
    RegionMissing,
    Rows,
    Save,
    Table,
    __version__,
)

__all__ = [
    "FORMAT_VERSION",
    "Addresses",
    "BlockName",
    "BlockView",
    "CenoteError",
    "Codec",
    "Filling",
    "Follower",
    "Hashes",
    "KvMemory",
    "Lease",
    "Load",
    "Namespace",
    "Pending",
    "Promotion",
    "Region",
    "RegionFull",
    "RegionMismatch",
    "RegionMissing",
    "Rows",
    "Save",
    "Table",
    "__version__",
]
