"""Programs that nothing here runs, because they need engines or rivals, call functions as these are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = ("crates/py/python", "bench/peers", "bench/gpu", "crates/py/tests/vllm", "crates/py/tests")


def calls(*files: Path) -> list[str]:
    """What mypy says of arguments, in a tree whose other types nothing checks: engines have none here."""
    flags = ["--ignore-missing-imports", "--explicit-package-bases", "--check-untyped-defs", "--cache-dir", os.devnull]
    environment = os.environ | {"MYPYPATH": os.pathsep.join(str(ROOT / place) for place in PLACES)}
    said = subprocess.run([sys.executable, "-m", "mypy", *flags, *files], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode in (0, 1), said.stdout + said.stderr
    return [line for line in said.stdout.splitlines() if line.endswith("[call-arg]")]


def test_benches_and_tests_with_engines_pass_arguments_that_exist(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import engines\n\nengines.in_child(print, timeout=1)\n")
    assert len(calls(wrong)) == 1
    assert calls(ROOT / "bench/peers/peers", ROOT / "bench/gpu/gpu", *(ROOT / "crates/py/tests/vllm").glob("*.py")) == []
