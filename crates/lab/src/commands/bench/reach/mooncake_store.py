"""Blocks of a prompt in Mooncake Store over TCP: in another process, found and copied here.

Reads a job as JSON from stdin, and writes seconds and processor time as JSON to stdout."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import mooncake
import numpy as np
from mooncake.store import MooncakeDistributedStore


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(name, port, *flags):
    program = Path(mooncake.__file__).parent / name
    program.chmod(0o755)
    server = subprocess.Popen([program, *flags], stdin=subprocess.DEVNULL, stdout=2)
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        if server.poll() is not None:
            break
        time.sleep(0.1)
    server.kill()
    sys.exit(f"{name} is not ready")


def cpu(process):
    """Processor time of a process's threads so far, in seconds."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def main():
    job = json.load(sys.stdin)
    count, size, repeat = job["blocks"], job["block_bytes"], job["repeat"]
    port, metrics, memory = free_port(), free_port(), free_port()
    servers = []
    try:
        # A long lease: a busy machine delays a client, and an expired one fails its gets.
        lease = "--default_kv_lease_ttl=600000"
        servers.append(start("mooncake_master", port, f"--rpc_port={port}", f"--metrics_port={metrics}", lease))
        room = (2 * count * size * (repeat + 1) >> 20) + 64
        servers.append(start(
            "mooncake_client", memory, "--host=127.0.0.1", f"--port={memory}", "--protocol=tcp",
            f"--master_server_address=127.0.0.1:{port}", "--metadata_server=P2PHANDSHAKE", f"--global_segment_size={room} MB",
        ))  # fmt: skip
        store = MooncakeDistributedStore()
        if (code := store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", f"127.0.0.1:{port}")) != 0:
            sys.exit(f"setup returned {code}")
        here = np.zeros((count, size), dtype=np.uint8)
        assert store.register_buffer(here.ctypes.data, here.nbytes) == 0
        places = [here.ctypes.data + number * size for number in range(count)]
        wall, own, servers_cpu = [], [], []
        for turn in range(repeat + 1):
            keys = [f"{turn}-{number}" for number in range(count)]
            here[:] = np.random.default_rng(turn).integers(0, 256, here.shape, dtype=np.uint8)
            kept = here.copy()
            assert {store.put_from(key, place, size) for key, place in zip(keys, places)} == {0}
            here[:] = 0
            before = time.perf_counter(), time.process_time(), sum(cpu(server.pid) for server in servers)
            assert set(store.batch_is_exist(keys)) == {1}
            assert set(store.batch_get_into(keys, places, [size] * count)) == {size}
            after = time.perf_counter(), time.process_time(), sum(cpu(server.pid) for server in servers)
            assert (here == kept).all(), "other bytes"
            # The first turn makes connections.
            if turn > 0:
                for times, end, begin in zip((wall, own, servers_cpu), after, before):
                    times.append(end - begin)
        print(json.dumps({"wall": wall, "own_cpu": own, "owner_cpu": servers_cpu}), flush=True)
    finally:
        for server in servers:
            server.kill()
    # Its exit handlers wait for the servers.
    os._exit(0)


main()
