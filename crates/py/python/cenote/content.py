"""Names of files by all of their content. Imports no engine.

The cache keeps hashes until the machine boots again, in a folder of this user in memory. It returns
a hash if device, inode, size and times of the file equal those at the time of hashing. Four facts
make that sound:

- No program can set the time of an inode's last change (`ctime`). Each write, each rename and each
  change of the other times sets it.
- The cache omits a file that changed less than a minute before it was hashed. So a later write has
  another time, even under a coarse clock. The kernel has also written back mapped pages by then, so
  the next write to one of them sets the time again.
- The cache trusts only file systems of this machine's kernel to keep that time. It does not trust
  tmpfs, which ignores mapped writes.
- A cache folder or record that another user can write, or that is malformed, counts as missing.

`python -m cenote.content PATH…` prints the hashes and their cost.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cenote import clock
from cenote._native import file_digests, file_stamps
from cenote.clock import Deadline
from cenote.walk import matching_below

Stamp = tuple[int, int, int, int, int, int]

_SETTLED_SECONDS = 60.0
_RECORD_BYTES_MAX = 1024
_RECORDS_MAX = 4096
# A process waits for the process that hashes for this minimum plus the time of all bytes at this
# rate. After that it hashes the files itself.
_WAIT_SECONDS_MIN, _WAIT_BYTES_PER_SECOND = 30.0, 200 << 20
_POLL_SECONDS = 0.05

# ext2 to ext4, XFS, btrfs, F2FS, ZFS, bcachefs, overlayfs, SquashFS, EROFS. Not tmpfs: it does not
# see writes to mapped pages.
TRUSTED = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x2FC12FC1, 0xCA451A4E, 0x794C7630, 0x73717368, 0xE0F5E1E2}


@dataclass(frozen=True)
class Content:
    """The BLAKE3 hash of a file's content, and its stamp when it was hashed."""

    digest: bytes
    stamp: Stamp

    @property
    def size(self) -> int:
        return self.stamp[2]


def contents(paths: Sequence[Path], cache: Cache | None = None) -> list[Content]:
    """Contents of these files, from the cache or from the files, in order.

    Processes that request the same cacheable files hash them once. Raises OSError if a file cannot
    be read, and CenoteError if a file changes while it is hashed."""
    cache = cache or Cache()
    found = [cache.get(stamp) for stamp in _stamps(paths)]
    missing = [place for place, known in enumerate(found) if known is None]
    if missing:
        with cache.lock(sum(paths[place].stat().st_size for place in missing)):
            # The process that held the lock may have hashed the same files.
            again = [cache.get(stamp) for stamp in _stamps([paths[place] for place in missing])]
            left = [place for place, known in zip(missing, again, strict=True) if known is None]
            for place, known in zip(missing, again, strict=True):
                found[place] = known
            began = clock.unix()
            for place, (stamp, digest) in zip(left, file_digests([paths[place] for place in left]), strict=True):
                found[place] = Content(digest, stamp)
                cache.put(Content(digest, stamp), began)
    return [known for known in found if known is not None]


def _stamps(paths: Sequence[Path]) -> list[Stamp]:
    return file_stamps(list(paths))


def stamps(paths: Sequence[Path]) -> list[Stamp] | None:
    """The stamps of these files; None if a file cannot be opened."""
    try:
        return _stamps(paths)
    except OSError:
        return None


class Cache:
    """Hashes of files, shared by all processes of one user."""

    def __init__(self, folder: Path | None = None, settled_seconds: float = _SETTLED_SECONDS) -> None:
        self.folder = folder or Path(f"/dev/shm/.cenote-content-{os.geteuid()}")
        self.settled_seconds = settled_seconds
        self.hits = 0
        self._boot = _boot()
        self._descriptor: int | None = None
        if self._boot is not None:
            with contextlib.suppress(OSError):
                self._descriptor = self._open()

    def _open(self) -> int | None:
        """The folder, if no other user can write to it."""
        with contextlib.suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if _is_own(os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)
        return None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)  # type: ignore[arg-type]

    def get(self, stamp: Stamp) -> Content | None:
        """The cached content for this stamp; None if the cache has none."""
        if self._descriptor is None or stamp[5] not in TRUSTED:
            return None
        try:
            digest = self._read(stamp)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        self.hits += digest is not None
        return None if digest is None else Content(digest, stamp)

    def _read(self, stamp: Stamp) -> bytes | None:
        descriptor = os.open(_name(stamp), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._descriptor)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or not _is_own(found) or found.st_size > _RECORD_BYTES_MAX:
                return None
            text, _, check = os.read(descriptor, _RECORD_BYTES_MAX).rpartition(b"\n")
        finally:
            os.close(descriptor)
        if check != _check(text):
            return None
        record = json.loads(text)
        if record["boot"] != self._boot or record["stamp"] != list(stamp):
            return None
        digest = bytes.fromhex(record["digest"])
        return digest if len(digest) == 32 else None

    def put(self, content: Content, began: float) -> None:
        """Caches the hash of a file that was read after `began`, in seconds since the epoch.

        Skips a file that had changed less than `settled_seconds` before."""
        last = max(content.stamp[3], content.stamp[4]) / 1e9
        if self._descriptor is None or content.stamp[5] not in TRUSTED or last + self.settled_seconds > began:
            return
        record = {"boot": self._boot, "stamp": list(content.stamp), "digest": content.digest.hex()}
        text = json.dumps(record).encode()
        with contextlib.suppress(OSError):
            self._write(_name(content.stamp), text + b"\n" + _check(text))

    def _write(self, name: str, data: bytes) -> None:
        known = os.listdir(self._descriptor)
        if len(known) > _RECORDS_MAX:
            for old in known:
                if old != "lock":
                    with contextlib.suppress(OSError):
                        os.unlink(old, dir_fd=self._descriptor)
        part = f"part-{os.getpid()}-{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.rename(part, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self._descriptor)
            raise

    @contextlib.contextmanager
    def lock(self, size: int) -> Iterator[None]:
        """Admits one hashing process at a time, so that the others find its results.

        The lock only saves work: a process continues without it after a timeout."""
        descriptor = None
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open("lock", flags, 0o600, dir_fd=self._descriptor)
        try:
            if descriptor is not None:
                _wait_for(descriptor, _WAIT_SECONDS_MIN + size / _WAIT_BYTES_PER_SECOND)
            yield
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _wait_for(descriptor: int, seconds: float) -> bool:
    deadline = Deadline(seconds)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if deadline.passed:
                return False
            # `flock` has no variant with a deadline, so poll.
            time.sleep(clock.block_for(_POLL_SECONDS))
        except OSError:
            return False


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0


def _name(stamp: Stamp) -> str:
    return f"{stamp[0]:x}-{stamp[1]:x}"


def _check(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def _boot() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def _main(arguments: list[str]) -> None:
    fresh = "--fresh" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--fresh"]
    files = [file for path in paths for file in (matching_below(path, "*") if path.is_dir() else [path]) if file.is_file()]
    if not files:
        raise SystemExit("usage: python -m cenote.content [--fresh] PATH…\n--fresh ignores the cache")
    cache = Cache()
    began = clock.now()
    made: Any = [Content(digest, stamp) for stamp, digest in file_digests(files)] if fresh else contents(files, cache)
    seconds = clock.now() - began
    for file, content in zip(files, made, strict=True):
        print(content.digest.hex(), file)
    size = sum(content.size for content in made)
    print(
        f"{size / 1e9:.2f} GB in {len(files)} files, of which {cache.hits} were cached: {seconds:.3f} s, "
        f"{size / 1e9 / max(seconds, 1e-9):.2f} GB/s on {len(os.sched_getaffinity(0))} processors",
        file=sys.stderr,
    )


if __name__ == "__main__":
    _main(sys.argv[1:])
