"""Another host's region, shared by a process of `cenote pool share`, with the NIXL of the tests (`crates/reach/fake`).

That NIXL reads the files behind shared memory, between processes. Its controls are those of this process's reads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from pathlib import Path
from types import TracebackType

from waiting import PATIENCE, until

import cenote

COMMAND = Path(sysconfig.get_path("scripts"), "cenote")
# Blocks have equal names under equal seeds only.
SEED = bytes([7]) * 32


def library() -> str:
    """The file of that NIXL, which `cargo build -p cenote-reach --example fake_nixl` makes; another target folder is to be named."""
    root = Path(__file__).parents[3]
    return os.environ.get("CENOTE_FAKE_NIXL") or str(root / "target/debug/examples/libfake_nixl.so")


def key_file(folder: Path, number: int = 7) -> str:
    """A file with a key, which no other user reads."""
    path = folder / f"key-{number}"
    path.touch(0o600)
    path.write_text(f"{number:02x}" * 32)
    return str(path)


def create(name: str, size: str = "16MiB", chunk_size: str = "256KiB") -> None:
    cenote.Region.create(name, size, chunk_size=chunk_size, max_hosts=1, pins_per_worker=112, hash_seed=SEED)


def connected(region: cenote.Region) -> cenote.Region:
    """The region, once all of its peers answer."""

    def good() -> bool:
        peers = region.peers
        return peers is not None and peers["remote_peers_good"] == peers["remote_peers"]

    until(lambda: f"peers that answer: {region.peers}, {region.peers_error}", good)
    return region


def lives(process: int) -> bool:
    """Whether a process has not ended; that of nobody's may be a zombie then."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


class Share:
    """A process that shares a region, and its address."""

    def __init__(self, region: str, key: str, nixl: str | None = None, user: str | None = None) -> None:
        self.nixl = nixl or library()
        flags = ["--region", region, "--listen", "127.0.0.1:0", "--key-file", key, "--nixl", self.nixl]
        if user:
            flags += ["--user", user]
        self.process = subprocess.Popen([str(COMMAND), "pool", "share", *flags], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, "it ended without an address"

    def settings(self, key: str, deadline: float = PATIENCE / 2) -> dict[str, str]:
        """The settings of a reader."""
        return {"peers": f"{self.address},deadline={deadline:g}", "peer_key_file": key, "nixl": self.nixl}

    @property
    def holders(self) -> list[int]:
        """The process with the region's memory, which this one has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in children.read_text().split()] if self.process.poll() is None else []

    def kill(self) -> None:
        """Ends both processes: the other one notices it."""
        holders = self.holders
        self.process.kill()
        self.process.wait(PATIENCE)
        until("the end of the process with the memory", lambda: not any(map(lives, holders)))

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Reads:
    """Controls of this process's reads. Leaving the block lets all go on."""

    def __init__(self) -> None:
        self._nixl = ctypes.CDLL(library())
        self._nixl.fake_nixl_hold.argtypes, self._nixl.fake_nixl_hold.restype = (ctypes.c_bool,), None
        self._nixl.fake_nixl_reads.restype = ctypes.c_uint64

    def hold(self, holds: bool = True) -> None:
        """Keeps reads in progress, or lets them go on."""
        self._nixl.fake_nixl_hold(holds)

    @property
    def ended(self) -> int:
        return int(self._nixl.fake_nixl_reads())

    def __enter__(self) -> Reads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.hold(False)
