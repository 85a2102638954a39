"""Which version of SGLang the backend is written for. Imports nothing of SGLang."""

from __future__ import annotations

from cenote import versions

# To the last number: SGLang changes the storage interface and its host pools between patch releases.
WRITTEN_FOR = (0, 5, 23)

# Set to 1, it lets the backend try itself on an SGLang that is newer.
ANY = "CENOTE_SGLANG_ANY"


def check_version(version: str) -> None:
    """Refuses an SGLang that the backend was not written for."""
    versions.check("SGLang", version, WRITTEN_FOR, f"sglang=={'.'.join(map(str, WRITTEN_FOR))}", ANY)
