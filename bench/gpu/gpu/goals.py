"""The goals, and a verdict on each from a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Records = dict[str, list[dict[str, Any]]]

# Tokens of a hit in vLLM, whose time to the first token is compared with OffloadingConnector's.
LENGTHS = (2048, 8192, 16384, 32768)


def verdicts(parts: Records) -> list[dict[str, Any]]:
    """For each goal its bound, the figure of this run and `reached`, `missed` or `not measured`."""
    return [_verdict(*goal) for goal in _goals(parts)]


def _verdict(name: str, bound: float, is_enough: Callable[[float, float], bool], figures: list[float | None]) -> dict[str, Any]:
    known = [figure for figure in figures if figure is not None]
    if not figures or len(known) < len(figures):
        return {"goal": name, "bound": bound, "figure": None, "verdict": "not measured"}
    # The figure that is farthest from the goal.
    worst = min(known) if is_enough(bound + 1, bound) else max(known)
    return {"goal": name, "bound": bound, "figure": worst, "verdict": "reached" if is_enough(worst, bound) else "missed"}


def _at_least(figure: float, bound: float) -> bool:
    return figure >= bound


def _at_most(figure: float, bound: float) -> bool:
    return figure <= bound


def _goals(parts: Records) -> Iterator[tuple[str, float, Callable[[float, float], bool], list[float | None]]]:
    direct = [record for record in parts.get("product", []) if record["way"] == "direct"]
    for what in ("load", "save"):
        for tokens, bound in ((8192, 0.85), (32768, 0.92)):
            of = [record["of_limit"] for record in direct if record["what"] == what and record["tokens"] == tokens]
            yield f"{what} of {tokens} tokens, share of the link", bound, _at_least, of
    yield "both ways at once, share of the link", 0.85, _at_least, [one["of_limit"] for one in direct if one["what"] == "both"]
    # A share of the link is missing where the figures are of no GPU.
    real = [record for record in direct if record["of_limit"] is not None]
    yield "processor time of a GiB, ms", 5.0, _at_most, [record["cpu_ms_per_GiB"] for record in real if record["what"] != "both"]
    yield "first prompt saved and loaded after the start, s", 2.0, _at_most, [one["served_s"] for one in parts.get("start", []) if real]
    compared = [record for part in parts.values() for record in part for name in record if name.endswith("equal")]
    wrong = sum(not record[name] for record in compared for name in record if name.endswith("equal"))
    yield "comparisons that found other bytes", 0.0, _at_most, [float(wrong)] if real else []
    yield from _goals_of_serving(parts.get("serving", []))


def _goals_of_serving(records: list[dict[str, Any]]) -> Iterator[tuple[str, float, Callable[[float, float], bool], list[float | None]]]:
    def figure(engine: str, what: str, **of: Any) -> float | None:
        wanted = {"engine": engine, **of}
        found = [record[what] for record in records if what in record and all(record.get(name) == value for name, value in wanted.items())]
        return min(found) if found else None

    for length in LENGTHS:
        ours, theirs = (figure(engine, "hit_ms", tokens=length) for engine in ("cenote", "offloading"))
        yield f"first token of a hit of {length} tokens, of OffloadingConnector's", 1.0, _at_most, [ours and theirs and round(ours / theirs, 3)]
    ours, alone = (figure(engine, "ms_per_token") for engine in ("cenote", "none"))
    yield "decode of 32 sequences, time of a token, of no connector's", 1.02, _at_most, [ours and alone and round(ours / alone, 3)]
    yield "longest step of others during a hit of 16384 tokens, ms", 60.0, _at_most, [figure("cenote", "longest_step_ms")]
