"""A region, and each rank's blocks in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.distributed.utils import get_pp_indices

import cenote
from cenote.vllm.codecs import page_codec
from cenote.vllm.digest import changed_while_loading, draft_digest, model_digest
from cenote.vllm.groups import Group, fails_by_block, groups_of
from cenote.vllm.identity import check_hashes, fingerprint
from cenote.vllm.log import logger_of
from cenote.vllm.names import RequestNames
from cenote.weights import Weights

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from cenote.vllm.settings import Settings

logger = logger_of(__name__)

_CHUNK_MIN, _CHUNK_MAX = 2 << 20, 512 << 20

_PINS_MIN, _PINS_MAX = 1792, 7168

# Lines of each host's event log in a region that is made here, if events are wanted.
_EVENTS = 1024


def tells_events(config: VllmConfig) -> bool:
    """Whether vLLM is to publish KV events."""
    told = config.kv_events_config
    return told is not None and told.enable_kv_cache_events


class Shards:
    """The region that the settings name, and the namespaces of this engine's ranks, one for each KV cache group."""

    def __init__(self, config: VllmConfig, settings: Settings, kv_cache: KVCacheConfig, worker: str) -> None:
        check_hashes(config)
        self.settings, self.config = settings, config
        self.weights = _weights(settings)
        self.names = RequestNames(config)
        self.groups: list[Group] = groups_of(config, kv_cache, self.weights, self.names)
        self.fails_by_block = fails_by_block(self.groups)
        if settings.load == "layers" and not self.fails_by_block:
            raise ValueError(
                "kv_connector_extra_config: load is layers, and of a model with sliding windows vLLM cannot take a step back "
                "whose blocks turn out to be damaged; leave it async"
            )
        _check_steps(config, settings)
        self.digest, self.draft = settings.model_fingerprint, None
        if self.digest is None:
            self.digest, self.draft = model_digest(config), draft_digest(config)
            if (young := changed_while_loading(config)) is not None:
                # vLLM may have loaded the file before it changed or after.
                self.weights.doubt()
                logger.warning(
                    "Cenote: this instance shares nothing, because %s has changed since its process began, maybe after it was loaded: "
                    "start it anew, or give kv_connector_extra_config a model_fingerprint",
                    young,
                )
        # What the namespaces' fingerprints are of, by the namespaces' numbers.
        self.identities: dict[int, bytes] = {}
        # Settings of a new region that an existing one does not have.
        self.ignored: list[tuple[str, str, str]] = []
        try:
            if settings.create_size is not None:
                self.ignored = self._make_region(settings.create_size)
            self.region = cenote.Region.open(settings.region, worker=worker, host_slot=settings.host_slot)
        except cenote.RegionMissing as error:
            raise cenote.RegionMissing(f"kv_connector_extra_config: region: {error}; give create_size, or run `cenote pool create`") from error
        except cenote.CenoteError as error:
            raise type(error)(f"kv_connector_extra_config: region: {error}") from error

    def _make_region(self, size: str) -> list[tuple[str, str, str]]:
        settings = self.settings
        chunk = settings.chunk_size or _chunk_for(max(group.page_bytes * len(group.layer_names) for group in self.groups))
        try:
            return cenote.Region.create(
                settings.region,
                size,
                chunk_size=chunk,
                mode=int(settings.mode, 8) if settings.mode is not None else None,
                eviction=settings.eviction,
                pins_per_worker=self._pins(),
                exist_ok=True,
                events=_EVENTS if tells_events(self.config) else None,
            )
        except ValueError as error:
            text = str(error)
            raise ValueError(f"kv_connector_extra_config: {'create_' if text.startswith('size:') else ''}{text}") from error

    def _pins(self) -> int:
        """So many that a prompt of any length can be promised, if a region can have as many: the scheduler pins all ranks'."""
        parallel = self.config.parallel_config
        ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        blocks = sum(self.config.model_config.max_model_len // group.block_tokens for group in self.groups)
        return min(max(ranks * blocks, _PINS_MIN), _PINS_MAX)

    def rank(self, group: Group, tp_rank: int, pp_rank: int) -> cenote.Namespace:
        """One rank's blocks of a group."""
        layers = self._layers_of(group, pp_rank)
        facts = group.facts()
        if self.config.parallel_config.pipeline_parallel_size == 1:
            # Each stage knows only its own ones.
            facts["layers"] = list(group.layer_names)
        identity = fingerprint(self.config, self.settings, [self.digest, self.draft], facts, tp_rank, pp_rank)
        label = f"{self.config.model_config.model.rstrip('/').rsplit('/', 1)[-1]} {tp_rank}.{pp_rank}"
        namespace = self.region.namespace(
            identity,
            group.page_bytes * layers,
            label=label if len(self.groups) == 1 else f"{label} group {group.number}",
            block_tokens=group.block_tokens,
            num_layers=layers,
            codec=page_codec(self.config, self.settings, group.spec, layers),
        )
        self.identities[namespace.id] = identity
        return namespace

    def all_ranks(self, group: Group) -> list[cenote.Namespace]:
        """Every rank's blocks of a group."""
        parallel = self.config.parallel_config
        return [
            self.rank(group, tp_rank, pp_rank)
            for pp_rank in range(parallel.pipeline_parallel_size)
            for tp_rank in range(parallel.tensor_parallel_size)
        ]

    def _layers_of(self, group: Group, pp_rank: int) -> int:
        size = self.config.parallel_config.pipeline_parallel_size
        if size == 1:
            return len(group.layer_names)
        start, end = get_pp_indices(self.config.model_config.get_total_num_hidden_layers(), pp_rank, size)
        return end - start


def _check_steps(config: VllmConfig, settings: Settings) -> None:
    """Refuses loads by layer where more computes from a block that turns out to be damaged than the step of the rank that sees
    it: what that has computed cannot be kept from being saved."""
    ranks = config.parallel_config.world_size
    why = "async scheduling, which begins a step before the one before it has ended" if config.scheduler_config.async_scheduling else None
    if ranks > 1:
        why = f"{ranks} ranks, of which the others would not see it"
    if settings.load == "layers" and why is not None:
        raise ValueError(
            "kv_connector_extra_config: load is layers, and a block that turns out to be damaged would be computed from beyond its "
            f"step and its rank, because this engine has {why}; leave it async"
        )


def _weights(settings: Settings) -> Weights:
    try:
        return Weights(settings.weights_version_file)
    except OSError as error:
        raise ValueError(f"kv_connector_extra_config: weights_version_file: {error}") from error


def _chunk_for(block_bytes: int) -> int:
    chunk = _CHUNK_MIN
    while chunk < min(4 * block_bytes, _CHUNK_MAX):
        chunk *= 2
    if block_bytes > chunk:
        raise ValueError(f"a block of this model takes {block_bytes} bytes, more than a region can hold; use a smaller --block-size")
    return chunk
