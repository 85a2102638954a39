"""Measures Cenote and its rivals, prints tables, writes JSON."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peers import blocks, serving, split, stores
from peers.processes import Unable
from peers.report import Series, machine, micro, table

# Goals: speedups of get and lookup over rivals, and CPU of a second process relative to a prefill.
GET_TIMES, LOOKUP_TIMES, PREFILL_SHARE = 4, 20, 1 / 12
# Goal: milliseconds of a hit of 2,000 tokens beyond one in vLLM's own cache.
HIT_SHARE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="cargo xtask peers", description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--missing", action="append", default=[], metavar="NAME=REASON", help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["blocks", "serving", "split"], help="measure only one of the parts")
    parser.add_argument("--proxy", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds of the data plane (9)")
    parser.add_argument("--serving-rounds", type=int, default=3, help="measured rounds with vLLM (3)")
    parser.add_argument("--prompts", type=int, default=3, help="prompts per round with vLLM (3)")
    parser.add_argument("--json", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    arguments.packages = arguments.packages.resolve()
    # Exit on SIGTERM, so that `finally` blocks end servers and remove shared memory.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    missing = dict(reason.split("=", 1) for reason in arguments.missing)
    report: dict[str, Any] = {"before": machine()}
    try:
        if arguments.only in (None, "blocks"):
            report["blocks"] = _blocks(arguments.packages, arguments.rounds, missing)
        if arguments.only in (None, "serving"):
            report["serving"] = _serving(arguments.packages, arguments.serving_rounds, arguments.prompts, missing)
        if arguments.only in (None, "split"):
            report["split"] = _split(arguments.serving_rounds, arguments.proxy.resolve())
    except Unable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    report["after"] = machine()
    facts = report["before"]
    print(f"\n{facts['processor']}, {facts['cores']} cores, Python {facts['python']}; load average "
          f"{facts['load_average'][0]} before, {report['after']['load_average'][0]} after")  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
        print(f"written to {arguments.json}", file=sys.stderr)
    return 0


def _blocks(packages: Path, rounds: int, missing: dict[str, str]) -> dict[str, Any]:
    failed = {name: missing[name] for name in ("Redis", "Mooncake Store") if name in missing}
    taking_part: list[stores.Store] = [stores.Plain(), stores.Cenote()]
    if "Redis" not in failed:
        taking_part.append(stores.Redis(packages / "redis"))
    if "Mooncake Store" not in failed:
        taking_part.append(stores.Mooncake(packages / "mooncake"))
    about = {}
    taken = blocks.measure(taking_part, rounds, failed, about)
    plain = ("shared memory", "")
    print(f"\nBlocks of 1 MiB between two processes, {stores.BLOCKS} a round, medians of {rounds} rounds; contents compared.\n")
    headings = [
        "store", "put us", "put CPU us", "get us", "get CPU us", f"get, {stores.BLOCKS} in one call us", "its CPU us",
        "get, of a copy", "in place, not verified, us",
    ]  # fmt: skip
    rows = []
    for key, get in taken["get"].items():
        put, all_, place = (taken[what].get(key) for what in ("put", "get all", "in place"))
        assert put is not None
        assert all_ is not None
        rows.append([
            get.name, micro(put.wall), micro(put.cpu), micro(get.wall), micro(get.cpu), micro(all_.wall), micro(all_.cpu),
            f"{get.times(taken['get'][plain]):.1f} x", micro(place.wall) if place else "-",
        ])  # fmt: skip
    print(table(headings, rows + _absent(failed, len(headings))))
    print("\nPer block. CPU: of the client and of servers. Of a copy: relative to a copy out of plain shared memory, in the same round.")
    print(f"\nWhich of {stores.BLOCKS} blocks are present, asked from Python:\n")
    lookups = list(taken["lookup"].values())
    ours = taken["lookup"][("Cenote", "lookup, pinned and given back")]
    rows = [[one.name, micro(one.wall), micro(one.cpu), f"{one.times(ours):.1f} x"] for one in lookups]
    headings = ["question", "us", "CPU us", "of Cenote's lookup"]
    print(table(headings, rows + _absent(failed, len(headings))))
    print()
    for store in taking_part:
        if store.name in about:
            print(f"{store.name}: {about[store.name]}")
    _reasons(failed)
    goals = _block_goals(taken)
    print("\n" + "\n".join(goals))
    return {
        "taken": {what: [dataclasses.asdict(one) for one in series.values()] for what, series in taken.items()},
        "failed": failed, "about": about, "goals": goals,
    }  # fmt: skip


def _block_goals(taken: dict[str, dict[tuple[str, str], Series]]) -> list[str]:
    """Goals of Cenote against the best mode of each rival."""
    goals = []
    for what, said in (("get", "get, a block a call"), ("get all", f"get, {stores.BLOCKS} blocks a call")):
        for rival in dict.fromkeys(name for name, _ in taken[what]):
            ways = [one for (name, _), one in taken[what].items() if name == rival]
            if rival not in ("Cenote", "shared memory"):
                best = min(ways, key=lambda one: statistics.median(one.wall))
                goals.append(_goal(f"{said}: Cenote against {best.name}", best.times(taken[what][("Cenote", "")]), GET_TIMES))
    for (rival, way), one in taken["lookup"].items():
        if "pipelined" in way:
            for ours in ("lookup, pinned and given back", "names hashed, lookup, pinned and given back"):
                times = one.times(taken["lookup"][("Cenote", ours)])
                goals.append(_goal(f"{ours}: Cenote against {rival}'s pipelined EXISTS", times, LOOKUP_TIMES))
    return goals


def _goal(what: str, times: float, wanted: float) -> str:
    return f"{what}: {times:.1f} x as fast (goal {wanted:.0f} x: {'reached' if times >= wanted else 'MISSED'})"


def _serving(packages: Path, rounds: int, prompts: int, missing: dict[str, str]) -> dict[str, Any]:
    failed = {name: missing[name] for name in ("LMCache",) if name in missing}
    taken = serving.measure(packages / "lmcache", rounds, prompts, failed)
    print(f"\nvLLM, {serving.TOKENS} tokens per prompt, {rounds * prompts} prompts: time to the first token in the process "
          "that computes and saves, and in a later process. Medians.\n")  # fmt: skip
    headings = [
        "connector", "first: wall ms", "CPU ms", "second: wall ms", "CPU ms", "of it server", "hit tokens",
        "second CPU / no connector",
    ]  # fmt: skip
    cold = _median([answer.cpu for answer in taken["no connector"].first])
    rows = []
    for name, run in taken.items():
        first, second = run.first, run.second
        rows.append([
            name, _milli(first, lambda one: one.wall), _milli(first, lambda one: one.cpu), _milli(second, lambda one: one.wall),
            _milli(second, lambda one: one.cpu), _milli(second, lambda one: one.server_cpu),
            str(min(one.hit_tokens for one in second)) if second else "-",
            f"1 / {cold / _median([one.cpu for one in second]):.1f}" if second else "-",
        ])  # fmt: skip
    print(table(headings, rows + _absent(failed, len(headings))))
    print(f"\nAll gave the same {1 + serving.MORE} tokens. Hit tokens: the fewest of any prompt.\n")
    for name, run in taken.items():
        print(f"{name}: {run.about}")
    _reasons(failed)
    goals = _hits(taken)
    if "Cenote" in taken:
        ours = _median([answer.cpu for answer in taken["Cenote"].second])
        share = cold / ours
        goals.append(_goal("CPU of the first token in the second process: Cenote against computing it", share, 1 / PREFILL_SHARE))
        for name, run in taken.items():
            if name.startswith("LMCache"):
                goals.append(_goal(f"the same: Cenote against {name}", _median([answer.cpu for answer in run.second]) / ours, 1))
    print("\n" + "\n".join(goals))
    return {"taken": {name: dataclasses.asdict(run) for name, run in taken.items()}, "failed": failed, "goals": goals}


def _hits(taken: dict[str, serving.Taken]) -> list[str]:
    """Prints where the time of a hit goes. Returns the goals for Cenote's share."""
    print("\nWhere the time of a hit goes, wall ms, medians. Own cache: the same prompt in the same process, out of vLLM's cache.\n")
    found = {name: run.second for name, run in taken.items() if run.second and run.second[0].parts}
    names = list(dict.fromkeys(part for answers in found.values() for one in answers for part in one.parts))
    rows = []
    for name, answers in found.items():
        # Copies run beside the engine, so they are in no sum.
        called = [sum(spent for part, spent in one.parts.items() if part != serving.COPIES) for one in answers]
        rest = [one.wall - one.local - inside for one, inside in zip(answers, called, strict=True)]
        rows.append([
            name, _milli(answers, lambda one: one.wall), _milli(answers, lambda one: one.local),
            *(f"{1000 * _median([one.parts.get(part, 0.0) for one in answers]):.2f}" for part in names), f"{1000 * _median(rest):.1f}",
        ])  # fmt: skip
    print(table(["connector", "hit", "own cache", *names, "further steps of vLLM"], rows))
    goals = []
    for name, run in taken.items():
        if name == "Cenote":
            share = 1000 * _median([one.wall - one.local for one in run.second])
            word = "reached" if share <= HIT_SHARE else "MISSED"
            goals.append(f"{name}: a hit takes {share:.1f} ms more than one in vLLM's own cache (goal {HIT_SHARE} ms: {word})")
    return goals


def _split(rounds: int, proxy: Path) -> dict[str, Any]:
    ways = split.measure(rounds, proxy)
    print(f"\nvLLM, {split.REQUESTS} requests a round, {rounds} rounds, each of {split.TOKENS} tokens and {split.ANSWER} tokens of answer, "
          f"one every {split.PERIOD} times of a prompt.\n")  # fmt: skip
    headings = ["way", "first token, median ms", "90 % ms", "between tokens, median ms", "90 % ms", "99 % ms", "all of a round s"]
    rows = [
        [
            name, *(f"{1000 * split.part(way.first, percent):.0f}" for percent in (50, 90)),
            *(f"{1000 * split.part(way.between, percent):.1f}" for percent in (50, 90, 99)), f"{_median(way.whole):.1f}",
        ]
        for name, way in ways.items()
    ]  # fmt: skip
    print(table(headings, rows) + "\n")
    for name, way in ways.items():
        print(f"{name}: {way.about}")
    return {name: dataclasses.asdict(way) for name, way in ways.items()}


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _milli(answers: Sequence[serving.Answer], what: Callable[[serving.Answer], float]) -> str:
    return f"{1000 * _median([what(answer) for answer in answers]):.1f}" if answers else "-"


def _absent(failed: dict[str, str], columns: int) -> list[list[str]]:
    """Table rows of rivals without figures."""
    return [[name, "NOT MEASURED", *["-"] * (columns - 2)] for name in failed]


def _reasons(failed: dict[str, str]) -> None:
    for name, reason in failed.items():
        print(f"{name} was NOT MEASURED: {reason}")


if __name__ == "__main__":
    sys.exit(main())
