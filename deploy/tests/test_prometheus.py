"""A real Prometheus scrapes a live region and a server, the region at two addresses as if two hosts had one: every query of the dashboard has an answer, every alert reads
series that exist, and alerts fire on the faults for which they are."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import waiting
import yaml
from conftest import ROOT, Programs

PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/cenote.json").read_text())
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PROMPT = "The cave lies at the foot of a limestone cliff, and only a boat can reach its entrance when the tide is low"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=waiting.PATIENCE) as answer:
        return str(answer.read().decode())


def answers(url: str) -> bool:
    try:
        fetch(url)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


class World:
    """A region with its exporter, a server on it, and a Prometheus that scrapes both."""

    def __init__(self, command: Path, programs: Programs, folder: Path) -> None:
        self.command, self.folder = str(command), folder
        self.region = f"shm:cenote-deploy-{os.getpid()}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.programs = programs

    def begin(self) -> None:
        programs, folder = self.programs, self.folder
        self.run("pool", "create", "--size", "64MiB")
        self.start("exporter", self.command, "pool", "metrics", "--region", self.region, "--listen", "127.0.0.1:0")
        self.engine = self.start("server", self.command, "serve", "--region", self.region, "--port", "0",
                                 "--model", str(ROOT / "models/demo"))
        self.exporter, self.server = self.port_of("exporter"), self.port_of("server")
        waiting.until("the server is ready", lambda: answers(f"http://127.0.0.1:{self.server}/ready"))
        self.write_settings()
        self.prometheus = free_port()
        self.start("prometheus", *programs.words("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                   f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.prometheus}")
        waiting.until("Prometheus is ready", lambda: answers(f"http://127.0.0.1:{self.prometheus}/-/ready"))

    def write_settings(self) -> None:
        """The settings and rules that are shipped, with this test's addresses and shorter intervals."""
        rules = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = "1s"
        (self.folder / "alerts.yml").write_text(yaml.safe_dump(rules))
        settings = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        ports = {"cenote-region": self.exporter, "cenote-serve": self.server}
        hosts = {"cenote-region": ["127.0.0.1", "localhost"], "cenote-serve": ["127.0.0.1"]}
        for job in settings["scrape_configs"]:
            name = job["job_name"]
            job["static_configs"] = [{"targets": [f"{host}:{ports[name]}" for host in hosts[name]]}]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(settings))

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            # It ends with this process, also if that is killed.
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *words], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def port_of(self, name: str) -> int:
        """The port that a program of this project has got and prints."""
        log = self.folder / f"{name}.log"
        found = waiting.until(log.read_text, lambda: re.search(r"^http://127\.0\.0\.1:(\d+)$", log.read_text(), re.MULTILINE))
        return int(found[1])

    def run(self, *words: str) -> None:
        done = subprocess.run([self.command, *words, "--region", self.region], capture_output=True, text=True, timeout=waiting.PATIENCE)
        assert done.returncode == 0, done.stderr

    def ask(self) -> dict[str, object]:
        body = {"model": "demo", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        answer = json.loads(fetch(f"http://127.0.0.1:{self.server}/v1/completions", body))
        return dict(answer["usage"]["prompt_tokens_details"])

    def query(self, expression: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression})
        try:
            answer = json.loads(fetch(f"http://127.0.0.1:{self.prometheus}/api/v1/query?{words}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        return list(answer["data"]["result"])

    def firing(self) -> set[str]:
        """Names of alerts. All but that of the exporter are about a region."""
        alerts = json.loads(fetch(f"http://127.0.0.1:{self.prometheus}/api/v1/alerts"))["data"]["alerts"]
        firing = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        assert all(labels.get("region") == self.region for labels in firing if labels["alertname"] != "CenoteExporterDown"), firing
        return {labels["alertname"] for labels in firing}

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        subprocess.run([self.command, "pool", "destroy", "--force", "--region", self.region], capture_output=True, timeout=waiting.PATIENCE)


@pytest.fixture(scope="module")
def world(command: Path, programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(command, programs, tmp_path_factory.mktemp("world"))
    try:
        made.begin()
        yield made
    finally:
        made.end()


def queries_of_the_dashboard() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_query_of_the_dashboard_has_an_answer(world: World) -> None:
    cached = [world.ask()["cached_tokens"] for _ in range(2)]
    assert cached[0] == 0 and cached[1], cached
    # Rates need points before and after.
    seen = "min(count_over_time(cenote_region_present[1m])) >= 4 and on () sum(cenote_http_cached_tokens_total) > 0"
    waiting.until("Prometheus has seen the requests", lambda: world.query(seen))
    world.ask()
    waiting.until("and one more", lambda: world.query("sum(rate(cenote_http_time_to_first_token_seconds_count[1m])) > 0"))
    silent = []
    for query in queries_of_the_dashboard():
        expression = query.replace("$region", ".+").replace("$instance", ".+").replace("$__rate_interval", "1m")
        assert "$" not in expression, query
        # Nothing is evicted here, so nothing has a lifetime.
        answer = world.query(expression.replace("> 0)", ">= 0)") if "evicted" in query else expression)
        # A query of regions answers for each host alone.
        if not answer or ("region=~" in query and len({point["metric"].get("instance") for point in answer}) != 2):
            silent.append(query)
    assert not silent, fetch(f"http://127.0.0.1:{world.exporter}/metrics")


def test_every_alert_reads_series_that_exist(world: World) -> None:
    for rule in RULES:
        # Without an error; today nothing is wrong.
        world.query(rule["expr"])
        for name in set(re.findall(r"\b(?:cenote_\w+|up)\b", rule["expr"])):
            assert world.query(name), f"{rule['alert']}: Prometheus has no {name}"


def test_two_alerts_fire(world: World) -> None:
    """A server is killed, and then its region is removed."""
    waiting.until("the server is seen", lambda: world.query('cenote_workers{state="alive"} > 0'))
    # It fires until Prometheus has learnt of its targets.
    waiting.until("the exporter is scraped", lambda: "CenoteExporterDown" not in world.firing())
    assert not world.firing() & {"CenoteWorkerDied", "CenoteRegionMissing"}
    world.engine.send_signal(signal.SIGKILL)
    world.engine.wait()
    waiting.until("CenoteWorkerDied fires", lambda: "CenoteWorkerDied" in world.firing())
    assert "CenoteRegionMissing" not in world.firing()
    world.run("pool", "destroy", "--force")
    waiting.until("CenoteRegionMissing fires", lambda: "CenoteRegionMissing" in world.firing())
    # The exporter itself lives.
    assert "CenoteExporterDown" not in world.firing()


def test_no_alert_reads_counters_of_a_server() -> None:
    """They have the names of an exporter's, and no region."""
    for rule in RULES:
        selectors = re.findall(r'\bcenote_pool_\w+(\{region!=""\})?', rule["expr"])
        assert all(selectors), rule["alert"]


def test_promtool_accepts_rules_and_settings(programs: Programs) -> None:
    said = programs.run("promtool", "check", "rules", str(PROMETHEUS / "alerts.yml"))
    assert f"{len(RULES)} rules found" in said
    programs.run("promtool", "check", "config", "--syntax-only", str(PROMETHEUS / "prometheus.yml"))


def test_each_alert_has_a_unit_test_that_passes(programs: Programs) -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    names = {rule["alert"] for rule in RULES}
    assert fired == names and silent == names
    assert "SUCCESS" in programs.run("promtool", "test", "rules", "alerts.test.yml", cwd=PROMETHEUS)


def test_each_alert_has_a_runbook_of_its_own() -> None:
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/guides/alerts.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/guides/alerts.md#{rule['alert'].lower()}"


def test_the_dashboard_is_what_its_program_writes() -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("dashboard", ROOT / "deploy/grafana/dashboard.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "deploy/grafana/cenote.json").read_text() == module.text(), "run deploy/grafana/dashboard.py"
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len(panels) >= 25
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, f"{panel['title']} covers another panel"
        taken |= cells
    for name in re.findall(r"Cenote[A-Z]\w+", json.dumps(panels)):
        assert name in {rule["alert"] for rule in RULES}, name
