"""The counts that `cenote plan kv` is tested against are those of the installed vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vllm
from waiting import PATIENCE_WITH_ENGINES

FILE = Path(__file__).parents[3] / "plan/tests/plan/vllm.json"


def test_the_file_says_what_vllm_says(tmp_path: Path) -> None:
    known = json.loads(FILE.read_text())
    version = vllm.__version__.split("+")[0]
    if version != known["vllm"]:
        pytest.skip(f"the file is of vLLM {known['vllm']}, and this is {version}")
    script, written = Path(__file__).with_name("plan_specs.py"), tmp_path / "vllm.json"
    subprocess.run([sys.executable, script, written], check=True, timeout=PATIENCE_WITH_ENGINES)
    # A difference of one architecture is easier to read than one of the files.
    for ours, theirs in zip(known["architectures"], json.loads(written.read_text())["architectures"], strict=True):
        assert ours == theirs
