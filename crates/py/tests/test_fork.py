"""Processes that fork: a child inherits every object, and what it does with them reaches nobody."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

import cenote
import pytest

BLOCK = 16 << 10
FINGERPRINT = b"fork"


@pytest.fixture
def name(tmp_path: Path):
    region = f"shm:cenote-fork-{os.getpid()}-{tmp_path.name}"
    cenote.Region.create(region, "8MiB", chunk_size=64 << 10, min_block=4 << 10)
    yield region
    cenote.Region.destroy(region)


def in_child(work) -> int:
    """Forks, runs `work` in the child, and returns the child's exit status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            gc.collect()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
