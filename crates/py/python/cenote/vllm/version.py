"""Which versions of vLLM the connector is written for. Imports nothing of vLLM."""

from __future__ import annotations

import os
import re
import warnings

WRITTEN_FOR = (0, 32)

# Set to 1, it lets the connector try itself on a vLLM that is newer.
ANY = "CENOTE_VLLM_ANY"


def check_version(version: str) -> None:
    """Refuses a vLLM that the connector was not written for."""
    wanted = ".".join(map(str, WRITTEN_FOR))
    said = f"cenote.vllm is written for vLLM {wanted}, and this is vLLM {version}"
    # Such as 0.32.1, 0.32.1rc1+cpu, 0.33.0.dev7+g123abc; builds of a source tree may name none.
    found = re.match(r"(\d+)\.(\d+)", version)
    minor = (int(found[1]), int(found[2])) if found else None
    if minor == WRITTEN_FOR:
        return
    if minor is not None and minor < WRITTEN_FOR:
        raise ImportError(f"{said}: install vllm=={wanted}.*, or a Cenote that is as old")
    if os.environ.get(ANY) != "1":
        raise ImportError(f"{said}: install vllm=={wanted}.*, or a newer Cenote; {ANY}=1 tries it as it is")
    warnings.warn(f"{said}; it is tried because of {ANY}=1", RuntimeWarning, stacklevel=3)
