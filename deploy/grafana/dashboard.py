"""Writes the dashboard `cenote.json` from the tables below: `python3 deploy/grafana/dashboard.py`.

A row of a table is a panel: title, unit, kind, help, and queries as (expression, legend). `REGION` stands for the
selection of the variables `region` and `instance`, `SPAN` for the interval of rates. Regions of several hosts may have
one name, so each query and legend keeps the instance."""

from __future__ import annotations

import json
import sys
from pathlib import Path

FILE = Path(__file__).parent / "cenote.json"
REGION = 'region=~"$region",instance=~"$instance"'
WIDTH = 24
Panel = tuple[str, str, str, str, list[tuple[str, str]]]


def each(counter: str) -> str:
    """Events a second of a counter."""
    return f"sum by (region, instance) (rate(cenote_pool_{counter}_total{{REGION}}[SPAN]))"


def share(part: str, whole: str) -> str:
    return f"{each(part)} / {each(whole)}"


def gauge(name: str, labels: str = "") -> str:
    return f"cenote_{name}{{REGION{',' + labels if labels else ''}}}"


def residence(q: str) -> str:
    rate = "rate(cenote_pool_residence_seconds_bucket{REGION}[SPAN])"
    return f"histogram_quantile({q}, sum by (le, region, instance) ({rate}))"


def quantile(q: str, histogram: str) -> str:
    return f"histogram_quantile({q}, sum by (le) (rate(cenote_http_{histogram}_seconds_bucket[SPAN])))"


ROWS: list[tuple[str, list[Panel]]] = [
    ("Now", [
        ("Region present", "bool", "stat", "0: no region has the name. Alert CenoteRegionMissing.",
         [(gauge("region_present"), "{{region}}")]),
        ("Hit rate", "percentunit", "stat", "Share of blocks in lookups that were found.",
         [(share("lookup_hits", "lookups"), "{{region}}")]),
        ("Chunks in use", "percentunit", "stat", "At 100 % the region evicts. That alone is no fault.",
         [(f'1 - {gauge("region_chunks_free")} / {gauge("region_chunks")}', "{{region}}")]),
        ("Blocks", "short", "stat", "Readable blocks.", [(gauge("region_blocks"), "{{region}}")]),
        ("Processes alive", "short", "stat", "Processes that have joined the region and live.",
         [('sum by (region, instance) (cenote_workers{REGION,state="alive"})', "{{region}}")]),
        ("Damage, last hour", "short", "stat", "Corrupt structures and wrong checksums. Alerts CenoteMemoryDamaged, CenotePayloadDamaged.",
         [("increase(cenote_pool_damaged_total{REGION}[1h]) + increase(cenote_pool_reads_damaged_total{REGION}[1h])", "{{region}}")]),
    ]),
    ("Traffic", [
        ("Hit rate over time", "percentunit", "line", "Falls after a restart with a new region, a new version of an engine, or evictions.",
         [(share("lookup_hits", "lookups"), "{{region}}")]),
        ("Lookups", "ops", "line", "Blocks in lookups, and blocks found.",
         [(each("lookups"), "looked up {{region}}"), (each("lookup_hits"), "found {{region}}")]),
        ("Bytes read and published", "Bps", "line", "Payload bytes that engines load and save.",
         [(each("read_bytes"), "read {{region}}"), (each("published_bytes"), "published {{region}}")]),
        ("Blocks read and published", "ops", "line", "", [(each("reads"), "read {{region}}"), (each("published"), "published {{region}}")]),
        ("Duplicates", "percentunit", "line", "Share of publishes whose block another process had published already.",
         [(f'{each("duplicates")} / ({each("duplicates")} + {each("published")})', "{{region}}")]),
        ("Stale reads", "ops", "line", "Reads of blocks that were evicted or reused meanwhile: misses, never wrong KV.",
         [(each("reads_stale"), "{{region}}")]),
        ("Rows of tables", "ops", "line", "Rows of n-gram tables that gathers copied or missed.",
         [(each("rows_gathered"), "gathered {{region}}"), (each("rows_missed"), "missed {{region}}")]),
    ]),
    ("Space", [
        ("Chunks", "short", "line", "Free chunks belong to no host.",
         [(gauge("region_chunks"), "all {{region}}"), (gauge("region_chunks_free"), "free {{region}}")]),
        ("Payload of blocks", "bytes", "line", "Beside the bytes that the region has for blocks.",
         [(gauge("region_block_bytes"), "blocks {{region}}"), (gauge("region_data_bytes"), "room {{region}}")]),
        ("Evictions", "ops", "line", "Evicted blocks, and evictions that a pin postponed.",
         [(each("evicted"), "evicted {{region}}"), (each("evictions_pinned"), "pinned {{region}}")]),
        ("Lifetime of a block", "s", "line", "Readable blocks by evictions a second: how long a block stays.",
         [(f'{gauge("region_blocks")} / on (region, instance) ({each("evicted")} > 0)', "{{region}}")]),
        ("Publishes refused", "ops", "line", "No room, or over a quota. Alerts CenoteNoRoom, CenoteQuotaReached.",
         [(each("no_room"), "no room {{region}}"), (each("quota_refused"), "quota {{region}}")]),
        ("Time in the region", "s", "line", "Of blocks that left: how long half of them, and 90 %, had been there at most.",
         [(residence("0.5"), "half {{region}}"), (residence("0.9"), "90 % {{region}}")]),
        ("Removed blocks that came back", "percentunit", "line", "A larger region would have had them.",
         [(f'{gauge("region_returned_blocks")} / clamp_min({gauge("region_removed_blocks")}, 1)', "{{region}}")]),
        ("Objects and locks of programs", "short", "line", "Programs hold them in the region beside blocks.",
         [(gauge("region_objects"), "objects {{region}}"), (gauge("region_locks_allocated"), "locks {{region}}")]),
        ("Memory of programs", "bytes", "line", "Programs hold it in the region beside blocks.",
         [(gauge("region_memory_bytes"), "{{region}}")]),
    ]),
    ("Models and tenants", [
        ("Bytes by model", "bytes", "line", "A salt is a row of its own, so tenants are separate rows.",
         [(f'topk(10, {gauge("model_used_bytes")})', "{{model}} {{fingerprint}}")]),
        ("Blocks by model", "short", "line", "", [(f'topk(10, {gauge("model_blocks")})', "{{model}} {{fingerprint}}")]),
        ("Bytes a block by model", "bytes", "line", "Falls when a codec makes blocks smaller.",
         [(f'{gauge("model_block_bytes")} / ({gauge("model_blocks")} > 0)', "{{model}} {{fingerprint}}")]),
        ("Quota by model", "bytes", "line", "0: no quota.", [(gauge("model_quota_bytes"), "{{model}} {{fingerprint}}")]),
        ("Processes by model", "short", "line", "", [(gauge("model_workers"), "{{model}} {{fingerprint}}")]),
    ]),
    ("Processes and hosts", [
        ("Processes by name and state", "short", "line", "Dead ones wait for their recovery. Alert CenoteWorkerDied.",
         [("sum by (region, instance, host, name, state) (cenote_workers{REGION})", "{{name}} on {{host}}: {{state}}")]),
        ("Recoveries", "short", "line", "Dead processes recovered, their reservations freed, their locks taken over.",
         [("increase(cenote_pool_workers_recovered_total{REGION}[SPAN])", "processes {{region}}"),
          ("increase(cenote_pool_reservations_recovered_total{REGION}[SPAN])", "reservations {{region}}"),
          ("increase(cenote_pool_locks_abandoned_total{REGION}[SPAN])", "locks {{region}}")]),
        ("Hosts alive", "short", "line", "0: dead; no point: unknown. Alert CenoteHostDead.", [(gauge("host_alive"), "host {{host}}")]),
        ("Chunks by host", "short", "line", "", [(gauge("host_chunks"), "host {{host}}")]),
        ("Lives of hosts", "short", "line", "Grows with each death of a host.", [(gauge("host_life"), "host {{host}}")]),
        ("Chunks that moved", "ops", "line", "From living hosts, and from dead ones.",
         [(each("chunks_shared"), "shared {{region}}"), (each("chunks_adopted"), "adopted {{region}}")]),
    ]),
    ("Faults", [
        ("Damage", "short", "line", "Corrupt structures and payloads with a wrong checksum.",
         [("increase(cenote_pool_damaged_total{REGION}[SPAN])", "structures {{region}}"),
          ("increase(cenote_pool_reads_damaged_total{REGION}[SPAN])", "payloads {{region}}")]),
        ("Lock timeouts", "short", "line", "A stopped process, or hosts that compete. Alert CenoteLockTimeouts.",
         [("increase(cenote_pool_lock_timeouts_total{REGION}[SPAN])", "{{region}}")]),
        ("Chunks lost or with strays", "short", "line", "What dead hosts left. Alert CenoteChunksLost.",
         [(gauge("region_chunks_lost"), "lost {{region}}"), (gauge("region_chunks_with_strays"), "strays {{region}}")]),
        ("Age of the region", "s", "line", "A fall to 0 is a region that was made anew.",
         [(f'time() - {gauge("region_created_timestamp_seconds")}', "{{region}}")]),
    ]),
    ("Cold tier", [
        ("Reads", "ops", "line", "Found in the tier's list, published in time, late, refused or skipped.",
         [(each(f"cold_{name}"), f"{name} {{{{region}}}}") for name in ("found", "hits", "misses", "late", "reads_refused", "reads_skipped")]),
        ("Writes", "ops", "line", "Offered, written, and not written by reason.",
         [(each(f"cold_{name}"), f"{name} {{{{region}}}}")
          for name in ("offered", "written", "duplicates", "skipped", "dropped_busy", "dropped_gone", "dropped_failed")]),
        ("Bytes of the cold tier", "Bps", "line", "",
         [(each("cold_read_bytes"), "read {{region}}"), (each("cold_written_bytes"), "written {{region}}")]),
        ("Errors", "short", "line", "Alert CenoteColdErrors.", [("increase(cenote_pool_cold_errors_total{REGION}[SPAN])", "{{region}}")]),
    ]),
    ("The reference server (`cenote serve`)", [
        ("Time to first token", "s", "line", "",
         [(quantile(q, "time_to_first_token"), f"quantile {q}") for q in ("0.5", "0.9", "0.99")]),
        ("Prompt tokens, and those from the region", "ops", "line", "",
         [("sum(rate(cenote_http_prompt_tokens_total[SPAN]))", "prompt"), ("sum(rate(cenote_http_cached_tokens_total[SPAN]))", "from the region")]),
        ("Requests", "short", "line", "", [("sum(cenote_requests_running)", "running"), ("sum(cenote_requests_waiting)", "waiting")]),
        ("Refused and aborted", "ops", "line", "",
         [("sum(rate(cenote_http_requests_refused_total[SPAN]))", "refused"), ("sum(rate(cenote_http_aborted_requests_total[SPAN]))", "aborted")]),
    ]),
]


def placed(expression: str) -> str:
    return expression.replace("REGION", REGION).replace("SPAN", "$__rate_interval")


def legend_of(expression: str, legend: str) -> str:
    return f"{legend} at {{{{instance}}}}" if "REGION" in expression else legend


def panel(number: int, row: Panel, place: dict[str, int]) -> dict[str, object]:
    title, unit, kind, text, queries = row
    source = {"type": "prometheus", "uid": "${datasource}"}
    made: dict[str, object] = {
        "id": number, "type": "stat" if kind == "stat" else "timeseries", "title": title, "gridPos": place, "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(ord("A") + at), "expr": placed(expression), "legendFormat": legend_of(expression, legend), "datasource": source}
                    for at, (expression, legend) in enumerate(queries)],
    }
    if text:
        made["description"] = text
    return made


def dashboard() -> dict[str, object]:
    panels: list[dict[str, object]] = []
    top = 0
    for title, rows in ROWS:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False,
                       "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1}, "panels": []})
        top += 1
        small = rows[0][2] == "stat"
        columns, height = (6, 4) if small else (3, 7)
        for at, row in enumerate(rows):
            place = {"x": at % columns * (WIDTH // columns), "y": top + at // columns * height, "w": WIDTH // columns, "h": height}
            panels.append(panel(len(panels) + 1, row, place))
        top += -(-len(rows) // columns) * height
    source = {"type": "prometheus", "uid": "${datasource}"}
    several = {"type": "query", "datasource": source, "refresh": 2, "multi": True, "includeAll": True,
               # Not `.*`: counters of `cenote serve` have no region, and are those of an exporter again.
               "allValue": ".+", "current": {"text": "All", "value": "$__all"}}
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        several | {"name": "region", "label": "Region",
                   "query": {"query": "label_values(cenote_region_present, region)", "refId": "region"}},
        several | {"name": "instance", "label": "Instance",
                   "query": {"query": 'label_values(cenote_region_present{region=~"$region"}, instance)', "refId": "instance"}},
    ]
    return {"uid": "cenote", "title": "Cenote", "tags": ["cenote", "kv-cache"], "schemaVersion": 39, "editable": True, "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "annotations": {"list": []}, "panels": panels}


def text() -> str:
    """The file, a panel a line, so that differences between versions can be read."""
    made = dashboard()
    panels = made.pop("panels")
    assert isinstance(panels, list)
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in panels)
    head = json.dumps(made, indent=1, ensure_ascii=False)
    return f'{head[:-2]},\n "panels": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    FILE.write_text(text())
    print(f"{FILE.name}: {len(FILE.read_bytes())} bytes", file=sys.stderr)
