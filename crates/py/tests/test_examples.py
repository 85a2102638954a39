"""The examples run and give the documented results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE

import cenote

SHARE = Path(__file__).parents[1] / "examples" / "share.py"


@pytest.mark.parametrize("named", [False, True])
def test_two_processes_share_blocks(name: str, named: bool) -> None:
    ran = subprocess.run([sys.executable, SHARE, *([name] if named else [])], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["published 8 blocks", "found 6 blocks of 10", "all blocks match the published content"]
    if named:
        with cenote.Region.open(name) as region:
            report = region.check(payloads=True)
            assert (report["is_clean"], report["ready"], report["pinned"]) == (True, 8, 0)


def test_the_example_in_the_packages_docstring_runs(name: str) -> None:
    """Executes the lines that `help(cenote)` shows."""
    assert cenote.__doc__ is not None
    lines = [line[4:] for line in cenote.__doc__.splitlines() if line.startswith((">>> ", "... "))]
    run = "\n".join(lines).replace("shm:kv", name)
    known: dict[str, object] = {}
    exec(run, known)
    assert known["found"] == 2
