"""Fetches one file of vLLM's source package from the package index that pip uses."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI

sys.path.append(str(Path(__file__).parents[1]))
from waiting import PATIENCE


def index() -> str:
    """The address of pip's package index."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return os.environ.get("PIP_INDEX_URL") or said.stdout.strip() or PyPI.simple_url


def fetch(version: str, member: str, to: Path) -> None:
    """Writes `member` of vLLM's source package to `to`. Raises ValueError if the index lacks it."""
    name = f"vllm-{version}.tar.gz"
    page = index().rstrip("/") + "/vllm/"
    with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
        listed = re.findall(rf'href="([^"]*{re.escape(name)})#sha256=([0-9a-f]+)"', answer.read().decode())
    if not listed:
        raise ValueError(f"the package index lists no {name}")
    address, wanted = listed[0]
    with tempfile.NamedTemporaryFile() as package:
        with urllib.request.urlopen(urllib.parse.urljoin(page, address), timeout=PATIENCE) as answer:
            while piece := answer.read(1 << 20):
                package.write(piece)
        package.flush()
        with open(package.name, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise ValueError(f"{name} has the digest {found}, but the package index says {wanted}")
        with tarfile.open(package.name) as archive:
            content = archive.extractfile(f"vllm-{version}/{member}")
            if content is None:
                raise ValueError(f"{name} has no file {member}")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(content.read())


if __name__ == "__main__":
    fetch(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
