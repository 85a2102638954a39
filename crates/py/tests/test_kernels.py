"""The kernels for GPUs: the compiled file is that of the source."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC for this machine, so the kernels for GPUs are not compiled again")

COMPILE = Path(__file__).parents[2] / "device/kernels/compile.py"


def test_the_ptx_in_the_tree_is_that_of_its_source() -> None:
    spec = importlib.util.spec_from_file_location("compile_kernels", COMPILE)
    assert spec is not None
    assert spec.loader is not None
    compiler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compiler)
    ptx = compiler.compile_ptx(compiler.SOURCE.read_bytes())
    assert ptx == compiler.TARGET.read_bytes(), f"kernels.ptx is of another source: run {COMPILE} and commit what it writes"
    for kernel in (b"cenote_sums", b"cenote_move", b"cenote_rows"):
        assert b".visible .entry " + kernel + b"(" in ptx
