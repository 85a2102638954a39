"""Check of the installed engine's version. Imports nothing of an engine."""

from __future__ import annotations

import os
import re
import warnings


def check(engine: str, version: str, oldest: tuple[int, ...], newest: tuple[int, ...], install: str, variable: str) -> None:
    """Raises ImportError unless the leading numbers of the engine's version are between these two.

    `install` is the requirement that the message recommends. The environment variable `variable`
    with value 1 permits newer versions, with a warning."""
    module = f"cenote.{engine.lower()}"
    first, last = (".".join(map(str, numbers)) for numbers in (oldest, newest))
    said = f"{module} is written for {engine} {last if first == last else f'{first} to {last}'}, and this is {engine} {version}"
    # Versions such as 0.32.1, 0.32.1rc1+cpu, 0.33.0.dev7+g123abc. Builds of a source tree may have
    # no number.
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    found = tuple(map(int, numbers[0].split(".")))[: len(newest)] if numbers else ()
    if len(found) == len(newest) and oldest <= found <= newest:
        return
    if len(found) == len(newest) and found < oldest:
        raise ImportError(f"{said}: install {install}, or a Cenote that is as old")
    if os.environ.get(variable) != "1":
        raise ImportError(f"{said}: install {install}, or a newer Cenote; {variable}=1 tries it as it is")
    warnings.warn(f"{said}; it is tried because of {variable}=1", RuntimeWarning, stacklevel=4)
