"""One n-gram table in the memory of several processes that know nothing of each other.

    python examples/shared_table.py --mebibytes 1024 --processes 2

Each process opens the table and reads all rows. Then the kernel tells how much of the region's memory
each of them has resident (Rss), and its share of it (Pss): a page that n processes have counts 1/n.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import cenote
from cenote import engram

ROW = 320  # Bytes of 160 values in bf16.
BATCH = 8192


def write_table(path: Path, rows: int) -> None:
    """A safetensors file with one tensor of noise."""
    header = json.dumps({"table": {"dtype": "BF16", "shape": [rows, ROW // 2], "data_offsets": [0, rows * ROW]}}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for first in range(0, rows, BATCH):
            file.write(os.urandom(min(BATCH, rows - first) * ROW))


def resident(region: str) -> dict[str, int]:
    """Bytes of the region's mapping in this process: `Rss` and `Pss`."""
    found, inside = {"Rss": 0, "Pss": 0}, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(f"/dev/shm/{region}")
        elif inside and (match := re.match(r"(Rss|Pss):\s+(\d+) kB", line)):
            found[match[1]] += 1024 * int(match[2])
    return found


def read_all(region: str) -> None:
    """A process of its own: reads all rows, says so, and measures when it is told to."""
    with cenote.Region.open(f"shm:{region}", worker="reader") as opened:
        table = engram.Table(opened, "example")
        rows = bytearray(BATCH * table.row_bytes)
        for first in range(0, table.rows, BATCH):
            count = min(BATCH, table.rows - first)
            table.gather(range(first, first + count), memoryview(rows)[: count * table.row_bytes])
        print("read", flush=True)
        sys.stdin.readline()
        print(json.dumps(resident(region)), flush=True)
        sys.stdin.readline()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reader:
        read_all(given.reader)
        return
    rows = (given.mebibytes << 20) // ROW
    region = f"cenote-example-{uuid.uuid4().hex[:8]}"
    cenote.Region.create(f"shm:{region}", f"{given.mebibytes + given.mebibytes // 16 + 32}MiB", chunk_size="2MiB", max_hosts=1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_table(Path(folder, "table.safetensors"), rows)
            engram.load(f"shm:{region}", "example", weights=Path(folder, "table.safetensors"), tensor="table")
        command = [sys.executable, __file__, "--reader", region]
        readers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(given.processes)
        ]
        try:
            # All have read everything before the first measures.
            for reader in readers:
                assert reader.stdout is not None
                if reader.stdout.readline() != "read\n":
                    raise SystemExit("a reader has failed")
            measured = []
            for reader in readers:
                assert reader.stdin is not None
                assert reader.stdout is not None
                reader.stdin.write("measure\n")
                reader.stdin.flush()
                measured.append(json.loads(reader.stdout.readline()))
            total = sum(one["Pss"] for one in measured)
            print(json.dumps({"table": rows * ROW, "processes": measured, "pss_of_all": total}))
        finally:
            for reader in readers:
                reader.communicate("end\n")
    finally:
        Path("/dev/shm", region).unlink()


if __name__ == "__main__":
    main()
