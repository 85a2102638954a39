"""Version of an engine's weights, which may change at run time. Pure: no engine."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path


class Weights:
    """The version of the weights; empty at start without a file.

    A rollout may write the version into a file. The engine reads the file at start and at each
    change, and engines with equal content share blocks. Without a file, changed weights get a
    random version, so the engine shares with no other."""

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self._doubt = b""
        self.version = self._read() if file else b""

    def change(self) -> None:
        """Records new weights: from now on no earlier block has a matching name, on any host.

        Raises OSError if the file cannot be read."""
        # The random version stays if reading the file raises.
        self.version = secrets.token_bytes(16)
        if self.file:
            self.version = self._read()

    def doubt(self) -> None:
        """Records that the initial weights are unknown. The engine then shares with no other.

        A later change may replace only a part of the weights, so the file cannot end this state."""
        self._doubt = secrets.token_bytes(16)

    def keys(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Names of blocks that were computed with these weights. The hashes are their suffixes."""
        prefix = self._doubt + self.version
        return [prefix + each for each in hashes] if prefix else list(hashes)

    def _read(self) -> bytes:
        assert self.file is not None
        return hashlib.sha256(Path(self.file).read_bytes()).digest()[:16]
