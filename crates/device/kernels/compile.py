"""Compiles `kernels.cu` to `kernels.ptx` beside it, with NVRTC from the package index. No GPU is needed.

The environment of the Python tests has the packages: `cargo xtask python-env`, then
`target/venv/bin/python crates/device/kernels/compile.py`.

- PTX for compute capability 8.0 (A100): drivers compile it for every later GPU when they load it.
- NVRTC 12.0, because a driver refuses PTX that is newer than itself; later releases emit later versions."""

from __future__ import annotations

from pathlib import Path

from cuda.bindings import nvrtc

SOURCE = Path(__file__).with_name("kernels.cu")
TARGET = SOURCE.with_suffix(".ptx")
OPTIONS = [b"--gpu-architecture=compute_80", b"--std=c++17"]


def compile_ptx(source: bytes) -> bytes:
    """PTX of a source. Raises RuntimeError with NVRTC's log if it does not compile."""
    program = _checked(nvrtc.nvrtcCreateProgram(source, SOURCE.name.encode(), 0, [], []))
    try:
        _checked(nvrtc.nvrtcCompileProgram(program, len(OPTIONS), OPTIONS))
    except RuntimeError as error:
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(f"{error}\n{log.decode()}") from None
    ptx = b" " * _checked(nvrtc.nvrtcGetPTXSize(program))
    _checked(nvrtc.nvrtcGetPTX(program, ptx))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return ptx.rstrip(b"\0").rstrip() + b"\n"


def _checked(answer: tuple) -> object:
    status, *values = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


if __name__ == "__main__":
    TARGET.write_bytes(compile_ptx(SOURCE.read_bytes()))
