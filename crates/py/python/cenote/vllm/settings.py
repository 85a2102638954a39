"""The settings of `kv_connector_extra_config`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from cenote.start import given_of_new

GpuCopies = Literal["direct", "staged"]
SaveDecoded = Literal["all", "prompts", "off"]


@dataclass(frozen=True)
class Settings:
    """All settings, with their defaults."""

    region: str
    """The region: `shm:NAME`, a file, a device."""
    create_size: str | None = None
    """Creates the region with this size if it does not exist. Example: `64GiB`."""
    chunk_size: str | None = None
    """Largest block of a new region, such as `32MiB`; by default four blocks of this model, rounded
    up to a power of two from 2 MiB to 512 MiB."""
    mode: str | None = None
    """Permissions of a new region, in octal; by default 0600."""
    eviction: str | None = None
    """Eviction policy of a new region: `lru` (default), `sieve`, `s3-fifo`, `cost-aware`."""
    cold: str | None = None
    """Disk directory, object store or Redis server for blocks that outlive the region, such as
    `/var/cache/cenote,size=64GiB`, `s3://bucket/kv` or `redis://cache:6379`."""
    peers: str | None = None
    """Other hosts, for blocks that are missing here: addresses of their `cenote pool share`, such as
    `10.0.0.2:7411,10.0.0.3:7411,deadline=0.5`; by default what `CENOTE_PEERS` says."""
    peer_key_file: str | None = None
    """File with the key of these hosts; by default the one that `CENOTE_PEER_KEY_FILE` names."""
    nixl: str | None = None
    """NIXL's library `libnixl_capi.so`; by default what `CENOTE_NIXL` names or the dynamic linker finds."""
    seal: str | None = None
    """Seal of the region: `none`, `mac`, `encrypt`. A new region gets it; one with another is refused."""
    seal_key_file: str | None = None
    """File with the keys of a sealed region; by default the one that `CENOTE_SEAL_KEY_FILE` names."""
    host_slot: int = 0
    """Number of this machine among the machines that share the region."""
    timeout: float = 5.0
    """Seconds for a load. After that, vLLM computes the missing blocks."""
    lease_timeout: float = 60.0
    """Seconds for which found blocks stay pinned for a request that is not scheduled."""
    min_blocks: int = 1
    """Hits of fewer blocks count as misses."""
    load_threads: int = 1
    """Copying threads per worker and KV cache group."""
    gpu_copies: GpuCopies = "direct"
    """`direct`: a GPU copies from and to the page-locked region. `staged`: it copies through a
    buffer."""
    staging_bytes: int = 256 << 20
    """Bytes of that buffer."""
    gpu_buffer_bytes: int = 256 << 20
    """Bytes of the GPU's memory through which whole blocks pass. If less than two blocks fit, each page
    is copied by itself."""
    save_decoded: SaveDecoded = "all"
    """`all`: blocks with generated tokens are saved too. `prompts`: blocks of prompts alone. `off`:
    nothing is saved."""
    log_misses: bool = False
    """Logs for each request why the region lacks its first missing block, and counts the reasons."""
    tenant_salt: str = ""
    """Instances with different salts share nothing."""
    model_fingerprint: str | None = None
    """Name of the weights; by default a digest of the model's files."""
    weights_version_file: str | None = None
    """A file with the version of weights that change in place. Engines with equal content share."""
    head_shards: int | None = None
    """Parts into which the KV heads of a block are divided, so that engines with other numbers of
    tensor-parallel ranks can join them; by default one for each rank with other heads."""
    codec: str = "raw"
    """Encoding of blocks. `raw`: the bytes of the attention backend. Others need a known layout."""
    codec_profile: str | None = None
    """A file of `cenote profile`, for codecs that need one."""
    layout: dict[str, Any] = field(default_factory=dict)
    """Page layout for codecs, if it differs from vLLM's: `order` (`NHD`, `HND`) and `kv` (`joint`,
    `split`)."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Reads the settings. Raises ValueError for unknown names and invalid values."""
        known = {known.name for known in fields(cls)}
        hints = {name: int if hint == int | None else hint for name, hint in get_type_hints(cls).items()}
        if "load" in given:
            raise ValueError(
                f"kv_connector_extra_config: load is {given['load']!r}, but this setting was removed, because each request waits for "
                "its blocks while others run (as with async); delete the setting"
            )
        if unknown := sorted(set(given) - known):
            raise ValueError(f"kv_connector_extra_config: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if not given.get("region"):
            raise ValueError('kv_connector_extra_config: no region is given; give {"region": "shm:NAME"}')
        values = {}
        for name, value in given.items():
            number = hints[name] in (int, float)
            if number and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; give a number of at least 0")
            if hints[name] is int and value != value // 1:
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; give an integer")
            if hints[name] in (str, str | None) and not isinstance(value, str):
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; give a string")
            if hints[name] is bool and not isinstance(value, bool):
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}; give true or false")
            values[name] = hints[name](value) if number else value
        settings = cls(**values)
        if settings.head_shards is not None and settings.head_shards < 1:
            raise ValueError("kv_connector_extra_config: head_shards is 0; give at least 1")
        if settings.load_threads < 1:
            raise ValueError("kv_connector_extra_config: load_threads is 0, so no thread would copy; give at least 1 (default 1)")
        if not settings.timeout > 0:
            raise ValueError(
                f"kv_connector_extra_config: timeout is {given['timeout']!r}, so every load would time out; give seconds above 0 "
                "(default 5)"
            )
        if settings.gpu_copies not in get_args(GpuCopies):
            raise ValueError(f"kv_connector_extra_config: gpu_copies is {settings.gpu_copies!r}; it may be direct or staged")
        if settings.save_decoded not in get_args(SaveDecoded):
            raise ValueError(f"kv_connector_extra_config: save_decoded is {settings.save_decoded!r}; it may be all, prompts or off")
        if settings.mode is not None and re.fullmatch("0?o?[0-7]{3}", settings.mode) is None:
            raise ValueError(f"kv_connector_extra_config: mode is {settings.mode!r}, not octal permissions such as 0660")
        layouts = {"order": ("NHD", "HND"), "kv": ("joint", "split")}
        given_layout = settings.layout if isinstance(settings.layout, dict) else {"layout": settings.layout}
        for name, value in given_layout.items():
            if value not in layouts.get(name, ()):
                raise ValueError(f"kv_connector_extra_config: layout has {name} {value!r}; it may have order NHD or HND, kv joint or split")
        return settings

    def of_new_regions(self) -> dict[str, str]:
        """The names of the given settings for a new region, by argument of `Region.create`."""
        return given_of_new(vars(self))

    def codec_identity(self) -> str:
        """The codec, and a SHA-256 digest of its profile if it has one."""
        if self.codec_profile is None:
            return self.codec
        return f"{self.codec} {hashlib.sha256(Path(self.codec_profile).read_bytes()).hexdigest()}"
