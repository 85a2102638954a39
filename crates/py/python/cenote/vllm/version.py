"""The vLLM version that the connector supports. Imports nothing of vLLM."""

from __future__ import annotations

from cenote import versions

WRITTEN_FOR = (0, 32)

# Environment variable. The value 1 permits newer versions of vLLM.
ANY = "CENOTE_VLLM_ANY"


def check_version(version: str) -> None:
    """Raises ImportError for an unsupported version of vLLM."""
    versions.check("vLLM", version, WRITTEN_FOR, f"vllm=={'.'.join(map(str, WRITTEN_FOR))}.*", ANY)
