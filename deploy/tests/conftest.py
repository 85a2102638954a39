"""What the tests get from `cargo xtask deploy`: a command, packages that hold it, and programs of Debian."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The waits of the Python package's tests.
sys.path[:0] = [str(ROOT / "crates/py/tests"), str(Path(__file__).parent)]

import waiting  # noqa: E402


def _given(name: str) -> Path:
    value = os.environ.get(f"CENOTE_DEPLOY_{name}")
    assert value, f"CENOTE_DEPLOY_{name} is not set: run `cargo xtask deploy`"
    return Path(value)


@pytest.fixture(scope="session")
def command() -> Path:
    return _given("COMMAND")


@pytest.fixture(scope="session")
def deb() -> Path:
    return _given("DEB")


@pytest.fixture(scope="session")
def image() -> Path:
    return _given("IMAGE")


@pytest.fixture(scope="session")
def base() -> Path:
    """A C library and a shell of Debian, unpacked."""
    return _given("BASE")


@pytest.fixture(scope="session")
def renderer() -> Path:
    """`deploy/chart/render`, compiled."""
    return _given("RENDER")


class Programs:
    """Programs of unpacked packages, run with an unpacked C library."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base

    def words(self, name: str) -> list[str]:
        libraries = self.base / "usr/lib/x86_64-linux-gnu"
        return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(self.folder / "usr/bin" / name)]

    def run(self, name: str, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run([*self.words(name), *arguments], capture_output=True, text=True, cwd=cwd, timeout=waiting.PATIENCE)
        assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="session")
def programs(base: Path) -> Programs:
    return Programs(_given("PROGRAMS"), base)
