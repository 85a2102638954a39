"""Interface of the compiled part of the package. Sizes are in bytes, times in seconds."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, final, overload

from typing_extensions import Buffer

from cenote._tables import Addresses as Addresses
from cenote._tables import Pending as Pending
from cenote._tables import Table as Table
from cenote._tables import check_table as check_table
from cenote._tables import default_table_name as default_table_name
from cenote._tables import drop_table as drop_table
from cenote._tables import load_tables as load_tables
from cenote._tables import tables as tables

__version__: str
FORMAT_VERSION: int

_Path: TypeAlias = str | PathLike[str]
# Names, or keys of 16 bytes: bytes that are no `BlockName` name a block of the namespace at hand, as
# `Namespace.alias` does.
_Hashes: TypeAlias = Hashes | Sequence[bytes]
class _Tensor(Protocol):
    def __dlpack__(self) -> object: ...

# Memory: an object with the buffer protocol, a contiguous DLPack tensor on the CPU, or an address
# and a length.
_Memory: TypeAlias = Buffer | _Tensor | tuple[int, int]
_Parts: TypeAlias = _Memory | Iterable[_Memory]
_Outcome: TypeAlias = Literal["published", "duplicate", "no_room", "over_quota"]

# Name of a setting, requested value, actual value of the region.
_Difference: TypeAlias = tuple[str, str, str]

# Kind, namespace id, hash, name, name of the parent (0: none), depth in the sequence.
_Event: TypeAlias = tuple[Literal["stored", "removed"], int, BlockName, int, int, int]
_Resync: TypeAlias = Literal["begun", "overtaken", "lost", "gap"]

def _kill_at(point: str, count: int) -> None:
    """Kills this process when it reaches a fault point for the `count`-th time. For tests."""

# Device, inode, size, mtime and ctime in nanoseconds, file system type (`f_type` of `statfs`).
_Stamp: TypeAlias = tuple[int, int, int, int, int, int]

def file_stamps(paths: Sequence[_Path]) -> list[_Stamp]:
    """One stamp per file; a changed file has another stamp.

    Raises OSError with the file's name if a file cannot be opened.
    """

def file_digests(paths: Sequence[_Path]) -> list[tuple[_Stamp, bytes]]:
    """Stamp and BLAKE3 hash of the content of each file. All processors hash in parallel.

    Raises CenoteError if a file changes while it is hashed.
    """

def _fail_loads(every: int) -> None:
    """Makes every n-th block of later loads of this process fail; 0: none. For tests."""

def _panic_at(point: str, count: int) -> None:
    """Panics when the process reaches a fault point for the `count`-th time. For tests."""

class CenoteError(RuntimeError):
    """A region cannot do an operation, or cannot do it now; or the compiled part has a bug.

    Calls that open or administer a region raise it. Serving calls raise it for bugs only.
    """

class RegionMissing(CenoteError):
    """The region does not exist."""

class RegionMismatch(CenoteError):
    """The region has another version or seed, is for another machine, or is damaged."""

class RegionFull(CenoteError):
    """The region has no free space, or no free table row, for the new entry."""

@final
class Promotion:
    """Blocks that are on their way from the cold tier or peers into the region."""

    @property
    def over(self) -> bool:
        """True if no block is on its way any more, or their deadline has passed."""
    def wait(self) -> bool:
        """Waits until `over`. Returns False if blocks are late; they become present later."""

@final
class Region:
    """A shared region that this process has joined as a worker.

    All threads of the process that opened it may use it. Forked children may not.
    """

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
        cold: str | None = None,
        seal: str | None = None,
        seal_key_file: _Path | None = None,
    ) -> list[_Difference]:
        """Creates a region: `shm:NAME`, a file, or a hugetlbfs path.

        Sizes are numbers of bytes, or texts such as `4GiB`.

        - `chunk_size` (2 MiB) is the largest block size, `min_block` (16 KiB) the smallest.
        - Further defaults: `max_hosts` 16, `mode` 0o600, and `pins_per_worker` by size: 448 below
          256 MiB, 1,792, or up to 7,168 while all pins take at most a 64th of the region.
        - `flush` is `none`; `auto` is for a device that several hosts share without coherence.
        - `events` is the number of lines in each host's event log (0: no log).
        - `eviction` is `lru` (default), `sieve`, `s3-fifo` or `cost-aware`.
        - `cold` takes the hash seed from this disk directory, object store or Redis server, as `open` needs it.
        - `seal` is `none` (default); with `mac` others cannot forge KV, with `encrypt` nor read it.
          `seal_key_file` has the keys; by default the file that `CENOTE_SEAL_KEY_FILE` names. A key
          without a seal is refused for a new region.

        With `exist_ok`, an existing region stays unchanged. The return value lists the given
        settings that differ from those of the existing region.
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
        cold: str | None = None,
        seal: str | None = None,
        seal_key_file: _Path | None = None,
        peers: str | None = None,
        peer_key_file: _Path | None = None,
        nixl: _Path | None = None,
    ) -> Region:
        """Joins a region.

        `cenote pool info` shows `worker`. `host_slot` is the number of this machine among the
        machines that share the region. `hash_seed`, if given, must equal the seed of the region.

        `cold` keeps published blocks on disk, in an object store or a Redis server, where they outlive the region:
        `DIR`, or a URL (`s3:`, `gs:`, `az:`), with options as in
        `/var/cache/cenote,size=64GiB,write=published,deadline=2`. While the place cannot be used,
        its blocks are misses.

        A sealed region needs `seal_key_file`, or the file that `CENOTE_SEAL_KEY_FILE` names. With
        `seal` a region with another seal is refused.

        `peers` are other hosts, whose regions `Namespace.promote` reads: addresses of their
        `cenote pool share`, as in `10.0.0.2:7411,10.0.0.3:7411,deadline=0.5`. They need the file
        `peer_key_file` with their key, and NIXL's library: `nixl`, or what the dynamic linker finds.
        What is not given comes from `CENOTE_PEERS`, `CENOTE_PEER_KEY_FILE` and `CENOTE_NIXL`; with an
        empty text for `peers` there are none. A setting that cannot be used raises `CenoteError`.
        Peers are connected to in the background; while one does not answer, its blocks are misses.
        """
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
        """Namespace for the blocks of one model shard.

        `fingerprint` must cover all facts that two users must share to exchange a block: weights,
        element type, layout, shard, tenant.

        With a codec, saves encode blocks and lookups find encoded blocks. Without a codec, lookups
        skip encoded blocks. A block records its encoding; the load of a block that this codec
        cannot decode fails. Put the codec into the fingerprint to never find such blocks.
        """
    def follow(self) -> Follower:
        """A reader of the stored and evicted blocks of all hosts. The region must keep events."""
    @property
    def degraded(self) -> str | None:
        """Reason why this process does not use the region; None if it uses the region."""
    @property
    def is_current(self) -> bool:
        """True if the name still leads to this region, and all of its memory is there.

        False after the region was removed or made anew: this process still has the memory of the first one then."""
    def bind_thread(self) -> int | None:
        """Binds the calling thread to the NUMA node nearest to the region's memory.

        The thread keeps to processors that it may use already. Returns the node, or None if the
        thread stays where it was: there is no choice, the kernel refuses, or the environment has
        CENOTE_NUMA_BIND=off. The threads of `KvMemory` do this by themselves.
        """
    @property
    def cold(self) -> dict[str, int] | None:
        """Counters of the cold tier in this process, by name; None without `cold`."""
    @property
    def cold_error(self) -> str | None:
        """The last error of the cold tier in this process; each counts as a miss."""
    @property
    def peers(self) -> dict[str, int] | None:
        """Counters and gauges of peers in this process, by name; None without `peers`."""
    @property
    def retained(self) -> dict[str, int]:
        """What `Namespace.retain` was asked for in this process, by name: blocks and sequences that are kept,
        and totals of blocks that were added, renewed, dropped for the limit, ended by their time, and lost."""
    @property
    def peers_error(self) -> str | None:
        """Why a peer is not asked now; None if all are."""
    @property
    def promotes(self) -> bool:
        """True if `Namespace.promote` may bring blocks: the region has a cold tier or peers."""
    def settle_cold(self, timeout: float) -> bool:
        """Waits until the cold tier has written or dropped all published blocks.

        Returns False after `timeout` seconds."""
    def counters(self) -> dict[str, int]:
        """Counters of this host's workers, by name."""
    def info(self) -> dict[str, Any]:
        """Content and users of the region, in the form of `cenote pool info --json`."""
    def namespaces(self) -> list[dict[str, Any]]:
        """The models that share the region: the rows of `info` without counts of their blocks."""
    def drop_old_facts(self) -> int:
        """Removes the recorded facts of models that have no namespace any more; returns their number."""
    def check(self, payloads: bool = False) -> dict[str, Any]:
        """Checks all structures of this host, and with `payloads` every payload byte.

        `is_clean` is true if the check found no defect.
        """
    def gc(self) -> dict[str, Any]:
        """Reclaims resources that no living process holds."""
    def put_object(self, key: str, data: bytes) -> None:
        """Publishes bytes under a key of at most 56 bytes. Replaces the previous object."""
    def get_object(self, key: str) -> bytes | None:
        """The bytes under a key; None if the key is absent."""
    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length in bytes, for devices that copy by themselves."""
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Leaves the region. Open leases keep their blocks pinned."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

class BlockName(bytes):
    """Name of a block, of 16 bytes, that a namespace made."""

    __slots__ = ()

@final
class Hashes:
    """Names of blocks, in order. Each name has 16 bytes."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> BlockName: ...
    @overload
    def __getitem__(self, index: slice, /) -> Hashes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __add__(self, other: Hashes, /) -> Hashes: ...
    def tobytes(self) -> bytes: ...
    @staticmethod
    def frombytes(data: bytes) -> Hashes: ...

@final
class Codec:
    """Encoding of an engine's blocks for a page layout that is known.

    A page of a layer has K and V of `num_heads` × `block_tokens` × `head_dim` values.

    - `codec` is a name that the `cenote` command accepts: `int8`, `qpack:RATE`, `qpackz:RATE`,
      `oaken`, …
    - `profile` is the content of a file of `cenote profile`. `qpack`, `qpackz` and `oaken` need it.
    - `dtype` is `f16`, `bf16` or `f32`.
    - `order` is `NHD` if the heads of a token are contiguous, `HND` if the tokens of a head are.
    - `kv` is `joint` if each key is followed by its value, per head and token. It is `split` if all
      keys precede all values.
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
        """The codec's name with its settings, and the fingerprint of the profile if it has one."""
    @property
    def block_bytes(self) -> int:
        """Bytes of an unencoded block in the engine's memory."""

@final
class Namespace:
    """Blocks of one model shard in a region.

    Two namespaces never share a block. `Hashes` and `BlockName` are names that a namespace made. Any
    other 16 bytes are a key, which names a block of this namespace only, as `alias` does.
    """

    def hash_tokens(self, tokens: Sequence[int], block_tokens: int) -> Hashes:
        """Names of all full blocks of a prompt."""
    def alias(self, keys: Iterable[bytes]) -> Hashes:
        """Names of blocks from another program's keys.

        Each key must cover all tokens up to the end of its block.
        """
    def count(self, hashes: _Hashes) -> int:
        """Number of consecutive blocks present, from the first. Neither touches nor pins them."""
    def present(self, hashes: _Hashes) -> bytes:
        """One byte per block: 1 if the block is present, 0 if not. Neither touches nor pins."""
    def removed(self, hashes: _Hashes) -> list[dict[str, Any] | None]:
        """Per block, its last removal from the region: `cause` (`evicted`, `quota`, `damaged`,
        `forgotten`, `collected`), `time` and `stored` in seconds since 1970, `host` and
        `pid`. None: the region keeps none of it. Reads the whole ring, up to 4 MiB a host.
        """
    def promote(self, hashes: _Hashes, *, all: bool = False) -> Promotion | None:
        """Begins to copy blocks into the region: those that the cold tier lists from there, and the
        others from peers. Never waits.

        Copies the blocks after the last consecutive present one, up to the first that neither has.
        With `all`, copies every missing block that they have. None: there is nothing to wait for.
        """
    def retain(
        self, hashes: _Hashes, seconds: float, *, priority: int = 0, session: str | None = None, tenant: str | None = None
    ) -> None:
        """Asks that the first blocks of a sequence stay in the region for `seconds` from now, at most a day;
        0 ends what was asked for. Never waits.

        It is soft: about once a second the blocks are marked as used, and none is pinned. All wishes of this
        process take a quarter of the region's bytes at most. Beyond that the `tenant` that keeps most gives way, its
        smallest `priority` (0 to 255) first. A longer sequence with these blocks at its beginning takes their
        place, and the next wish of a `session` replaces its last one.
        """
    def lookup(self, hashes: _Hashes) -> Lease:
        """Looks blocks up in order, up to the first missing one, and pins those found.

        Takes no lock and never waits.
        """
    def record(self, hashes: _Hashes, *, above: int = 0, tokens: int = 0) -> int | None:
        """Notes a request in the region's record of requests, once, when the engine admits it.

        `hashes` are those of all full blocks of its prompt, of which the engine had the first `above`
        itself. `tokens`: those of the prompt. Returns a number for `record_answer`; None: the record, which
        is a sample of blocks, has none of them. Takes no lock and never waits. `cenote pool whatif` and
        `cenote record` read the record.
        """
    def record_answer(self, number: int, tokens: int) -> None:
        """Notes that the answer to a recorded request has ended, after so many tokens."""
    def publish(self, hash: bytes, depth: int, parts: _Parts, *, name: int = 0, parent: int = 0) -> _Outcome:
        """Publishes block number `depth` of its sequence from the concatenation of `parts`.

        Each part but the last is a multiple of 64 bytes long. Nothing may write the parts during
        the call. `name` and `parent` are 64-bit names that other programs give to the block and to
        its predecessor (0: none). Followers receive them.
        """
    def publish_all(
        self,
        hashes: _Hashes,
        depths: Sequence[int],
        parts: Sequence[_Parts],
        *,
        names: Sequence[int] | None = None,
        parent: int = 0,
    ) -> list[_Outcome]:
        """Publishes blocks, each as `publish` does. Returns one outcome per block.

        The blocks share fences and locks. A block that is not published does not keep others from
        it. If the blocks do not fit into the region, the later ones get "no_room". Each block
        follows its predecessor in `names`; the first block follows `parent`.
        """
    def begin(self, hash: bytes, depth: int, *, name: int = 0, parent: int = 0) -> Filling | None:
        """Reserves memory for a block that the caller writes in place.

        Returns None if the block is present or the region has no room. A chunk that a host
        declared dead may still write does not count as room.
        """
    def begin_all(
        self, hashes: _Hashes, depths: Sequence[int], *, names: Sequence[int] | None = None, parent: int = 0
    ) -> list[Filling | None]:
        """Reserves memory for blocks, for each as `begin` does. The blocks share locks."""
    def publish_filled(self, fillings: Iterable[Filling]) -> list[_Outcome]:
        """Publishes blocks of this region, each as `Filling.publish` does.

        The blocks share fences and locks. Raises if a block was published or aborted before, if a
        view of it exists, or if it is of another region. Then it publishes none.
        """
    def forget(self) -> int:
        """Removes all blocks of this host, for changed weights.

        Returns the number of slots freed now. A pinned block frees its slot when it is unpinned.
        """
    def set_quota(self, bytes: int) -> None:
        """Limits the bytes of the namespace's blocks over all hosts; 0 removes the limit."""
    def keep(self, bytes: int) -> None:
        """Keeps bytes of the region for the namespace's blocks over all hosts: while these take no more, none
        of them leaves for another namespace's. 0: none.

        Raises CenoteError if the region would keep more than half of its bytes for its namespaces.
        """
    @property
    def id(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def hashes_computed(self) -> int:
        """Number of names that this object has computed, by `alias`, `hash_tokens` or from keys."""

@final
class Follower:
    """A reader of a region's event logs: the stored and evicted blocks of all hosts."""

    def poll(self) -> tuple[list[_Event], _Resync | None]:
        """Changes since the last poll. The first poll returns all present blocks.

        A block that was stored and removed between two polls is omitted. The second value is the
        reason for a walk over all blocks, or None. The events are correct in both cases.
        """

@final
class Lease:
    """Pinned blocks of one lookup, in order. They cannot be evicted before `release`."""

    def __len__(self) -> int: ...
    def read_into(self, index: int, parts: _Parts) -> bool:
        """Copies a block into writable memory, part after part.

        Nothing else may access the parts during the call. Returns False if the block is damaged.
        Then the read is a miss, and the content of the parts is invalid.
        """
    @overload
    def view(self, index: int, *, verify: Literal[False]) -> BlockView: ...
    @overload
    def view(self, index: int, *, verify: bool = True) -> BlockView | None:
        """The block in place. It stays pinned as long as the view or a memoryview of it exists.

        Returns None if the block is damaged, which is a miss, or if a host that was declared dead
        may still write into its memory; `read_into` can read such a block. With `verify=False`
        nothing is checked: use this if you call `BlockView.verify` after the bytes were used.
        """
    def hashes(self) -> Hashes: ...
    def split(self, count: int) -> Lease:
        """Moves the first `count` blocks into a new lease."""
    def rows(self) -> Rows:
        """Moves the blocks into a set whose rows can be gathered. They keep their numbers."""
    def truncate(self, count: int) -> None:
        """Keeps only the first `count` blocks."""
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class Rows:
    """Blocks that stay pinned so that rows of them can be gathered, a few tokens of each.

    Encoded blocks have no rows, and are misses.
    """

    def __len__(self) -> int: ...
    def verify(self) -> list[int]:
        """Verifies all blocks now, which reads each of them once.

        Otherwise the first gather that has a row of a block verifies it. Returns the numbers of the
        blocks that are misses.
        """
    def gather(
        self,
        rows: _Parts,
        into: _Parts,
        *,
        size: int,
        offset: int = 0,
        stride: int | None = None,
        pieces: int = 1,
        piece_stride: int = 0,
        count: int | None = None,
    ) -> list[int]:
        """Copies rows into one piece of writable memory, in the order of the list, without gaps.

        `rows` is memory of pairs of 32-bit numbers, block and row: a `uint32` array of shape
        `(n, 2)`. Row `r` begins `offset + r * stride` bytes into its block and has `size` bytes, or
        `pieces` pieces of `size` bytes that begin every `piece_stride` bytes. `stride` is `size` by
        default. `count` is the rows of a block, such as the tokens of a page. Releases the interpreter lock; nothing else may access the memory meanwhile.

        Returns the numbers of the blocks that are misses, in ascending order. The bytes of their
        rows are invalid. All other rows have the published bytes. Raises `ValueError`, and copies
        nothing, if a block or a row does not exist or `into` has another size.
        """
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None: ...

@final
class BlockView(Buffer):
    """One pinned block in place, read-only.

    Use `memoryview(view)`, `numpy.frombuffer(view)` or `torch.frombuffer(view)`.
    """

    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length in bytes."""
    def verify(self) -> bool:
        """True if the bytes match the published checksum.

        If so, copies that a device made earlier under the same pin are correct too.
        """
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Filling(Buffer):
    """Memory of a block that lookups cannot find before `publish`.

    Writable through the buffer protocol. Recovery frees it if its process dies.
    """

    @property
    def extent(self) -> tuple[int, int]:
        """Address in this process and length in bytes."""
    def publish(self) -> _Outcome:
        """Computes the checksum and publishes the block. Release all views of it before."""
    def abort(self) -> None:
        """Frees the memory."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class Gpu:
    """A GPU, through the library of the CUDA driver, in the context that all libraries of a process share.

    `number` counts the GPUs that this process sees. Raises `CenoteError` without driver or GPU.
    """

    def __new__(cls, number: int, *, library: str = "libcuda.so.1") -> Self: ...
    def register(self, region: Region, *, piece_bytes: int = 1 << 30, timeout: float = 600.0) -> Registration:
        """Page-locks a region in pieces. All users of this process share that.

        Raises `CenoteError` if the memory cannot be page-locked, or not within `timeout` seconds.
        """
    @property
    def why_one_by_one(self) -> str:
        """Why each copy is a call of the driver; empty if many copies are one call."""

@final
class Registration:
    """A page-locked region."""

    def close(self) -> None:
        """Ends this use of the pages; the last use unlocks them. The GPU must not read them any more."""
    @property
    def seen(self) -> int:
        """The GPU's address of the region's first byte."""

class _TablePlace(Protocol):
    """A `cenote.device.TablePlace`."""

class _RowGather(Protocol):
    """A `cenote.device.RowGather`."""

@final
class RowKernel:
    """The kernel that gathers rows of tables, loaded on a GPU."""

    def __new__(cls, gpu: Gpu) -> Self: ...
    def gather(self, table: _TablePlace, rows: _RowGather, stream: int) -> None:
        """Queues the gather of all rows with one launch, on this stream. It allocates nothing, so graphs can hold it.

        Callers must guarantee that all addresses are the GPU's until the kernel has ended.
        """

class _PageLayout(Protocol):
    """A `cenote.device.PageLayout`."""

    @property
    def stride(self) -> int: ...
    @property
    def runs(self) -> Sequence[tuple[int, int]]: ...
    @property
    def num_blocks(self) -> int: ...

@final
class DeviceMemory:
    """KV memory on a GPU: blocks, each with one page per layer.

    `layers` has per layer the address of the first block and its layout. `memory` has address and
    bytes of the allocations that hold them; `owner` keeps these alive. `stream` returns the engine's
    current stream in the calling thread. Callers must guarantee that the addresses are the GPU's.

    Threads page-lock the region in pieces of `piece_bytes`, once per process, while loads and saves are
    served. Blocks of pieces that are not locked pass through `staging_bytes` of page-locked memory. If
    the region is sealed, or if `staged` is set, all blocks do.
    """

    def __new__(
        cls,
        gpu: Gpu,
        region: Region,
        layers: Sequence[tuple[int, _PageLayout]],
        memory: Sequence[tuple[int, int]],
        owner: object,
        stream: Callable[[], int],
        *,
        staging_bytes: int = 256 << 20,
        staged: bool = False,
        piece_bytes: int = 1 << 30,
        threads: int = 2,
        backlog_bytes: int = 4 << 30,
        gpu_buffer_bytes: int = 256 << 20,
        scatter_below: int | None = None,
    ) -> Self: ...
    def load(self, lease: Lease, blocks: Sequence[int], *, timeout: float | None = None) -> DeviceLoad:
        """Begins to load the blocks of a lease into `blocks`. The call consumes the lease.

        Copies that are not queued within `timeout` seconds fail. Only the engine's stream may use the
        blocks before the load has ended.
        """
    def save(
        self, orders: Iterable[tuple[Namespace, _Hashes, Sequence[int], Sequence[int], Sequence[int] | None, int]]
    ) -> None:
        """Saves the blocks of a step, of all its requests. They are published when the GPU has copied them.

        An order is a request's namespace, hashes, depths, blocks, names (or None) and parent, as for
        `KvMemory.save`. The engine may write the blocks after `end_step`. Blocks are skipped that are present, have no room, or would delay a step.
        """
    def end_step(self) -> None:
        """Tells that the engine's step has ended, so it may write its blocks. Its stream waits for copies
        of saves that it does not wait for yet. Blocks that still wait for a buffer are dropped."""
    def take_outcomes(self) -> dict[str, int]:
        """Counts of save outcomes since the last call: `published`, `duplicate`, `no_room`,
        `over_quota`, `failed`, `late` (no buffer in time), `busy` (too many bytes under way)."""
    def take_errors(self) -> list[str]:
        """Texts of the GPU's errors since the last call. Each was a miss."""
    def close(self, timeout: float = 5.0) -> bool:
        """Ends all loads and saves, and takes this memory from the GPU, within `timeout` seconds.

        Returns False after the timeout, or if the GPU failed. Then the memory that it may still access
        stays page-locked until the process ends.
        """
    @property
    def why_staged(self) -> str:
        """Why blocks pass through the staging memory; empty if they do not, or only until the region is
        page-locked, or the memory is closed."""
    @property
    def why_no_kernels(self) -> str:
        """Why the processor sums blocks, and each page crosses the bus by itself; empty if kernels of
        the GPU do it."""
    @property
    def page_locked(self) -> tuple[int, int] | None:
        """Bytes of the region that are page-locked, and all; None if all blocks are staged in any case."""
    def wait_locked(self, timeout: float) -> bool:
        """Waits until the region is page-locked, or that is refused. Returns False after `timeout` seconds."""
    @property
    def scatters(self) -> bool:
        """Whether whole blocks of loads cross the bus, and a kernel scatters their pages. Pages from
        `scatter_below` bytes on are copied by themselves; None: a trial at start decides."""
    @property
    def free_slots(self) -> int:
        """Number of free slots of the staging memory."""
    @property
    def block_bytes(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...

@final
class DeviceLoad:
    """A load in progress."""

    def wait(self, timeout: float | None) -> bool:
        """Waits until the load has ended. Returns False after `timeout` seconds."""
    @property
    def done(self) -> bool:
        """True if the load has ended or was cancelled."""
    def failed(self) -> list[int]:
        """Sorted numbers of the invalid blocks in the load; all before its end.

        After its end, later work of the engine on these blocks comes after the remaining copies.
        """
    def cancel(self) -> None:
        """Cancels the load, if it has not ended. Later work of the engine comes after the remaining copies."""
    def __len__(self) -> int: ...

@final
class KvMemory:
    """An engine's KV memory: blocks, each with one page per layer.

    `layers` has per layer: address of the first block's page, stride between pages of adjacent
    blocks, and bytes of a page (a multiple of 64). The object keeps `owner` alive. Callers must
    guarantee that the addresses are valid.
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
        """Begins to publish blocks, layer by layer. Skips present blocks and blocks without room.

        `names` are the names that other programs give to the blocks. Each block follows its
        predecessor in `names`; the first block follows `parent`.
        """
    def load(self, lease: Lease, blocks: Sequence[int]) -> Load:
        """Begins to copy the blocks of a lease into `blocks`, layer by layer, in own threads.

        The call consumes the lease. The caller must not use the blocks before the load has ended.
        """
    def close(self) -> None:
        """Ends the threads after the loads in progress."""
    @property
    def block_bytes(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...

@final
class Save:
    """A save in progress. Lookups cannot find its blocks before `finish`."""

    def layer(self, layer: int) -> None:
        """Copies this layer and all uncopied earlier layers.

        The engine must have written them, and must not write them until the save has ended.
        """
    def finish(self) -> dict[str, int]:
        """Copies the remaining layers and publishes the blocks. Returns the count per outcome."""
    def abort(self) -> None:
        """Drops all blocks of the save."""
    def __len__(self) -> int: ...

@final
class Load:
    """A load in progress."""

    def wait_layer(self, layer: int, timeout: float | None) -> bool:
        """Waits until this layer of all blocks is copied. Returns False after `timeout` seconds."""
    def wait(self, timeout: float | None) -> bool:
        """Waits until the load has ended. Returns False after `timeout` seconds."""
    @property
    def done(self) -> bool: ...
    def failed(self) -> list[int]:
        """Indices of the failed blocks in the load. The content of their pages is invalid.

        Before the load has ended these are all blocks: a checksum is known only after the last
        layer.
        """
    def cancel(self) -> None:
        """Stops copying. Returns when no thread writes the blocks any more."""
    def __len__(self) -> int: ...
