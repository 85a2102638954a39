"""What a connector does with its region at start: log lines, and the place of its threads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import cenote

_logger = logging.getLogger(__name__)

# Digits of a fingerprint, as `cenote pool info` prints it.
_DIGITS = 12
_NAMED_MAX = 4


def log_start(region: str, info: Mapping[str, Any], namespaces: Iterable[int], logger: logging.Logger) -> None:
    """Logs the content of a region, and the part for the namespaces with these ids.

    `info` is `Region.info`. Warns if the region has blocks but none for these namespaces."""
    ids = set(namespaces)
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
        region, _bytes(info["region_bytes"]), blocks, usable, word, named,
    )  # fmt: skip
    if blocks > 0 and usable == 0:
        logger.warning(
            "Cenote: region %s holds %d blocks of %d other fingerprints and none for this engine, so lookups miss until the engine has "
            "saved blocks: `cenote pool diff --region %s %s` names the facts that differ",
            region, blocks, others, region, fingerprints[0] if fingerprints else "",
        )  # fmt: skip


def place_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The connector settings that `Region.create` and `Region.open` both take: the cold tier and the seal."""
    return {name: settings.get(name) for name in ("cold", "seal", "seal_key_file")}


def peers_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The connector settings of other hosts' regions, by argument of `Region.open`."""
    return {name: settings.get(name) for name in ("peers", "peer_key_file", "nixl")}


# Connector settings for the creation of a region, by argument of `Region.create`.
_OF_NEW = {"size": "create_size", "chunk_size": "chunk_size", "mode": "mode", "eviction": "eviction"}


def given_of_new(settings: Mapping[str, Any]) -> dict[str, str]:
    """The names of the given creation settings, by argument of `Region.create`."""
    return {argument: name for argument, name in _OF_NEW.items() if settings.get(name) is not None}


def log_ignored(region: str, differences: Sequence[tuple[str, str, str]], given: Mapping[str, str], logger: logging.Logger) -> None:
    """Logs the creation settings that have no effect because the region exists.

    `differences` are from `Region.create`; `given` are from `given_of_new`."""
    said = [f"{given[name]} is {wanted}, and the region has {actual}" for name, wanted, actual in differences if name in given]
    if said:
        logger.warning(
            "Cenote: region %s already exists, so these settings have no effect: %s. Leave them out, or recreate the region: "
            "`cenote pool destroy --region %s` removes it with its blocks",
            region, "; ".join(said), region,
        )  # fmt: skip


def _bytes(count: int) -> str:
    """A size in the format of `cenote pool info`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}" if value % 1 else f"{value:.0f} {unit}"


# Nodes of the threads so far; None: a thread stayed where it was.
_nodes: set[int | None] = set()


def place_thread(region: cenote.Region) -> None:
    """Binds the calling thread near the region's memory. Logs each node once."""
    node = region.bind_thread()
    if node in _nodes:
        return
    _nodes.add(node)
    if node is None:
        _logger.debug("Cenote: threads are not bound to a NUMA node")
    else:
        _logger.info("Cenote: threads are bound to the region's NUMA node %d", node)
