"""The vLLM versions that the connector supports. Imports nothing of vLLM.

`differences.py` has what differs between them."""

from __future__ import annotations

from cenote import versions

OLDEST, NEWEST = (0, 30), (0, 32)

# Environment variable. The value 1 permits newer versions of vLLM.
ANY = "CENOTE_VLLM_ANY"


def check_version(version: str) -> None:
    """Raises ImportError for an unsupported version of vLLM."""
    versions.check("vLLM", version, OLDEST, NEWEST, f"vllm=={'.'.join(map(str, NEWEST))}.*", ANY)
