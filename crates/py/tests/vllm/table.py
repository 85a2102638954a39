"""Writes the table of models and versions into the guide, from the results of the tests.

    python table.py GUIDE 0.32=RESULTS.xml …     (`cargo xtask vllm --versions` runs it)
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

from families import FAMILIES

BEGIN, END = "<!-- generated: families -->", "<!-- end -->"
# Models that do not run on processors, and their groups (`test_parts.py`).
REPLAYED = [
    ("DeepSeek-V4", "compressed MLA, its index, windows of latents", "deepseek_v4"),
    ("GLM-5-next", "MLA and its index, of different sizes", "glm_5_next"),
    ("Kimi-K3", "linear attention (KDA), MLA", "kimi_k3"),
    ("Qwen4-exp", "gated delta net, full, convolution of n-grams", "qwen4_exp"),
]


def outcomes(results: Path) -> dict[str, str]:
    """By the name of a test: `passed`, `failed`, or why it was skipped."""
    found = {}
    for case in xml.parse(results).getroot().iter("testcase"):
        said = "passed"
        for part in case:
            if part.tag in ("failure", "error"):
                said = "failed"
            elif part.tag == "skipped":
                said = part.get("message", "skipped")
        found[case.get("name", "")] = said
    return found


def row(name: str, groups: str, how: str, test: str, versions: dict[str, dict[str, str]]) -> str:
    cells = []
    for found in versions.values():
        said = found.get(test, "not run")
        cells.append(how if said == "passed" else "**failed**" if said == "failed" else said)
    return f"| {name} | {groups} | {' | '.join(cells)} |"


def table(versions: dict[str, dict[str, str]]) -> str:
    lines = [f"| family | KV cache groups | {' | '.join(f'vLLM {version}' for version in versions)} |", "|---" * (2 + len(versions)) + "|"]
    lines += [
        row(one.name, one.groups, "run", f"test_a_hit_gives_the_tokens_of_no_cache[{one.name}]", versions) for one in FAMILIES
    ]
    replay = "test_models_that_cannot_run_here_are_shared_byte_for_byte"
    lines += [row(name, groups, "replay", f"{replay}[{test}]", versions) for name, groups, test in REPLAYED]
    return "\n".join(lines)


def main(guide: str, *results: str) -> None:
    versions = {version: outcomes(Path(file)) for version, file in (each.split("=", 1) for each in results)}
    text = Path(guide).read_text()
    written, count = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{table(versions)}\n{END}", text, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{guide}: {BEGIN} is there {count} times")
    Path(guide).write_text(written)


if __name__ == "__main__":
    main(*sys.argv[1:])
