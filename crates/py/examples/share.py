"""Two processes and one pool: the first publishes the blocks of a prompt from its memory, the second has them.

    python share.py [REGION]

Both name the blocks by the tokens in them. Nobody has to tell the other anything but the region's name.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import cenote

# Of one rank of a model: bytes of a block over all layers, and tokens in it.
BLOCK_BYTES, BLOCK_TOKENS = 1 << 20, 16
MODEL = b"my model, bf16, rank 0 of 1"
PROMPT = list(range(1000, 1000 + 8 * BLOCK_TOKENS + 5))


def content(number: int) -> bytes:
    """What the first process has computed for a block."""
    return bytes([number + 1]) * BLOCK_BYTES


def publish(name: str) -> None:
    with cenote.Region.open(name, worker="publisher") as region:
        blocks = region.namespace(MODEL, BLOCK_BYTES, block_tokens=BLOCK_TOKENS)
        # A name covers all tokens up to the end of its block. The last five tokens fill none.
        names = blocks.hash_tokens(PROMPT, BLOCK_TOKENS)
        memory = bytearray(BLOCK_BYTES)
        for number in range(len(names)):
            memory[:] = content(number)
            outcome = blocks.publish(names[number], number, memory)
            # `duplicate`: somebody else was faster. `no_room`, `over_quota`: it is not there, and nobody minds.
            assert outcome in ("published", "duplicate"), outcome
        print(f"published {len(names)} blocks")


def use(name: str) -> None:
    with cenote.Region.open(name, worker="user") as region:
        blocks = region.namespace(MODEL, BLOCK_BYTES, block_tokens=BLOCK_TOKENS)
        # The same beginning and another end: what both have is there.
        prompt = [*PROMPT[: 6 * BLOCK_TOKENS], *range(5000, 5064)]
        memory = bytearray(BLOCK_BYTES)
        # What is found is pinned until the end of this, so that it stays where it is.
        with blocks.lookup(blocks.hash_tokens(prompt, BLOCK_TOKENS)) as lease:
            print(f"found {len(lease)} blocks of {len(prompt) // BLOCK_TOKENS}")
            for number in range(len(lease)):
                if not lease.read_into(number, memory):
                    print(f"block {number} is damaged: a miss, to be computed from here on")
                    break
                assert memory == content(number)
            else:
                print("each is as it was published")


def main() -> None:
    if len(sys.argv) == 3:
        {"publish": publish, "use": use}[sys.argv[1]](sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        # `shm:NAME` is memory; a file works as well.
        name = sys.argv[1] if len(sys.argv) == 2 else str(Path(folder, "region"))
        cenote.Region.create(name, "64MiB", exist_ok=True)
        for role in ("publish", "use"):
            subprocess.run([sys.executable, __file__, role, name], check=True)


if __name__ == "__main__":
    main()
