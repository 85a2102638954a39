"""A connector says at once if it is not written for the engine that is there. What stands for it here has a version and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def imported(folder: Path, version: str, engine: str = "vllm", **environment: str) -> str:
    """What importing the connector says beside this engine."""
    (folder / f"{engine}.py").write_text(f"__version__ = {version!r}\n")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    ran = subprocess.run(
        [sys.executable, "-c", f"import cenote.{engine}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    return ran.stderr


# What comes next, where the version is right: the first thing of vLLM that is not there.
ON = "ModuleNotFoundError: No module named 'vllm.distributed'"


@pytest.mark.parametrize("version", ["0.32.0", "0.32.7", "0.32.1rc1+cpu", "0.32.0.dev4+g1a2b3c"])
def test_versions_that_it_is_written_for(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version)
    assert ON in said
    assert "Warning" not in said


@pytest.mark.parametrize("any_version", ["", "1"])
@pytest.mark.parametrize("version", ["0.31.2", "0.4.0", "0.9.2.post1", "0.31.0rc1+cpu"])
def test_older_ones_are_refused(tmp_path: Path, version: str, any_version: str) -> None:
    said = imported(tmp_path, version, CENOTE_VLLM_ANY=any_version)
    assert f"ImportError: cenote.vllm is written for vLLM 0.32, and this is vLLM {version}: install vllm==0.32.*" in said
    assert ON not in said


@pytest.mark.parametrize("version", ["0.33.0", "0.33.0.dev1+g1a2b3c", "0.100.0", "1.0.0", "dev"])
def test_newer_ones_and_such_as_say_nothing_are_refused_unless_they_are_to_be_tried(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version)
    assert f"ImportError: cenote.vllm is written for vLLM 0.32, and this is vLLM {version}: " in said
    assert "CENOTE_VLLM_ANY=1 tries it as it is" in said
    tried = imported(tmp_path, version, CENOTE_VLLM_ANY="1")
    assert f"RuntimeWarning: cenote.vllm is written for vLLM 0.32, and this is vLLM {version}; it is tried" in tried
    assert ON in tried


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.23rc1"])
def test_the_sglang_that_it_is_written_for(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version, "sglang")
    assert "ModuleNotFoundError: No module named 'sglang.srt'" in said
    assert "Warning" not in said


@pytest.mark.parametrize("version", ["0.5.22", "0.5.22.post3", "0.4.10", "0.5.24", "0.6.0", "0.5", "dev"])
def test_other_sglangs_are_refused_and_newer_ones_may_be_tried(tmp_path: Path, version: str) -> None:
    said = imported(tmp_path, version, "sglang")
    assert f"ImportError: cenote.sglang is written for SGLang 0.5.23, and this is SGLang {version}: install sglang==0.5.23" in said
    tried = imported(tmp_path, version, "sglang", CENOTE_SGLANG_ANY="1")
    is_older = version.startswith(("0.5.22", "0.4"))
    assert ("No module named 'sglang.srt'" in tried) == (not is_older)
