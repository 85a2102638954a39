"""The region, and the namespaces of a rank's parts or of all ranks'."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cenote
from cenote.attachment import Wanted
from cenote.start import peers_of, place_of
from cenote.vllm.codecs import page_codec
from cenote.vllm.digest import changed_while_loading, draft_digest, model_digest
from cenote.vllm.groups import Group, fails_by_block, groups_of, hit_alignment
from cenote.vllm.identity import check_hashes, fingerprint
from cenote.vllm.log import logger_of
from cenote.vllm.names import RequestNames
from cenote.vllm.parts import PartFacts, Share, share_of_group
from cenote.weights import Weights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from cenote.vllm.settings import Settings

logger = logger_of(__name__)

_PINS_MIN, _PINS_MAX = 1792, 7168
# Longest prompts that are loaded at the same time.
_HITS_AT_ONCE = 4

# Lines of each host's event log in a new region, if vLLM publishes KV events.
_EVENTS = 1024


def tells_events(config: VllmConfig) -> bool:
    """True if vLLM is configured to publish KV events."""
    told = config.kv_events_config
    return told is not None and told.enable_kv_cache_events


@dataclass(frozen=True)
class Part:
    """A namespace of a rank: a shard of its heads of one group."""

    group: Group
    share: Share
    at: int
    """Number of the shard among those of this rank."""
    blocks: cenote.Namespace
    encoded: bool
    """True if the region stores its blocks with a codec."""


class Shards:
    """The configured region, and namespaces in it for each KV cache group of this engine."""

    def __init__(self, config: VllmConfig, settings: Settings, kv_cache: KVCacheConfig, worker: str, asks_peers: bool) -> None:
        check_hashes(config)
        self.settings, self.config, self.num_blocks = settings, config, kv_cache.num_blocks
        self.weights = _weights(settings)
        self.names = RequestNames(config)
        self.groups: list[Group] = groups_of(config, kv_cache, self.weights, self.names)
        self.alignment = hit_alignment(config, self.groups, kv_cache)
        self.fails_by_block = fails_by_block(self.groups, kv_cache)
        self.has_all_groups = len(self.groups) == len(kv_cache.kv_cache_groups)
        self.digest, self.draft = settings.model_fingerprint, None
        if self.digest is None:
            self.digest, self.draft = model_digest(config), draft_digest(config)
            if (young := changed_while_loading(config)) is not None:
                # vLLM may have loaded the file before it changed or after.
                self.weights.doubt()
                logger.warning(
                    "Cenote: this instance shares nothing, because %s changed after the process started, possibly after it was loaded: "
                    "restart the instance, or set model_fingerprint in kv_connector_extra_config",
                    young,
                )
        # Identities behind the namespaces' fingerprints, by namespace id.
        self.identities: dict[int, bytes] = {}
        # Settings for a new region that differ from those of the existing region.
        self.ignored: list[tuple[str, str, str]] = []
        try:
            if settings.create_size is not None:
                self.ignored = self._make_region()
            # A process that does not look requests up has no use for connections to peers.
            peers = peers_of(vars(settings)) if asks_peers else {"peers": ""}
            self.region = cenote.Region.open(settings.region, worker=worker, host_slot=settings.host_slot, **place_of(vars(settings)), **peers)
        except cenote.RegionMissing as error:
            raise cenote.RegionMissing(f"kv_connector_extra_config: region: {error}; give create_size, or run `cenote pool create`") from error
        except cenote.CenoteError as error:
            raise type(error)(f"kv_connector_extra_config: region: {error}") from error

    def _make_region(self) -> list[tuple[str, str, str]]:
        wanted = Wanted.of("kv_connector_extra_config", vars(self.settings))
        try:
            return wanted.create(
                max(group.block_bytes for group in self.groups),
                pins_per_worker=self._pins(),
                events=_EVENTS if tells_events(self.config) else None,
            )
        except ValueError as error:
            text = str(error)
            raise ValueError(f"kv_connector_extra_config: {'create_' if text.startswith('size:') else ''}{text}") from error

    def _pins(self) -> int:
        """Enough pins for some prompts of `max_model_len` at once, within the limits of a region.

        The scheduler's process pins the blocks of all ranks."""
        parallel = self.config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        blocks = sum(self.config.model_config.max_model_len // group.block_tokens for group in self.groups)
        return min(max(_HITS_AT_ONCE * ranks * blocks, _PINS_MIN), _PINS_MAX)

    def parts_of(self, tp_rank: int) -> tuple[list[Part], list[PartFacts]]:
        """The namespaces of a rank, and what another process needs to open them.

        A rank without layers of a group has no part of it."""
        parts, facts = [], []
        for group in self.groups:
            if not group.pages:
                continue
            share = share_of_group(group, tp_rank, self.config.parallel_config.tensor_parallel_size, self.settings.head_shards)
            if share.count > 1 and any(page.real_bytes % (share.count * 64) for page in group.pages):
                raise ValueError(f"head_shards: pages of group {group.number} are not {share.count} parts of whole lines of 64 bytes")
            for at in range(share.count):
                fact = self._facts_of(group, share, at)
                parts.append(Part(group, share, at, self._open(fact), fact.codec is not None))
                facts.append(fact)
        return parts, facts

    def namespaces(self, facts: Iterable[PartFacts]) -> list[list[cenote.Namespace]]:
        """The namespaces of all ranks, for each group. Ranks with the same heads have the same."""
        every = {fact.identity: fact for fact in facts}
        return [[self._open(fact) for fact in every.values() if fact.group == group.number] for group in self.groups]

    def _facts_of(self, group: Group, share: Share, at: int) -> PartFacts:
        codec = page_codec(self.config, self.settings, group, share)
        identity = fingerprint(self.config, self.settings, [self.digest, self.draft], group.facts(), share.facts(at))
        model = self.config.model_config.model.rstrip("/").rsplit("/", 1)[-1]
        label = f"{model} {share.first + at}/{share.total}"
        return PartFacts(
            group=group.number,
            identity=identity,
            label=label if len(self.groups) == 1 else f"{label} group {group.number}",
            block_bytes=group.block_bytes // share.count,
            block_tokens=group.block_tokens,
            num_layers=len(group.pages),
            codec=codec,
        )

    def _open(self, facts: PartFacts) -> cenote.Namespace:
        namespace = self.region.namespace(
            facts.identity,
            facts.block_bytes,
            label=facts.label,
            block_tokens=facts.block_tokens,
            num_layers=facts.num_layers,
            codec=None if facts.codec is None else cenote.Codec(**facts.codec),
        )
        self.identities[namespace.id] = facts.identity
        return namespace


def _weights(settings: Settings) -> Weights:
    try:
        return Weights(settings.weights_version_file)
    except OSError as error:
        raise ValueError(f"kv_connector_extra_config: weights_version_file: {error}") from error
