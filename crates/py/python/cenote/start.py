"""The line that a connector logs about its region when it starts, and the warning when the region is of no use to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import cenote

# Digits of a fingerprint, as `cenote pool info` prints it.
_DIGITS = 12
_NAMED_MAX = 4


def log_start(region: cenote.Region, namespaces: Sequence[cenote.Namespace], logger: logging.Logger) -> None:
    """Logs what the region holds, and what of it is for these namespaces. Walks the region's descriptors once."""
    info = region.info()
    ids = {namespace.id for namespace in namespaces}
    own = [row for row in info["namespaces"] if row["id"] in ids]
    others = sum(row["id"] not in ids and row["blocks"] > 0 for row in info["namespaces"])
    fingerprints = [row["fingerprint"][:_DIGITS] for row in own]
    named = ", ".join(fingerprints[:_NAMED_MAX])
    if len(fingerprints) > _NAMED_MAX:
        named += f" and {len(fingerprints) - _NAMED_MAX} more"
    word = "fingerprint" if len(fingerprints) == 1 else "fingerprints"
    blocks, usable = info["blocks_ready"], sum(row["blocks"] for row in own)
    logger.info(
        "Cenote: region %s has %s and holds %d blocks, %d of them for this engine (%s %s)",
        region.name, _bytes(info["region_bytes"]), blocks, usable, word, named,
    )  # fmt: skip
    if blocks > 0 and usable == 0:
        logger.warning(
            "Cenote: region %s holds %d blocks of %d other fingerprints and none for this engine, so that nothing will hit until it has "
            "saved blocks itself: `cenote pool info --region %s` lists the fingerprints",
            region.name, blocks, others, region.name,
        )  # fmt: skip


def _bytes(count: int) -> str:
    """A size, as `cenote pool info` prints it."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value % 1 else f"{value:.0f} {unit}"
