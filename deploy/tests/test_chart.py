"""The chart, as Go's own templates render it: equal to the manifests with its own values, and valid with others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import ROOT
from objects import CHART, MANIFESTS, Object, chart_values, check_least_privilege, read, validate


def render(renderer: Path, changes: Object | None = None) -> list[Object]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    world = {
        "Release": {"Name": "cenote", "Namespace": "cenote", "Service": "Helm"},
        "Chart": {key[0].upper() + key[1:]: value for key, value in chart.items()},
        "Values": chart_values(changes),
    }
    done = subprocess.run([renderer, CHART], input=json.dumps(world), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def essence(one: Object) -> Object:
    """An object without the labels by which Helm finds its own."""
    if isinstance(one, list):
        return [essence(entry) for entry in one]  # type: ignore[return-value]
    if not isinstance(one, dict):
        return one
    helms = ("helm.sh/", "app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
    return {key: essence(value) for key, value in one.items() if not key.startswith(helms)}


def test_the_chart_with_its_own_values_is_the_manifests(renderer: Path) -> None:
    plain = {(one["kind"], one["metadata"]["name"]): one for name in ("storage", "region") for one in read(MANIFESTS / f"{name}.yaml")}
    # Helm makes namespaces by a flag.
    del plain["Namespace", "cenote"]
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in render(renderer)}
    assert set(rendered) == set(plain)
    for key, one in plain.items():
        assert essence(rendered[key]) == essence(one), key


def test_the_chart_with_everything_is_valid(renderer: Path) -> None:
    changes = {
        "metrics": {"podMonitor": True, "rules": True, "dashboard": True, "port": 9471},
        "region": {"name": "other", "flags": ""},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "user": {"uid": 6470, "gid": 6470},
    }
    jsonschema.validate(chart_values(changes), json.loads((CHART / "values.schema.json").read_text()))
    objects = render(renderer, changes)
    for one in objects:
        validate(one)
        check_least_privilege(one)
    kinds = {one["kind"]: one for one in objects}
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= set(kinds)
    assert kinds["PrometheusRule"]["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    assert json.loads(kinds["ConfigMap"]["data"]["cenote.json"])["title"] == "Cenote"
    assert kinds["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "0.0.0.0:9471"


def test_wrong_values_are_refused() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(chart_values(), schema)
    wrong: list[Object] = [{"region": {"size": "much"}}, {"storage": {"path": "/data"}}, {"metrics": {"port": 80}}, {"user": {"name": "x"}}]
    for changes in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(chart_values(changes), schema)


def test_helm_accepts_the_chart() -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not installed here; Go's templates and Kubernetes' schemas have checked the chart")
    subprocess.run([helm, "lint", "--strict", CHART], check=True)
    subprocess.run([helm, "template", "cenote", CHART, "--namespace", "cenote"], check=True, stdout=subprocess.DEVNULL)
