"""Which versions of vLLM the connector is written for. Imports nothing of vLLM."""

from __future__ import annotations

from cenote import versions

WRITTEN_FOR = (0, 32)

# Set to 1, it lets the connector try itself on a vLLM that is newer.
ANY = "CENOTE_VLLM_ANY"


def check_version(version: str) -> None:
    """Refuses a vLLM that the connector was not written for."""
    versions.check("vLLM", version, WRITTEN_FOR, f"vllm=={'.'.join(map(str, WRITTEN_FOR))}.*", ANY)
