"""Whether a connector is written for the engine that is there. Imports nothing of an engine."""

from __future__ import annotations

import os
import re
import warnings


def check(engine: str, version: str, written_for: tuple[int, ...], install: str, variable: str) -> None:
    """Refuses an engine that the connector was not written for: the leading numbers of its version must be these.

    `install` is what to install instead. Set to 1, the environment's `variable` lets the connector try a newer one."""
    module, wanted = f"cenote.{engine.lower()}", ".".join(map(str, written_for))
    said = f"{module} is written for {engine} {wanted}, and this is {engine} {version}"
    # Such as 0.32.1, 0.32.1rc1+cpu, 0.33.0.dev7+g123abc; builds of a source tree may name none.
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    found = tuple(map(int, numbers[0].split(".")))[: len(written_for)] if numbers else ()
    if found == written_for:
        return
    if len(found) == len(written_for) and found < written_for:
        raise ImportError(f"{said}: install {install}, or a Cenote that is as old")
    if os.environ.get(variable) != "1":
        raise ImportError(f"{said}: install {install}, or a newer Cenote; {variable}=1 tries it as it is")
    warnings.warn(f"{said}; it is tried because of {variable}=1", RuntimeWarning, stacklevel=4)
