"""Processes that share a table have it in memory once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_WITH_ENGINES

EXAMPLE = Path(__file__).parent.parent / "examples" / "shared_table.py"


@pytest.mark.parametrize("processes", [2, 3])
def test_unrelated_processes_share_one_table_in_memory(processes: int) -> None:
    command = [sys.executable, str(EXAMPLE), "--mebibytes", "48", "--processes", str(processes)]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_WITH_ENGINES).stdout)
    assert len(told["processes"]) == processes
    for one in told["processes"]:
        # Each has all pages of the table, and not all of them for itself.
        assert one["Rss"] >= told["table"]
        assert one["Pss"] < told["table"] * 1.15 / processes + (1 << 20)
    assert told["table"] <= told["pss_of_all"] < told["table"] * 1.1 + (1 << 20)
