"""Measures Cenote on a GPU: limits, saves and loads, checksums, Engram rows, and vLLM if it is installed.

Prints a report as JSON, with a verdict for each goal of docs/evidence/gpu.md; progress goes to standard
error. Without a GPU it measures what needs none, and the report says what it left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cenote
import cenote.device
from gpu import cards, goals, limits, product, rows, serving, start, sums
from gpu.report import GIB, Report, Skip, machine

PARTS = ("limits", "start", "product", "sums", "rows", "serving")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240, help="a part that does not fit is left out (240)")
    parser.add_argument("--region-gib", type=float, help="size of the region; by default 24, or half of the free shared memory")
    parser.add_argument("--json", type=Path, help="file for the report; it is written after each part")
    parser.add_argument("--only", action="append", choices=PARTS, help="only these parts")
    parser.add_argument("--engine", action="append", choices=serving.ENGINES, help="only these of vLLM's engines")
    parser.add_argument("--rehearse", metavar="LIBRARY", help="small sizes, and the tests' driver for a GPU: shows that all runs")
    arguments = parser.parse_args()
    # Exit on SIGTERM, so that `finally` blocks remove shared memory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = Report(arguments.seconds, arguments.json)
    wanted = arguments.only or PARTS
    report.add("machine", **machine())
    report.run("doctor", 5, lambda: _doctor(report))
    name, size = f"shm:cenote-bench-gpu-{os.getpid()}", _region_bytes(arguments.region_gib, arguments.rehearse is not None)
    try:
        _measure(report, name, size, wanted, arguments.rehearse)
        if "serving" in wanted:
            _serving(report, name + "-vllm", arguments.engine or serving.ENGINES, arguments.rehearse is not None)
    finally:
        for made in (name, name + "-start", name + "-vllm"):
            Path("/dev/shm", made.removeprefix("shm:")).unlink(missing_ok=True)
    verdicts = goals.verdicts(report.parts)
    print(report.write(verdicts))
    for verdict in verdicts:
        print(f"{verdict['verdict']:>12}: {verdict['goal']} ({verdict['figure']}; goal {verdict['bound']})", file=sys.stderr)
    wrong = any(not record[name] for part in report.parts.values() for record in part for name in record if name.endswith("equal"))
    return 1 if report.failed or wrong else 0


def _region_bytes(gib: float | None, is_rehearsal: bool) -> int:
    if is_rehearsal:
        return 256 << 20
    shm = os.statvfs("/dev/shm")
    return int(gib * GIB) if gib else min(24 * GIB, shm.f_bavail * shm.f_frsize // 2)


def _measure(report: Report, name: str, size: int, wanted: list[str] | tuple[str, ...], rehearse: str | None) -> None:
    """All parts but vLLM's, on one region."""
    found: list[cards.Card] = []

    def on_the_card(part: Callable[[cards.Card], None]) -> Callable[[], None]:
        def run() -> None:
            if not found:
                found.append(cards.find(rehearse))
                report.add("card", name=found[0].name)
            part(found[0])

        return run

    cenote.Region.create(name, size, chunk_size="32MiB")
    with cenote.Region.open(name, worker="bench-gpu") as region:
        if "limits" in wanted:
            report.run("link", 6, on_the_card(lambda card: limits.link(report, card)))
            report.run("page locking", 12, on_the_card(lambda card: limits.page_locking(report, card)))
        if "start" in wanted:
            report.run("start", 20, on_the_card(lambda card: start.measure(report, card, name + "-start", size)))
        if "sums" in wanted:
            report.run("sums on the GPU", 15, on_the_card(lambda card: sums.on_the_gpu(report, card)))
            in_place = min(GIB, size // 4)
            report.run("sums on the processor", 10, lambda: sums.on_the_processor(report, region, in_place))
        if "product" in wanted:
            cases = product.cases() if rehearse is None else dict.fromkeys((shape, way, 128) for shape, way, _ in product.cases())
            for shape, way, tokens in cases:
                # Both ways at once need the room of two prompts.
                needed = 2 * tokens // shape.block_tokens * shape.block
                case = f"product: {shape.model}, {tokens} tokens, {way}"
                if needed > size * 0.8:
                    report.skipped[case] = f"the region has {size / GIB:.1f} GiB, and it needs {needed / 0.8 / GIB:.1f}; see --region-gib"
                    continue
                measured = on_the_card(lambda card, of=(shape, way, tokens): product.measure(report, card, region, *of))
                report.run(case, 2 if rehearse else 8, measured)
        if "rows" in wanted:
            report.run("rows", 15, on_the_card(lambda card: rows.measure(report, card, region)))


def _serving(report: Report, region: str, engines: list[str] | tuple[str, ...], is_rehearsal: bool) -> None:
    for name in engines:

        def run(name: str = name) -> None:
            if importlib.util.find_spec("vllm") is None:
                raise Skip("vLLM is not installed")
            if not is_rehearsal:
                cards.find(None)
            elif name in ("offloading", "simple"):
                raise Skip("vLLM's own connectors need a GPU")
            serving.measure(report, name, region, is_rehearsal)

        report.run(f"vLLM, {name}", 10 if is_rehearsal else 60, run)


def _doctor(report: Report) -> None:
    command = shutil.which("cenote") or shutil.which(str(Path(sys.executable).with_name("cenote")))
    if command is None:
        raise Skip("the command cenote is not on the path")
    said = subprocess.run([command, "doctor", "--json"], capture_output=True, text=True, timeout=30, check=True)
    report.add("doctor", **json.loads(said.stdout))


if __name__ == "__main__":
    sys.exit(main())
