"""Manifests and the compose file: valid, without privilege, and of one version."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from conftest import ROOT
from objects import CHART, MANIFESTS, chart_values, check_least_privilege, pod, read, validate


def manifests() -> list[Path]:
    return sorted(path for path in MANIFESTS.glob("*.yaml") if path.name != "kustomization.yaml")


@pytest.mark.parametrize("path", manifests(), ids=lambda path: path.stem)
def test_a_manifest_is_valid_and_has_the_least_privilege(path: Path) -> None:
    objects = read(path)
    assert objects
    for one in objects:
        validate(one)
        check_least_privilege(one)


def test_an_invalid_manifest_is_refused() -> None:
    (one, *_) = read(MANIFESTS / "region.yaml")
    one["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(one)


def test_a_region_fits_into_the_memory_of_the_pod_that_is_charged_for_it() -> None:
    units = {"GiB": 30, "MiB": 20, "Gi": 30, "Mi": 20}

    def size(text: str) -> int:
        unit = next(unit for unit in units if text.endswith(unit))
        return int(text.removesuffix(unit)) << units[unit]

    found = 0
    for one in [one for path in manifests() for one in read(path)]:
        for container in (pod(one) or {}).get("initContainers", []):
            region = size(next(entry["value"] for entry in container["env"] if entry["name"] == "CENOTE_SIZE"))
            # Its structures of this host take 28 bytes for each 16 KiB (docs/guides/vllm.md).
            needed = region + region // (16 << 10) * 28
            assert size(container["resources"]["limits"]["memory"]) > needed, one["metadata"]["name"]
            found += 1
    assert found == 2


def test_kustomization_names_files_that_exist() -> None:
    (one,) = read(MANIFESTS / "kustomization.yaml")
    assert all((MANIFESTS / name).is_file() for name in one["resources"])


def test_versions_agree() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    images = {container["image"] for path in manifests() for one in read(path) for container in (pod(one) or {}).get("initContainers", [])}
    # A full name: a short one is the name of a public image for some engines and for the kubelet.
    image = f"localhost/cenote:{version}"
    assert images == {image} and chart_values()["image"]["name"] == image
    (renamed,) = read(MANIFESTS / "kustomization.yaml")[0]["images"]
    assert (renamed["name"], f"{renamed['newName']}:{renamed['newTag']}") == (image.rpartition(":")[0], image)
    services = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    assert {services[name]["image"] for name in ("region", "metrics", "serve")} == {image}


def test_the_compose_file_mounts_what_exists() -> None:
    folder = ROOT / "deploy/compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert {"region", "metrics", "prometheus", "grafana"} <= set(services)
    # A volume of type tmpfs would go with the container that makes the region.
    for name in ("region", "metrics", "serve"):
        assert "/dev/shm/cenote:/dev/shm" in services[name]["volumes"], name
    for name, service in services.items():
        assert not service.get("privileged") and service.get("ipc") != "host", name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith("."):
                assert (folder / source).exists(), f"{name}: {source}"
