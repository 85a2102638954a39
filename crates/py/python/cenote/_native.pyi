"""What the compiled part of the package offers. Sizes are in bytes, times in seconds."""

from collections.abc import Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final, overload

from typing_extensions import Buffer

__version__: str
FORMAT_VERSION: int

_Path: TypeAlias = str | PathLike[str]
_Hashes: TypeAlias = Hashes | Sequence[bytes]
class _Tensor(Protocol):
    def __dlpack__(self) -> object: ...

# By the buffer protocol, by DLPack (on the processor, contiguous), or by address and length.
_Memory: TypeAlias = Buffer | _Tensor | tuple[int, int]
_Parts: TypeAlias = _Memory | Iterable[_Memory]
_Outcome: TypeAlias = Literal["published", "duplicate", "no_room", "over_quota"]

# A setting, what was asked for, and what the region has.
_Difference: TypeAlias = tuple[str, str, str]

# Kind, namespace, hash, name and parent's name (0: none), place in its sequence.
_Event: TypeAlias = tuple[Literal["stored", "removed"], int, bytes, int, int, int]
_Resync: TypeAlias = Literal["begun", "overtaken", "lost", "told"]

def _kill_at(point: str, count: int) -> None:
    """Kills this process when it comes to a fault point for the `count`-th time. For tests."""

# Device, inode, size, nanoseconds of the last change of the content and of anything, kind of file system.
_Stamp: TypeAlias = tuple[int, int, int, int, int, int]

def file_stamps(paths: Sequence[_Path]) -> list[_Stamp]:
    """What tells whether a file has changed, for each. Raises OSError, which names the file, for one that cannot be opened."""

def file_digests(paths: Sequence[_Path]) -> list[tuple[_Stamp, bytes]]:
    """Stamps of files and the BLAKE3 hashes of their content, which all processors compute. Raises CenoteError if one changes
    meanwhile."""
def _panic_at(point: str, count: int) -> None:
    """Panics when it comes to a fault point for the `count`-th time. For tests."""

class CenoteError(RuntimeError):
    """Something that a region cannot do, or not now; or a bug in the compiled part. Raised when opening and administering,
    and while serving for a bug only."""

class RegionMissing(CenoteError):
    """There is no such region."""

class RegionMismatch(CenoteError):
    """The region was made by another version, with another seed, or for another machine; or it is damaged."""

class RegionFull(CenoteError):
    """The region has no room, or no free row, for one more."""

@final
class Region:
    """A shared region that this process is a worker of. It is usable in the process that opened it, by all its threads."""

    @staticmethod
    def create(
        region: str,
        size: int | str,
        *,
        chunk_size: int | str | None = None,
        min_block: int | str | None = None,
        max_hosts: int | None = None,
        pins_per_worker: int | None = None,
        flush: str | None = None,
        mode: int | None = None,
        hash_seed: Sequence[int] | bytes | None = None,
        prefault: bool = False,
        exist_ok: bool = False,
        events: int | None = None,
        eviction: str | None = None,
    ) -> list[_Difference]:
        """Makes a region: `shm:NAME`, a file, or a hugetlbfs path. Sizes are numbers of bytes, or texts such as `4GiB`.

        `chunk_size` (2 MiB) is the largest block, `min_block` (16 KiB) the smallest. `max_hosts` is 16, `pins_per_worker` 1792, `mode`
        0o600. `flush` is `none`; `auto` is for a device that several hosts share without coherence. `events` (0: none) are the lines
        of each host's event log. `eviction` is `lru`; others are `sieve`, `s3-fifo`, `cost-aware`.

        With `exist_ok` a region that exists is left as it is. Returns the given settings that it does not have.
        """
    @staticmethod
    def open(
        region: str,
        *,
        worker: str = "python",
        host_slot: int = 0,
        lock_timeout: float = 0.5,
        host_timeout: float = 10.0,
        quarantine: float = 30.0,
        hash_seed: Sequence[int] | bytes | None = None,
        numa_node: int | None = None,
        huge_pages: bool = True,
    ) -> Region:
        """Joins a region. `worker` is shown by `cenote pool info`; `host_slot` is this machine's number where several share
        the region; `hash_seed`, if given, must be the region's."""
    def namespace(
        self,
        fingerprint: bytes,
        block_bytes: int,
        *,
        label: str = "",
        block_tokens: int = 0,
        num_layers: int = 0,
        codec: Codec | None = None,
    ) -> Namespace:
        """Blocks of one model shard. `fingerprint` must cover everything in which two users have to agree to share a block:
        weights, element type, layout, shard, tenant. With a codec, blocks are saved encoded, and those that others have encoded
        are found; without, they are not. A block tells how it was encoded: what this codec cannot read is a load that fails.
        Those who name the codec in the fingerprint never see such."""
    def follow(self) -> Follower:
        """A reader of what comes and what leaves, on all hosts. The region must keep events."""
    @property
    def degraded(self) -> str | None:
        """Why this process leaves the region alone, if it does."""
    def counters(self) -> dict[str, int]:
        """Counters of this host's workers, by name."""
    def info(self) -> dict[str, Any]:
        """What the region holds and who uses it, as `cenote pool info --json` prints it."""
    def check(self, payloads: bool = False) -> dict[str, Any]:
        """Walks everything that this host has, with `payloads` every byte. `is_clean` tells whether all is as it must be."""
    def gc(self) -> dict[str, Any]:
        """Reclaims what no living process holds."""
    def put_object(self, key: str, data: bytes) -> None:
        """Publishes bytes under a key of at most 56 bytes, in place of what was there."""
    def get_object(self, key: str) -> bytes | None:
        """The bytes under a key."""
    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length: for devices that copy by themselves."""
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Leaves the region. Leases that are still held keep their blocks."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Hashes:
    """Names of blocks, in order; 16 bytes each."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> bytes: ...
    @overload
    def __getitem__(self, index: slice, /) -> Hashes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def tobytes(self) -> bytes: ...
    @staticmethod
    def frombytes(data: bytes) -> Hashes: ...

@final
class Codec:
    """How blocks of an engine are stored in fewer bytes, where it is known how a layer's page lies: K and V of `num_heads`,
    `block_tokens`, `head_dim`.

    `codec` is a name that the `cenote` command knows: `int8`, `qpack:RATE`, `qpackz:RATE`, `oaken`, …; the last three need
    `profile`, the content of a file that `cenote profile` made. `dtype` is `f16`, `bf16` or `f32`. `order`: `NHD` if a token's
    heads lie together, `HND` if a head's tokens do. `kv`: `joint` if each head and token has its key followed by its value,
    `split` if all keys are followed by all values.
    """

    def __new__(
        cls,
        codec: str,
        *,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: Literal["f16", "bf16", "f32"],
        order: Literal["NHD", "HND"],
        kv: Literal["joint", "split"],
        profile: bytes | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str:
        """The codec's name with its settings, and the profile's fingerprint if it has one."""
    @property
    def block_bytes(self) -> int:
        """Bytes of a block as the engine has it."""

@final
class Namespace:
    """Blocks of one model shard in a region."""

    def hash_tokens(self, tokens: Sequence[int], block_tokens: int) -> Hashes:
        """Names of every full block of a prompt."""
    def alias(self, keys: Iterable[bytes]) -> Hashes:
        """Names of blocks that another program names by keys of its own, which cover all tokens up to a block's end."""
    def count(self, hashes: _Hashes) -> int:
        """How many blocks, from the first on, are there. Nothing is marked as used, and nothing stays because of it."""
    def present(self, hashes: _Hashes) -> bytes:
        """A byte for each block, wherever in the order: 1 if it is there, 0 if not. As with `count`, nothing stays because of it."""
    def lookup(self, hashes: _Hashes) -> Lease:
        """Looks blocks up, in order, up to the first that is missing, and pins what is found. Takes no lock and waits for
        nobody."""
    def publish(self, hash: bytes, depth: int, parts: _Parts, *, name: int = 0, parent: int = 0) -> _Outcome:
        """Publishes block number `depth` of its sequence from memory that lies piece after piece in it; each but the last is
        a multiple of 64 bytes long. Nobody may write it meanwhile. `name` and `parent`, numbers of 64 bits, are what other
        programs call the block and the one before it, for those who follow; 0: nothing."""
    def begin(self, hash: bytes, depth: int, *, name: int = 0, parent: int = 0) -> Filling | None:
        """Reserves memory for a block, to be written in place. None: it is there already, or there is no room.

        Chunks into which a host that was declared dead may still write are no room for it.
        """
    def forget(self) -> int:
        """Takes back all blocks that this host has, because the weights have changed; returns how many slots are free now."""
    def set_quota(self, bytes: int) -> None:
        """Limits what the blocks may take, over all hosts; 0 lifts the limit."""
    @property
    def id(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...

@final
class Follower:
    """A reader of a region's event logs: what anybody stored or evicted, on whatever host."""

    def poll(self) -> tuple[list[_Event], _Resync | None]:
        """What came and left since the last look: first all that is there. What came and left again in between is not told.
        The second is why it was found by walking all blocks, if it was; the events are right in any case."""

@final
class Lease:
    """Pinned blocks of one lookup, in order. They cannot be evicted before `release`."""

    def __len__(self) -> int: ...
    def read_into(self, index: int, parts: _Parts) -> bool:
        """Copies a block into writable memory, piece after piece. False: it is damaged, a miss; what is in the memory
        may not be used."""
    def view(self, index: int) -> BlockView:
        """The block in place. It stays pinned as long as the view, or a memoryview of it, is there."""
    def hashes(self) -> Hashes: ...
    def split(self, count: int) -> Lease:
        """Takes the first `count` blocks out, into a lease of their own."""
    def truncate(self, count: int) -> None:
        """Keeps only the first `count` blocks."""
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class BlockView(Buffer):
    """One pinned block in place, read-only: `memoryview(view)`, `numpy.frombuffer(view)`, `torch.frombuffer(view)`."""

    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length."""
    def verify(self) -> bool:
        """Whether its bytes are as they were published. What a device has copied of them before, while the block was pinned, is
        then right as well."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Filling(Buffer):
    """Memory of a block that nobody finds before `publish`. Writable through the buffer protocol; gone with its owner."""

    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length."""
    def publish(self) -> _Outcome:
        """Sums what was written and makes the block findable. Views of it must have been released."""
    def abort(self) -> None:
        """Gives the memory back."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class KvMemory:
    """An engine's KV memory: blocks, and in each a page of every layer.

    `layers` has for each layer the address of its first block's page, the bytes from one block's page to the next, and the
    bytes of a page, a multiple of 64. `owner` is kept alive; that the addresses are right is the caller's word.
    """

    def __new__(
        cls, layers: Sequence[tuple[int, int, int]], num_blocks: int, owner: object, *, load_threads: int = 1
    ) -> Self: ...
    def save(
        self,
        namespace: Namespace,
        hashes: _Hashes,
        depths: Sequence[int],
        blocks: Sequence[int],
        *,
        names: Sequence[int] | None = None,
        parent: int = 0,
    ) -> Save:
        """Begins to publish blocks, layer by layer. Those that are there already, or have no room, are left out. `names` are
        what other programs call the blocks, each of which follows from the one before, and the first from `parent`."""
    def load(self, lease: Lease, blocks: Sequence[int], *, fail_every: int = 0) -> Load:
        """Begins to copy the blocks of a lease into `blocks`, layer by layer, in threads of its own. The lease is spent; nobody
        else may use the blocks until the load has ended. `fail_every=n` makes every n-th block fail and spoils it, for tests."""
    def close(self) -> None:
        """Lets the threads end when they have done what was begun."""
    @property
    def block_bytes(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...

@final
class Save:
    """Blocks that are being published. Nobody finds them before `finish`."""

    def layer(self, layer: int) -> None:
        """Copies this layer of all blocks, and those before it that were not. The engine must have written them."""
    def finish(self) -> dict[str, int]:
        """Copies what is left and makes the blocks findable; returns how many came to what."""
    def abort(self) -> None:
        """Gives all up."""
    def __len__(self) -> int: ...

@final
class Load:
    """Blocks that are being loaded."""

    def wait_layer(self, layer: int, timeout: float | None) -> bool:
        """Waits until this layer of all blocks is there. False: not within `timeout`."""
    def wait(self, timeout: float | None) -> bool:
        """Waits until all has ended. False: not within `timeout`."""
    @property
    def done(self) -> bool: ...
    def failed(self) -> list[int]:
        """Places in the load of blocks that are not whole: what is in their pages may not be used. Until all has ended these
        are all of them, because a block's checksum is known at its end."""
    def cancel(self) -> None:
        """Stops copying, and returns when nothing is written any more."""
    def __len__(self) -> int: ...
