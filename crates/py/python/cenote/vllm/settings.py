"""What `kv_connector_extra_config` may say."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from cenote.start import given_of_new

LoadMode = Literal["async", "layers"]
GpuCopies = Literal["direct", "staged"]


@dataclass(frozen=True)
class Settings:
    """Every setting, with what it is when it is not given."""

    region: str
    """The region: `shm:NAME`, a file, a device."""
    create_size: str | None = None
    """Makes the region with this size if it is not there, such as `64GiB`."""
    chunk_size: str | None = None
    """Largest block of a region that is made, such as `32MiB`; by default what this model's blocks need."""
    mode: str | None = None
    """Permissions of a region that is made, in octal; by default 0600."""
    eviction: str | None = None
    """Which blocks leave a full region that is made: `lru` (the default), `sieve`, `s3-fifo`, `cost-aware`."""
    host_slot: int = 0
    """This machine's number, where several share the region."""
    load: LoadMode = "async"
    """`async`: a request waits beside the running ones until its blocks are there. `layers`: it runs at once, and each layer
    waits for its own."""
    timeout: float = 5.0
    """Seconds that a load may take; then what is missing is computed."""
    lease_timeout: float = 60.0
    """Seconds for which blocks that were found are kept for a request that does not get to run."""
    min_blocks: int = 1
    """Hits of fewer blocks are computed instead."""
    load_threads: int = 1
    """Threads that copy for one worker."""
    gpu_copies: GpuCopies = "direct"
    """`direct`: a GPU copies from and to the region, whose memory is page-locked for it. `staged`: by way of a buffer."""
    staging_bytes: int = 256 << 20
    """Bytes of that buffer."""
    tenant_salt: str = ""
    """Instances with different salts share nothing."""
    model_fingerprint: str | None = None
    """Names the weights; by default taken from the model's files."""
    weights_version_file: str | None = None
    """A file that names the weights, where they are changed in place. Engines whose files say the same share."""
    codec: str = "raw"
    """How blocks are stored. `raw`: the bytes of the attention backend. Others need to know how it lays out a page."""
    codec_profile: str | None = None
    """The file that `cenote profile` made, for codecs that need one."""
    layout: dict[str, Any] = field(default_factory=dict)
    """How a page lies, for codecs, where it is not as vLLM says: `order` (`NHD`, `HND`) and `kv` (`joint`, `split`)."""
    fail_loads_every: int = 0
    """Makes every n-th block of a load fail. For tests."""

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """Reads the settings, and refuses what it does not know or cannot do."""
        known, hints = {known.name for known in fields(cls)}, get_type_hints(cls)
        if unknown := sorted(set(given) - known):
            raise ValueError(f"kv_connector_extra_config: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if not given.get("region"):
            raise ValueError('kv_connector_extra_config: no region was named; give {"region": "shm:NAME"}')
        values = {}
        for name, value in given.items():
            number = hints[name] in (int, float)
            if number and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}, not a number from 0 on")
            if hints[name] is int and value != value // 1:
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}, not a whole number")
            if hints[name] in (str, str | None) and not isinstance(value, str):
                raise ValueError(f"kv_connector_extra_config: {name} is {value!r}, not a text")
            values[name] = hints[name](value) if number else value
        settings = cls(**values)
        if settings.load_threads < 1:
            raise ValueError("kv_connector_extra_config: load_threads is 0, so that nothing would copy; give 1 or more, or leave it out for 1")
        if not settings.timeout > 0:
            raise ValueError(
                f"kv_connector_extra_config: timeout is {given['timeout']!r}, so that every load would be late; give seconds above 0, or "
                "leave it out for 5"
            )
        if settings.load not in get_args(LoadMode):
            raise ValueError(f"kv_connector_extra_config: load is {settings.load!r}; it may be async or layers")
        if settings.gpu_copies not in get_args(GpuCopies):
            raise ValueError(f"kv_connector_extra_config: gpu_copies is {settings.gpu_copies!r}; it may be direct or staged")
        if settings.mode is not None and re.fullmatch("0?o?[0-7]{3}", settings.mode) is None:
            raise ValueError(f"kv_connector_extra_config: mode is {settings.mode!r}, not octal permissions such as 0660")
        layouts = {"order": ("NHD", "HND"), "kv": ("joint", "split")}
        given_layout = settings.layout if isinstance(settings.layout, dict) else {"layout": settings.layout}
        for name, value in given_layout.items():
            if value not in layouts.get(name, ()):
                raise ValueError(f"kv_connector_extra_config: layout has {name} {value!r}; it may have order NHD or HND, kv joint or split")
        return settings

    def of_new_regions(self) -> dict[str, str]:
        """The given settings that count for a region that is made: their names, by those of the arguments of `Region.create`."""
        return given_of_new(vars(self))

    def codec_identity(self) -> str:
        """The codec, and what its profile is."""
        if self.codec_profile is None:
            return self.codec
        return f"{self.codec} {hashlib.sha256(Path(self.codec_profile).read_bytes()).hexdigest()}"
