"""N-gram tables in the interface of `cenote._native`. There is no module of this name."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer

from cenote._native import Region

_Path: TypeAlias = str | PathLike[str]

class _Tensor(Protocol):
    def __dlpack__(self) -> object: ...

# Whole numbers: contiguous memory of any integer type, or a sequence.
_Integers: TypeAlias = Buffer | _Tensor | Sequence[int]
# One piece of memory, as in `cenote._native`.
_Memory: TypeAlias = Buffer | _Tensor | tuple[int, int]
_M = TypeVar("_M", bound=_Memory)

@final
class Addresses:
    """Row numbers of a model's n-gram tables for token ids, as `cenote engram rows` computes them."""

    def __new__(
        cls, config: str | bytes, *, tokenizer: str | bytes | None = None, token_map: _Integers | None = None
    ) -> Addresses:
        """`config` is the content of `config.json`, `tokenizer` that of `tokenizer.json`.

        `token_map`, the compressed id of each token, takes the place of a tokenizer. Only
        DeepSeek's models need either. Raises ValueError if these have no tables or do not fit
        together.
        """
    def rows(
        self,
        tokens: _Integers,
        *,
        starts: _Integers | None = None,
        lookback: _Integers | None = None,
        masked: _Integers | None = None,
        layer: int | None = None,
    ) -> memoryview:
        """Rows of tokens, as 64-bit numbers of shape `(tokens, columns)`.

        `starts` are the places in `tokens` where sequences begin, and the number of tokens; by
        default there is one sequence. `lookback` has for each sequence the tokens before its first
        one, the newest first, -1 where there is none; by default there are none. `masked` has a
        flag for each token. Columns are those of all layers, or of one `layer`. A view of no tokens
        has one dimension.

        Raises ValueError for tokens outside of the vocabulary.
        """
    @property
    def layers(self) -> list[int]:
        """Layers with tables, as the model's configuration counts them."""
    @property
    def columns(self) -> int:
        """Rows of a token in one layer."""
    @property
    def lookback(self) -> int:
        """Tokens before a sequence's first one that its rows depend on."""
    @property
    def table_rows(self) -> list[int]:
        """Rows of each layer's table."""

@final
class Table:
    """A sealed n-gram table of a region. All threads of the process may use it."""

    def __new__(cls, region: Region, name: str, *, verify: bool = True, threads: int | None = None) -> Table:
        """Opens a table. With `verify` it reads all bytes and compares them with their checksums.

        `threads` gather long lists (1 to 64; by default 4, or the processors of a smaller machine).
        They run near the region's memory. Raises CenoteError if there is no such table, or its bytes
        are not those that were loaded.
        """
    @overload
    def gather(self, rows: _Integers, out: None = None, *, dtype: Literal["stored", "bfloat16"] = "stored") -> bytearray: ...
    @overload
    def gather(self, rows: _Integers, out: _M, *, dtype: Literal["stored", "bfloat16"] = "stored") -> _M:
        """Copies rows into `out`, in the order of the list and without gaps. Returns `out`.

        `out` is one piece of writable, contiguous memory: a numpy array, a tensor on the CPU, also a
        page-locked one, a `bytearray`, a `memoryview`, an address and a length. Without it the rows
        come in a new `bytearray`. Releases the interpreter lock; nothing else may access the memory
        meanwhile.

        Raises ValueError, and copies nothing, for a row that the table does not have or an `out` of
        another size. Raises CenoteError if the table was dropped or the region is closed; then the
        content of `out` is undefined.
        """
    def start(self, rows: _Integers, out: _Memory, *, dtype: Literal["stored", "bfloat16"] = "stored") -> Pending:
        """Begins a gather and returns at once. Nothing else may access `out` until it is over."""
    @property
    def is_there(self) -> bool:
        """False if the table was dropped. Rows that were read before are right if it is true."""
    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def row_bytes(self) -> int:
        """Bytes of a stored row."""
    @property
    def row_values(self) -> int: ...
    @property
    def digest(self) -> str:
        """Digest of the rows in hexadecimal. Equal rows have equal digests in every region."""
    @property
    def facts(self) -> dict[str, Any]:
        """What the table is: format, sizes, scale, layer, model, files."""
    @property
    def extents(self) -> tuple[list[int], int]:
        """Offset in the region of each extent, and rows of an extent, for devices."""
    @property
    def threads(self) -> int: ...

@final
class Pending:
    """Rows on their way into memory. Dropping it waits until they have arrived."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the rows. False: they have not arrived after `timeout` seconds.

        Raises CenoteError if the table was dropped; then the memory's content is undefined.
        """
    @property
    def seconds(self) -> float | None:
        """Time that the threads worked; None until `wait` has returned true."""

def load_tables(
    region: Region | str,
    name: str,
    *,
    model: _Path | None = None,
    layers: Sequence[int] | None = None,
    weights: _Path | None = None,
    tensor: str | None = None,
    scales: str | None = None,
    scale: float | None = None,
    wait: float = 600.0,
    host_slot: int = 0,
) -> list[dict[str, Any]]:
    """Loads tables into a region and seals them, unless it has them.

    - `model`: the tables of a model's folder, or those of some `layers`, as `NAME.L<layer>`.
    - `weights`: the table `name` of one `tensor` of a safetensors file, with a tensor of `scales` or
      one `scale` if its values are e4m3.

    If another process loads the same table, the call waits for it up to `wait` seconds, and goes on
    if that process dies. The call joins the region as a worker of its own, on `host_slot` unless
    `region` is open: a load frees memory of dead loaders, and of its own after an error. The result
    has the form of `cenote engram load --json`, without times.

    Raises ValueError or OSError if the files have no such table, RegionFull if it does not fit,
    CenoteError if the region has another table of this name, if a file changes during the load, or
    if `wait` has passed.
    """

def tables(region: Region | str, *, host_slot: int = 0) -> list[dict[str, Any]]:
    """All tables of a region, in the form of `cenote engram info --json`."""

def check_table(region: Region | str, name: str, *, host_slot: int = 0) -> dict[str, Any]:
    """Reads a whole table and compares it with its checksums: `is_whole`, `damaged` and `digest`."""

def drop_table(region: Region | str, name: str, *, wait: float = 10.0, host_slot: int = 0) -> bool:
    """Drops a table; false if there was none. Readers detect it and raise CenoteError.

    Raises CenoteError if another process still loads or drops the table after `wait` seconds.
    """

def default_table_name(folder: _Path) -> str:
    """The name for the tables of a model's folder, without `.L` and the layer: the folder's name, and
    a digest of its path."""
