"""Which weights an engine has, where it may be given others while it runs. Pure: no engine."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path


class Weights:
    """At first those that it was started with. Who gives it others may name them in a file, whose content is looked at when it
    starts and at each change; engines whose files say the same share. Without one, nobody knows who else has the new weights."""

    def __init__(self, file: str | None = None) -> None:
        self.file = file
        self._doubt = b""
        self.version = self._read() if file else b""

    def change(self) -> None:
        """There are others now: nothing of before is found by its name, wherever it is."""
        # If the file cannot be read, so is this, whoever hears of it.
        self.version = secrets.token_bytes(16)
        if self.file:
            self.version = self._read()

    def doubt(self) -> None:
        """It is not known which weights the engine was started with. A later change may be of a part of them, so it shares with no
        other engine, whatever its file says."""
        self._doubt = secrets.token_bytes(16)

    def keys(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Names of blocks that were computed with these weights. They end as the hashes do."""
        prefix = self._doubt + self.version
        return [prefix + each for each in hashes] if prefix else list(hashes)

    def _read(self) -> bytes:
        assert self.file is not None
        return hashlib.sha256(Path(self.file).read_bytes()).digest()[:16]
