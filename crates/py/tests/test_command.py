"""The command `cenote`, which the wheel installs next to the interpreter."""

import json
import logging
import subprocess
import sysconfig
from pathlib import Path

from waiting import PATIENCE

import cenote
from cenote.facts import record

COMMAND = Path(sysconfig.get_path("scripts"), "cenote")


def run(*arguments: str) -> str:
    ran = subprocess.run([str(COMMAND), *arguments], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran
    return ran.stdout


def test_the_wheel_contains_the_command_of_its_own_version() -> None:
    assert COMMAND.is_file(), f"{COMMAND} is missing: build the wheel with `cargo xtask python`; a plain `maturin build` omits it"
    assert run("--version").split() == ["cenote", cenote.__version__]


def test_the_wheel_has_the_licences_of_all_that_it_links() -> None:
    folder = Path(sysconfig.get_path("data"), "share/doc/cenote")
    texts = (folder / "third-party-licenses.txt").read_text()
    assert "Apache License" in texts and "under CC BY-SA 4.0" in texts
    bill = json.loads((folder / "sbom.cdx.json").read_text())
    assert {"pyo3", "tokio"} <= {one["name"] for one in bill["components"]}


def test_the_command_and_the_package_use_the_same_regions(name: str) -> None:
    run("pool", "create", "--region", name, "--size", "8MiB")
    with cenote.Region.open(name, worker="mine") as region:
        region.namespace(b"model", 4096, label="demo")
        info = json.loads(run("pool", "info", "--json", "--region", name))
        assert [worker["name"] for worker in info["workers"]] == ["mine"]
        assert [row["fingerprint"] for row in info["namespaces"]] == [row["fingerprint"] for row in region.info()["namespaces"]]
    run("pool", "destroy", "--region", name)
    assert not Path("/dev/shm", name.removeprefix("shm:")).exists()


def test_pool_diff_compares_recorded_facts(region: cenote.Region) -> None:
    identities = [b'cenote vllm v5 {"layout": "%s", "cache": {"cache_dtype": "auto"}}' % layout for layout in (b"vllm-1", b"vllm-2")]
    spaces = {region.namespace(identity, 4096, label=f"m{number}").id: identity for number, identity in enumerate(identities)}
    record(region, region.info(), spaces, logging.getLogger("facts"))
    said = run("pool", "diff", "--region", region.name, "m0", "m1").splitlines()
    assert said[0].endswith(" differ in 1 fact")
    assert said[1:] == ["  layout: vllm-1 | vllm-2"]
