"""Walks over folders whose files name a model or an adapter. All names use it, so they treat odd entries alike.

A model may lie at the root of a volume, which has folders of root alone, and a folder may hold links that lead
nowhere. The engine, as the same user, reads none of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

_logger = logging.getLogger(__name__)

# Folders of a file system, which belong to root.
_OF_VOLUMES = ("lost+found", "System Volume Information")


def entries(folder: Path, root: Path, *, is_engine: bool = True) -> list[Path]:
    """What a folder within `root` has; nothing if it is not to be read.

    `is_engine`: this process is the engine, so what it may not read counts for nothing. Otherwise the engine may be
    another user's. Raises OSError for other folders that cannot be read, and for `root`."""
    try:
        return list(folder.iterdir())
    except PermissionError:
        if folder == root or not (is_engine or folder.name in _OF_VOLUMES):
            raise
        _logger.info("Cenote: %s cannot be read, so nothing in it counts for a name", folder)
        return []


def is_file(path: Path, *, is_engine: bool = True) -> bool:
    """True for a file that may count; see `entries`. A link that cannot be followed is no file."""
    return os.path.isfile(path) and (not is_engine or os.access(path, os.R_OK))


def matches(path: Path, patterns: Sequence[str]) -> bool:
    """True if the name matches one of the patterns, which are in lower case."""
    return any(fnmatch(path.name.lower(), pattern) for pattern in patterns)


def matching(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder with matching names, sorted."""
    return sorted(entry for entry in entries(folder, folder) if matches(entry, patterns) and is_file(entry))


def matching_below(folder: Path, *patterns: str) -> list[Path]:
    """The files of a folder and its subfolders with matching names, sorted by path."""

    def below(here: Path, seen: set[str]) -> Iterator[Path]:
        for entry in entries(here, folder):
            if os.path.isdir(entry):
                if (real := os.path.realpath(entry)) not in seen:
                    yield from below(entry, seen | {real})
            elif matches(entry, patterns) and is_file(entry):
                yield entry

    return sorted(below(folder, {os.path.realpath(folder)}))
