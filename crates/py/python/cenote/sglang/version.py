"""The SGLang version that the backend supports. Imports nothing of SGLang."""

from __future__ import annotations

from cenote import versions

# Includes the patch number: SGLang changes the storage interface and its host pools in patch
# releases.
WRITTEN_FOR = (0, 5, 23)

# Environment variable. The value 1 permits newer versions of SGLang.
ANY = "CENOTE_SGLANG_ANY"


def check_version(version: str) -> None:
    """Raises ImportError for an unsupported version of SGLang."""
    versions.check("SGLang", version, WRITTEN_FOR, WRITTEN_FOR, f"sglang=={'.'.join(map(str, WRITTEN_FOR))}", ANY)
