"""Kubernetes' objects: reading, validation by Kubernetes' schemas, and the rights of pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from conftest import ROOT

MANIFESTS = ROOT / "deploy/kubernetes"
CHART = ROOT / "deploy/chart/cenote"
# The oldest release that the chart names, and the newest whose schemas are at hand.
VERSIONS = ["1.25", kubernetes_validate.latest_version()]
# Objects of the Prometheus operator have schemas of their own.
OPERATOR = "monitoring.coreos.com/v1"
Object = dict[str, Any]


def read(path: Path) -> list[Object]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def validate(one: Object) -> None:
    if one["apiVersion"] != OPERATOR:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def pod(one: Object) -> Object | None:
    if one["kind"] == "Pod":
        return dict(one["spec"])
    template = one.get("spec", {}).get("template")
    return dict(template["spec"]) if template else None


def check_least_privilege(one: Object) -> None:
    spec = pod(one)
    if spec is None:
        return
    assert not {"hostIPC", "hostPID", "hostNetwork"} & set(spec), one["metadata"]["name"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all("hostPath" not in volume for volume in spec["volumes"])
    for container in spec["containers"] + spec.get("initContainers", []):
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False and rights["capabilities"] == {"drop": ["ALL"]}
        assert not rights.get("privileged")
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"], container["name"]
        assert "memory" in container["resources"]["limits"]


def chart_values(changes: Object | None = None) -> Object:
    """The chart's own values, with changes of sections."""
    found: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    for section, entries in (changes or {}).items():
        found[section] = found[section] | entries if isinstance(entries, dict) else entries
    return found
