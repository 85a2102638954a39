"""The Debian package and the container image: their contents run alone, in a root of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import jsonschema
import pytest
import waiting
from conftest import ROOT, Programs

# Runs in the new root: a region, its second making, and a server's two answers to one prompt.
SCRIPT = """
set -eu
export CENOTE_REGION=shm:kv CENOTE_SIZE=64MiB CENOTE_CREATE_FLAGS='--events 64'
/usr/lib/cenote/ensure-region
/usr/lib/cenote/ensure-region | grep -x 'shm:kv is there already'
cenote pool metrics | grep '^cenote_region_present{region="shm:kv"} 1$'
prompt='The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance when the tide is low'
for run in 1 2; do
    cenote generate --model /models/demo --prompt "$prompt" --max-tokens 4
done
cenote pool metrics | grep '^cenote_pool_lookup_hits_total{region="shm:kv"} [1-9]'
cenote pool check
cenote pool destroy
"""


def in_root(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs words in a root of their own with its own shared memory, as a user without rights on this machine."""
    # The same words as in xtask/src/deploy.rs, which notes the skip.
    probe = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "probe", "/tmp"]
    if subprocess.run(probe, capture_output=True, timeout=waiting.PATIENCE).returncode:
        pytest.skip("this machine allows no namespaces of users")
    (root / "models").mkdir(exist_ok=True)
    enter = """
        set -e
        mkdir -p "$1/dev/shm"
        mount -t tmpfs -o size=256m shm "$1/dev/shm"
        mount --rbind /proc "$1/proc"
        touch "$1/dev/null" "$1/dev/urandom"
        mount --bind /dev/null "$1/dev/null"
        mount --bind /dev/urandom "$1/dev/urandom"
        mount --bind "$2" "$1/models"
        root=$1; shift 2
        exec chroot "$root" "$@"
    """
    unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c", enter, "sh", str(root), str(ROOT / "models")]
    kept = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    return subprocess.run([*unshare, *words], capture_output=True, text=True, env=kept, timeout=waiting.PATIENCE)


def check_root(root: Path) -> None:
    done = in_root(root, "/bin/sh", "-c", SCRIPT)
    assert done.returncode == 0, done.stdout + done.stderr
    # A directory with the old content would show that the root is not its own.
    assert (root / "usr/bin/cenote").is_file()


@pytest.fixture(scope="module")
def layout(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layout")
    with tarfile.open(image) as archive:
        archive.extractall(folder, filter="data")
    return folder


def blob(layout: Path, descriptor: dict[str, object]) -> bytes:
    kind, _, digest = str(descriptor["digest"]).partition(":")
    content = (layout / "blobs" / kind / digest).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest and len(content) == descriptor["size"]
    return content


def test_the_image_is_small_and_whole(image: Path, layout: Path) -> None:
    assert image.stat().st_size < 60_000_000
    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(layout, entry))
    settings = json.loads(blob(layout, manifest["config"]))
    (layer,) = manifest["layers"]
    import gzip

    unpacked = gzip.decompress(blob(layout, layer))
    assert settings["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(unpacked).hexdigest()]
    # The tests' own command has assertions and fewer optimisations, and is larger than one of a release.
    is_released = os.environ.get("CENOTE_DEPLOY_RELEASED") == "1"
    assert len(unpacked) < (60_000_000 if is_released else 80_000_000)
    assert settings["config"]["Entrypoint"] == ["/usr/bin/cenote"]
    used = {"sha256:" + path.name for path in (layout / "blobs/sha256").iterdir()}
    assert used == {one["digest"] for one in (entry, manifest["config"], layer)}
    # The older form, which is all that Docker reads without containerd.
    (saved,) = json.loads((layout / "manifest.json").read_text())
    name = f"localhost/cenote:{version()}"
    assert saved["RepoTags"] == [entry["annotations"]["io.containerd.image.name"]] == [name]
    assert [f"sha256:{Path(path).name}" for path in (saved["Config"], *saved["Layers"])] == [manifest["config"]["digest"], layer["digest"]]
    assert all((layout / path).is_file() for path in (saved["Config"], *saved["Layers"]))


def test_the_image_runs_alone(layout: Path, programs: Programs, tmp_path: Path) -> None:
    """Unpacked by a tool of others."""
    programs.run("umoci", "unpack", "--rootless", "--image", f"{layout}:{version()}", str(tmp_path / "bundle"))
    root = tmp_path / "bundle/rootfs"
    for path in root.rglob("*"):
        assert path.is_symlink() or not path.stat().st_mode & 0o6000, f"{path} is setuid or setgid"
    check_root(root)
    texts = root / "usr/share"
    for copyright in texts.glob("doc/*/copyright"):
        for name in re.findall(r"/usr/share/common-licenses/([\w-]+(?:\.\d)?)", copyright.read_text(errors="replace")):
            assert (texts / "common-licenses" / name).is_file(), f"{copyright} names {name}"
    bill = {one["name"]: one["version"] for one in json.loads((texts / "doc/cenote/sbom.cdx.json").read_text())["components"]}
    assert {"busybox-static", "ca-certificates", "libc6", "libgcc-s1"} <= set(bill) and bill["libc6"].startswith("2.41")
    # Authorities, for object stores as a cold tier.
    assert (root / "etc/ssl/certs/ca-certificates.crt").read_text().count("BEGIN CERTIFICATE") > 100


def version() -> str:
    import tomllib

    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"])


@pytest.fixture(scope="module")
def installed(deb: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package beside those on which it depends, and a shell."""
    root = tmp_path_factory.mktemp("deb") / "root"
    shutil.copytree(base, root, symlinks=True)
    for name in ("bin", "lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("sh", "grep", "echo"):
        (root / "usr/bin" / name).unlink(missing_ok=True)
        (root / "usr/bin" / name).symlink_to("busybox")
    for name in ("dev", "proc", "etc"):
        (root / name).mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--extract", deb, root], check=True, timeout=waiting.PATIENCE)
    return root


def test_the_debian_package_runs_beside_what_it_depends_on(installed: Path) -> None:
    check_root(installed)


def test_the_check_on_the_page_of_installation_runs(installed: Path) -> None:
    page = (ROOT / "docs/guides/install.md").read_text()
    block = page.split("## Check what you got", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    assert block.count("cenote ") >= 5
    done = in_root(installed, "/bin/sh", "-euxc", block)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'cenote_region_present{region="shm:try"} 1' in done.stdout


def test_the_debian_package_tells_what_it_is(deb: Path, installed: Path) -> None:
    fields = subprocess.run(["dpkg-deb", "--field", deb], check=True, capture_output=True, text=True, timeout=waiting.PATIENCE).stdout
    told = dict(line.split(": ", 1) for line in fields.splitlines() if ": " in line and not line.startswith(" "))
    assert told["Package"] == "cenote" and told["Version"] == version()
    assert told["Depends"].startswith("libc6 (>= 2.") and "libgcc-s1" in told["Depends"]
    listed = subprocess.run(["dpkg-deb", "--contents", deb], check=True, capture_output=True, text=True, timeout=waiting.PATIENCE).stdout
    assert all(line.split()[1] == "root/root" for line in listed.splitlines())
    modes = {line.split()[0] for line in listed.splitlines()}
    assert modes == {"drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"}
    for path in ("usr/share/man/man1/cenote-pool-create.1.gz", "usr/share/bash-completion/completions/cenote", "etc/cenote/kv.conf"):
        assert (installed / path).is_file(), path
    assert "Apache License" in (installed / "usr/share/doc/cenote/third-party-licenses.txt").read_text()


def test_links_between_pages_of_the_package_lead_somewhere(installed: Path) -> None:
    pages = installed / "usr/share/doc/cenote"
    found = 0
    for page in pages.glob("*/*.md"):
        # Sources of the repository are no part of the package.
        for link in re.findall(r"\]\(((?!https?:|\.\./\.\./)[^)#]+\.md)", page.read_text()):
            assert (page.parent / link).is_file(), f"{page.name} links to {link}"
            found += 1
    assert found > 100
    for unit in (installed / "usr/lib/systemd/system").iterdir():
        (named,) = re.findall(r"^Documentation=file://(.*)$", unit.read_text(), re.MULTILINE)
        assert (installed / named.removeprefix("/")).is_file(), f"{unit.name} names {named}"


def test_scripts_of_the_package_are_shell_without_errors(tmp_path: Path) -> None:
    for script in [*(ROOT / "deploy/debian").glob("p*"), ROOT / "deploy/ensure-region"]:
        subprocess.run(["sh", "-n", script], check=True, timeout=waiting.PATIENCE)
        assert script.read_text().startswith("#!/bin/sh\n"), script


def test_the_user_can_be_made(installed: Path) -> None:
    tool = shutil.which("systemd-sysusers")
    if tool is None:
        pytest.skip("systemd-sysusers is not installed here")
    subprocess.run([tool, f"--root={installed}", installed / "usr/lib/sysusers.d/cenote.conf"], check=True, capture_output=True, timeout=waiting.PATIENCE)
    assert "cenote:" in (installed / "etc/passwd").read_text() and "cenote:" in (installed / "etc/group").read_text()


def test_units_are_whole_and_hardened(installed: Path) -> None:
    units = installed / "usr/lib/systemd/system"
    names = sorted(path.name for path in units.iterdir())
    assert names == ["cenote-metrics@.service", "cenote-region@.service", "cenote-serve@.service"]
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed here")
    for name in names:
        # From 0, no exposure, to 100.
        words = [tool, "security", "--offline=true", "--threshold=25", "--no-pager", units / name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=waiting.PATIENCE)
        assert done.returncode == 0, done.stdout[-300:] + done.stderr
        one = name.replace("@", "@kv")
        done = subprocess.run([tool, "verify", "--recursive-errors=no", f"--root={installed}", one], capture_output=True, text=True, timeout=waiting.PATIENCE)
        assert done.returncode == 0 and "cenote" not in done.stderr, done.stderr


def test_the_bill_of_materials_names_each_crate_once(installed: Path) -> None:
    bill = json.loads((installed / "usr/share/doc/cenote/sbom.cdx.json").read_text())
    components = bill["components"]
    references = [one["bom-ref"] for one in components] + [bill["metadata"]["component"]["bom-ref"]]
    assert len(references) == len(set(references)) > 100
    needs = {"type": "object", "required": ["type", "name", "version", "purl", "licenses"]}
    for one in components:
        jsonschema.validate(one, needs)
        assert one["licenses"][0]["expression"], one["name"]
        assert "hashes" in one or one["name"].startswith("cenote-"), one["name"]
    for edge in bill["dependencies"]:
        assert {edge["ref"], *edge["dependsOn"]} <= set(references)
    licenses = (installed / "usr/share/doc/cenote/third-party-licenses.txt").read_text()
    for one in components:
        assert f"{one['name']} {one['version']} (" in licenses or one["name"].startswith("cenote-"), one["name"]


def test_equal_inputs_make_equal_packages(deb: Path, layout: Path) -> None:
    """Times in both are that of the commit."""
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, text=True, cwd=ROOT, timeout=waiting.PATIENCE).stdout.strip()
    moment = int(said or 0)
    for path in (layout / "blobs/sha256").iterdir():
        assert int(os.stat(path).st_mtime) == moment
    content = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True, timeout=waiting.PATIENCE).stdout
    import io

    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        # dpkg-deb lowers later times to that moment, and leaves earlier ones.
        assert all(member.mtime <= moment for member in archive)


def test_checksums_notes_and_licences_stand_beside_the_packages(deb: Path, image: Path) -> None:
    out = deb.parent
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in out.iterdir()} - {"SHA256SUMS"}
    assert {deb.name, image.name, "NOTES.md", "wheel.cdx.json", "libcenote.licenses.txt"} <= set(sums)
    for name, digest in sums.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest, name
    assert "**Added**" in (out / "NOTES.md").read_text()
