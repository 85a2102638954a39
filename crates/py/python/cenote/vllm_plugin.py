"""vLLM's plugin of this package, which vLLM calls in each of its processes before it makes a model.

It imports nothing of vLLM unless `CENOTE_ENGRAM` is set."""

from __future__ import annotations

import os


def register() -> None:
    """Serves n-gram tables from the region that `CENOTE_ENGRAM` names."""
    if os.environ.get("CENOTE_ENGRAM"):
        from cenote.vllm.engram import install

        install()
