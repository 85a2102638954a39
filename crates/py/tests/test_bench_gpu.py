"""The script that measures a GPU: without one it measures the rest, and its verdicts are those of the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[3] / "bench/gpu"
sys.path.append(str(BENCH))

from gpu import goals, product  # noqa: E402


def regions() -> set[Path]:
    return set(Path("/dev/shm").glob("cenote-bench-gpu-*"))


def test_without_a_gpu_the_script_says_what_it_left_out_and_why(tmp_path: Path) -> None:
    file, before = tmp_path / "gpu.json", regions()
    command = [sys.executable, "-m", "gpu", "--region-gib", "0.125", "--only", "sums", "--only", "product", "--only", "limits", "--json", file]
    ran = subprocess.run(command, cwd=BENCH, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert json.loads(file.read_text()) == report
    assert report["failed"] == {}
    assert {record["threads"] for record in report["parts"]["sums"] if record["what"] == "verify" and record["equal"]} == {1, 2, 4}
    left_out = report["skipped"]
    cases = [f"product: {shape.model}, {tokens} tokens, {way}" for shape, way, tokens in product.cases()]
    assert set(cases) | {"link", "page locking", "sums on the GPU"} <= left_out.keys()
    assert all(left_out[name] for name in cases)
    assert {goal["verdict"] for goal in report["goals"]} == {"not measured"}
    assert regions() == before, "the script removes its regions"


def record(**of: Any) -> dict[str, Any]:
    return {"way": "direct", "tokens": 8192, "of_limit": 0.9, "cpu_ms_per_GiB": 3.0, "equal": True} | of


def verdicts(**parts: list[dict[str, Any]]) -> dict[str, tuple[float | None, str]]:
    return {goal["goal"]: (goal["figure"], goal["verdict"]) for goal in goals.verdicts(parts)}


def test_the_worst_figure_decides() -> None:
    both = [record(what="both", of_limit=0.84), record(what="both")]
    found = verdicts(product=[record(what="load"), record(what="load", of_limit=0.86), record(what="save", cpu_ms_per_GiB=5.1), *both])
    assert found["load of 8192 tokens, share of the link"] == (0.86, "reached")
    assert found["load of 32768 tokens, share of the link"] == (None, "not measured")
    assert found["both ways at once, share of the link"] == (0.84, "missed")
    assert found["processor time of a GiB, ms"] == (5.1, "missed")
    assert found["comparisons that found other bytes"] == (0.0, "reached")
    wrong = verdicts(product=[record(what="load", equal=False)], sums=[{"sums_equal": False}])
    assert wrong["comparisons that found other bytes"] == (2.0, "missed")


def test_a_rehearsal_reaches_no_goal() -> None:
    found = verdicts(product=[record(what=what, of_limit=None) for what in ("load", "save", "both")])
    assert {verdict for _, verdict in found.values()} == {"not measured"}


def test_serving_is_compared_with_the_best_run_of_each_engine() -> None:
    hits = [{"engine": engine, "tokens": 2048, "hit_ms": ms} for engine, ms in (("cenote", 30.0), ("cenote", 19.0), ("offloading", 20.0))]
    decode = [{"engine": "none", "sequences": 32, "ms_per_token": 6.0}, {"engine": "cenote", "sequences": 32, "ms_per_token": 6.3}]
    found = verdicts(serving=[*hits, *decode, {"engine": "cenote", "longest_step_ms": 55.0}])
    assert found["first token of a hit of 2048 tokens, of OffloadingConnector's"] == (0.95, "reached")
    assert found["first token of a hit of 8192 tokens, of OffloadingConnector's"] == (None, "not measured")
    assert found["decode of 32 sequences, time of a token, of no connector's"] == (1.05, "missed")
    assert found["longest step of others during a hit of 16384 tokens, ms"] == (55.0, "reached")
