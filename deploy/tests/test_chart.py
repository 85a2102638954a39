"""The chart, as Go's own templates render it: equal to the manifests with its own values, and valid with others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import waiting
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
    done = subprocess.run([renderer, CHART], input=json.dumps(world), capture_output=True, text=True, timeout=waiting.PATIENCE)
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


def check_selectors(objects: list[Object]) -> None:
    """Each selector finds the pods of the DaemonSet by labels that they have."""
    (region,) = [one for one in objects if one["kind"] == "DaemonSet"]
    labels = region["spec"]["template"]["metadata"]["labels"].items()
    found = 0
    for one in objects:
        spec = one.get("spec", {})
        selector = spec.get("podSelector", spec.get("selector", {}))
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= labels, one["kind"]
        found += bool(wanted)
    # The DaemonSet, the service and the policy.
    assert found >= 3


def test_the_chart_with_its_own_values_is_the_manifests(renderer: Path) -> None:
    plain = {(one["kind"], one["metadata"]["name"]): one for name in ("storage", "region") for one in read(MANIFESTS / f"{name}.yaml")}
    # Helm makes namespaces by a flag.
    del plain["Namespace", "cenote"]
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in render(renderer)}
    assert set(rendered) == set(plain)
    check_selectors(list(rendered.values()))
    for key, one in plain.items():
        assert essence(rendered[key]) == essence(one), key


def test_the_chart_with_everything_is_valid(renderer: Path) -> None:
    changes = {
        "image": {"pullSecrets": ["registry"]},
        "metrics": {
            "podMonitor": True, "rules": True, "dashboard": True, "port": 9471,
            "labels": {"release": "prometheus"}, "runbooks": "https://runbooks.invalid/cenote",
        },
        "region": {"name": "other", "flags": ""},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        # Floats of this size print with an exponent.
        "user": {"uid": 1000640000, "gid": 1000650000},
    }
    jsonschema.validate(chart_values(changes), json.loads((CHART / "values.schema.json").read_text()))
    objects = render(renderer, changes)
    for one in objects:
        validate(one)
        check_least_privilege(one)
    kinds = {one["kind"]: one for one in objects}
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= set(kinds)
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    named = rules.replace("docs/guides/alerts.md#", "https://runbooks.invalid/cenote#")
    assert kinds["PrometheusRule"]["spec"] == yaml.safe_load(named) != yaml.safe_load(rules)
    for kind in ("PodMonitor", "PrometheusRule"):
        assert kinds[kind]["metadata"]["labels"]["release"] == "prometheus"
    region = kinds["DaemonSet"]["spec"]["template"]["spec"]
    assert region["imagePullSecrets"] == [{"name": "registry"}]
    rights = region["securityContext"]
    # Compared as text: a float is equal to an integer, and the kubelet refuses it.
    assert f"{rights['runAsUser']} {rights['runAsGroup']}" == "1000640000 1000650000"
    assert rights["runAsNonRoot"] is True
    check_selectors(objects)
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
    for words in (["lint", "--strict", CHART], ["template", "cenote", CHART, "--namespace", "cenote"]):
        subprocess.run([helm, *words], check=True, stdout=subprocess.DEVNULL, timeout=waiting.PATIENCE)
