"""How an adapter attaches to a region: its settings, the region's creation, namespaces and health.

All adapters have these settings, with the same meaning and the same defaults."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import cenote
from cenote.facts import record
from cenote.health import HealthLog
from cenote.start import given_of_new, log_ignored, log_start, peers_of, place_of

SETTINGS = frozenset({
    "region", "create_size", "chunk_size", "mode", "cold", "seal", "seal_key_file", "peers", "peer_key_file", "nixl", "host_slot",
    "tenant_salt",
})  # fmt: skip
"""Settings of every adapter."""

_CHUNK_MIN, _CHUNK_MAX = 2 << 20, 512 << 20
# For adapters that learn the size of a block only from the first one.
_CHUNK_UNKNOWN = 64 << 20
_MODE = re.compile("0?o?[0-7]{3}")


def check_names(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ValueError for unknown settings, and if no region is given. `where` is the engine's name of the settings."""
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if not given.get("region"):
        raise ValueError(f'{where}: no region is given; give "region": "shm:NAME"')


def mode_of(where: str, given: Any) -> int | None:
    """Permissions from octal digits. Raises ValueError for anything else."""
    if given is None:
        return None
    if isinstance(given, bool) or _MODE.fullmatch(str(given)) is None:
        raise ValueError(f"{where}: mode is {given!r}, not octal permissions such as 0660")
    return int(str(given), 8)


def chunk_for(block_bytes: int | None) -> int:
    """The default chunk size: four blocks, rounded up to a power of two, within 2 MiB and 512 MiB.

    None: the size is not known yet. Raises ValueError for blocks that fit into no such chunk."""
    if block_bytes is None:
        return _CHUNK_UNKNOWN
    if block_bytes > _CHUNK_MAX:
        raise ValueError(f"a block has {block_bytes} bytes, but the largest chunk has {_CHUNK_MAX}; use smaller blocks")
    return max(_CHUNK_MIN, min(_CHUNK_MAX, 1 << (4 * block_bytes - 1).bit_length()))


@dataclass(frozen=True)
class Wanted:
    """A region as the settings name it."""

    given: Mapping[str, Any]
    mode: int | None
    host_slot: int

    @classmethod
    def of(cls, where: str, given: Mapping[str, Any]) -> Wanted:
        """Reads the settings that every adapter has. Raises ValueError for invalid values."""
        try:
            slot = int(given.get("host_slot") or 0)
        except (TypeError, ValueError):
            raise ValueError(f"{where}: host_slot is {given['host_slot']!r}; give a number from 0 to 63") from None
        return cls(given, mode_of(where, given.get("mode")), slot)

    @property
    def name(self) -> str:
        return str(self.given["region"])

    @property
    def salt(self) -> str:
        return str(self.given.get("tenant_salt") or "")

    def create(self, block_bytes: int | None, **more: Any) -> list[tuple[str, str, str]]:
        """Creates the region if `create_size` is given and it does not exist.

        Returns the settings that differ from those of an existing region."""
        if (size := self.given.get("create_size")) is None:
            return []
        return cenote.Region.create(
            self.name,
            size,
            chunk_size=self.given.get("chunk_size") or chunk_for(block_bytes),
            mode=self.mode,
            eviction=self.given.get("eviction"),
            exist_ok=True,
            **place_of(self.given),
            **more,
        )


class Attachment:
    """A region that an adapter has joined."""

    def __init__(self, wanted: Wanted, worker: str, block_bytes: int | None, logger: logging.Logger) -> None:
        """Creates the region if the settings say so, and opens it."""
        log_ignored(wanted.name, wanted.create(block_bytes), given_of_new(wanted.given), logger)
        self.region = cenote.Region.open(
            wanted.name, worker=worker, host_slot=wanted.host_slot, **place_of(wanted.given), **peers_of(wanted.given)
        )
        self._health = HealthLog(self.region, logger)
        self._name, self._logger = wanted.name, logger

    def namespace(
        self, identity: bytes, block_bytes: int, *, label: str, block_tokens: int = 0, num_layers: int = 0, starts: bool = False
    ) -> cenote.Namespace:
        """Opens a namespace and records its facts.

        With `starts` it is the first: the log gets what the region has for it, and a failure closes the region."""
        try:
            blocks = self.region.namespace(identity, block_bytes, label=label, block_tokens=block_tokens, num_layers=num_layers)
            info = self.region.info()
            record(self.region, info, {blocks.id: identity}, self._logger)
            if starts:
                log_start(self._name, info, [blocks.id], self._logger)
        except BaseException:
            if starts:
                self.close()
            raise
        return blocks

    def look(self) -> None:
        """Logs changes of the region's health. Call it in each step."""
        self._health.look()

    def close(self) -> None:
        self.region.close()
