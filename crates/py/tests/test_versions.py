"""Imports of a connector check the engine's version. The fake engine has only a version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE


def imported(folder: Path, version: str, engine: str = "vllm", **environment: str) -> str:
    """The error output of an import of the connector with a fake engine of this version."""
    (folder / f"{engine}.py").write_text(f"__version__ = {version!r}\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [sys.executable, "-c", f"import cenote.{engine}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 1
    return ran.stderr


# Error after a passed version check: the first module that the fake vLLM lacks.
ON = "ModuleNotFoundError: No module named 'vllm.distributed'"


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.1rc1+cpu", "0.32.0.dev4+g1a2b3c", "0.30.0", "0.31.2", "0.31.0rc1+cpu"])
def test_supported_versions_pass_the_check(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version)
    assert ON in said
    assert "Warning" not in said


@pytest.mark.parametrize("any_version", ["", "1"])
@pytest.mark.parametrize("version", ["0.29.2", "0.4.0", "0.9.2.post1", "0.29.0rc1+cpu"])
def test_older_versions_are_refused(tmp_path: Path, version: str, any_version: str) -> None:
    said = imported(tmp_path, version, CENOTE_VLLM_ANY=any_version)
    assert f"ImportError: cenote.vllm is written for vLLM 0.30 to 0.32, and this is vLLM {version}: install vllm==0.32.*" in said
    assert ON not in said


@pytest.mark.parametrize("version", ["0.33.0", "0.33.0.dev1+g1a2b3c", "0.100.0", "1.0.0", "dev"])
def test_newer_and_unknown_versions_need_the_override(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version)
    assert f"ImportError: cenote.vllm is written for vLLM 0.30 to 0.32, and this is vLLM {version}: " in said
    assert "CENOTE_VLLM_ANY=1 tries it as it is" in said
    tried = imported(tmp_path, version, CENOTE_VLLM_ANY="1")
    assert f"RuntimeWarning: cenote.vllm is written for vLLM 0.30 to 0.32, and this is vLLM {version}; it is tried" in tried
    assert ON in tried


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23rc1"])
def test_supported_versions_of_sglang_pass_the_check(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version, "sglang")
    assert "ModuleNotFoundError: No module named 'sglang.srt'" in said
    assert "Warning" not in said


@pytest.mark.parametrize("version", ["0.5.22", "0.5.22.post3", "0.4.10", "0.5.24", "0.6.0", "0.5", "dev"])
def test_newer_versions_of_sglang_need_the_override(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version, "sglang")
    assert f"ImportError: cenote.sglang is written for SGLang 0.5.23, and this is SGLang {version}: install sglang==0.5.23" in said
    tried = imported(tmp_path, version, "sglang", CENOTE_SGLANG_ANY="1")
    is_older = version.startswith(("0.5.22", "0.4"))
    assert ("No module named 'sglang.srt'" in tried) == (not is_older)
