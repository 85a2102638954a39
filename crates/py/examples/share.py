"""Two processes share one pool: the first publishes the blocks of a prompt, the second loads them.

    python share.py [REGION]

Both derive the names of blocks from the tokens. They exchange only the name of the region.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import cenote

# One rank of a model: bytes of a block over all layers, and tokens per block.
BLOCK_BYTES, BLOCK_TOKENS = 1 << 20, 16
MODEL = b"my model, bf16, rank 0 of 1"
PROMPT = list(range(1000, 1000 + 8 * BLOCK_TOKENS + 5))


def content(number: int) -> bytes:
    """The content that the first process computes for a block."""
    return bytes([number + 1]) * BLOCK_BYTES


def publish(name: str) -> None:
    with cenote.Region.open(name, worker="publisher") as region:
        blocks = region.namespace(MODEL, BLOCK_BYTES, block_tokens=BLOCK_TOKENS)
        # A name covers all tokens up to the end of its block. The last five tokens fill no block.
        names = blocks.hash_tokens(PROMPT, BLOCK_TOKENS)
        memory = bytearray(BLOCK_BYTES)
        for number in range(len(names)):
            memory[:] = content(number)
            outcome = blocks.publish(names[number], number, memory)
            # `duplicate`: another process has published the block. A program should tolerate
            # `no_room` and `over_quota`: the block is absent, which is a later miss.
            assert outcome in ("published", "duplicate"), outcome
        print(f"published {len(names)} blocks")


def use(name: str) -> None:
    with cenote.Region.open(name, worker="user") as region:
        blocks = region.namespace(MODEL, BLOCK_BYTES, block_tokens=BLOCK_TOKENS)
        # The prompts share their first six blocks.
        prompt = [*PROMPT[: 6 * BLOCK_TOKENS], *range(5000, 5064)]
        memory = bytearray(BLOCK_BYTES)
        # The lease pins the found blocks until the end of the `with` block.
        with blocks.lookup(blocks.hash_tokens(prompt, BLOCK_TOKENS)) as lease:
            print(f"found {len(lease)} blocks of {len(prompt) // BLOCK_TOKENS}")
            for number in range(len(lease)):
                if not lease.read_into(number, memory):
                    print(f"block {number} is damaged: a miss; compute from here on")
                    break
                assert memory == content(number)
            else:
                print("all blocks match the published content")


def main() -> None:
    if len(sys.argv) == 3:
        {"publish": publish, "use": use}[sys.argv[1]](sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        # A region is shared memory (`shm:NAME`) or a file.
        name = sys.argv[1] if len(sys.argv) == 2 else str(Path(folder, "region"))
        cenote.Region.create(name, "64MiB", exist_ok=True)
        for role in ("publish", "use"):
            subprocess.run([sys.executable, __file__, role, name], check=True)


if __name__ == "__main__":
    main()
