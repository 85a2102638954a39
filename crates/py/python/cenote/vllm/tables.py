"""Which tables of a region an engine reads: the setting `CENOTE_ENGRAM`, and the tables' digests."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub

import cenote
from cenote import engram
from cenote.model_files import digest_of_tokenizer

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

VARIABLE = "CENOTE_ENGRAM"

@dataclass(frozen=True)
class Settings:
    """The content of `CENOTE_ENGRAM`: a region's name, or a JSON object."""

    region: str
    tables: str = ""
    """Tables are named `TABLES.L<layer>`; by default as `cenote engram load --model` names them."""
    verify: bool = True
    """Reads and checks each table when the engine starts."""
    compare: bool = True
    """Compares the rows that this rank reads with those of the checkpoint, while vLLM loads it."""
    threads: int = 4
    """Threads of an engine that gathers on the processor."""
    host_slot: int = 0
    """Number of this machine among the machines that share the region."""
    layers: dict[str, str] = field(default_factory=dict)
    """Names of tables by layer, instead of `tables`."""

    @classmethod
    def of(cls, text: str) -> Settings:
        """Reads the setting. Raises ValueError for what it cannot mean."""
        if not text.lstrip().startswith("{"):
            return cls(text.strip())
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{VARIABLE}: {error}") from error
        known = {known.name: known for known in fields(cls)}
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(f"{VARIABLE}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if not given.get("region"):
            raise ValueError(f'{VARIABLE}: no region is given; give {{"region": "shm:NAME"}}')
        for name, value in given.items():
            kind = {"verify": bool, "compare": bool, "threads": int, "host_slot": int, "layers": dict}.get(name, str)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise ValueError(f"{VARIABLE}: {name} is {value!r}; give a {kind.__name__}")
        return cls(**given)

    def name_of(self, layer: int, model: str) -> str:
        """The name of a layer's table."""
        if (name := self.layers.get(str(layer))) is not None:
            return name
        return f"{self.tables or engram.default_name(_folder_of(model))}.L{layer}"


def _folder_of(model: str) -> Path:
    """The folder that vLLM loads a model from, if it is on this machine."""
    if not Path(model).is_dir():
        try:
            return Path(huggingface_hub.snapshot_download(model, local_files_only=True, ignore_patterns="*"))
        except (OSError, ValueError):
            pass
    return Path(model)


def settings() -> Settings | None:
    """The setting of this process; None: its engine keeps tables of its own."""
    text = os.environ.get(VARIABLE)
    return Settings.of(text) if text else None


def layers_of(config: VllmConfig) -> list[int]:
    """Layers with tables, as the model's configuration counts them."""
    model = config.model_config.hf_text_config
    if listed := getattr(model, "engram_layer_ids", None):
        return [int(layer) for layer in listed]
    return sorted({int(layer) for layer in getattr(model, "ple_layer_ids", None) or ()})


class Opened:
    """A region and its tables in one process. Modules of a model share it."""

    def __init__(self, given: Settings) -> None:
        self.settings = given
        self._lock = threading.Lock()
        self._tables: dict[str, cenote.Table] = {}
        try:
            self.region = cenote.Region.open(given.region, worker="vllm-engram", host_slot=given.host_slot, peers="")
        except cenote.CenoteError as error:
            raise type(error)(f"{VARIABLE}: {error}") from error

    def table(self, name: str) -> cenote.Table:
        """Opens a table once. Raises CenoteError if it is missing or damaged."""
        with self._lock:
            if name not in self._tables:
                try:
                    table = engram.Table(self.region, name, verify=self.settings.verify, threads=self.settings.threads)
                except cenote.CenoteError as error:
                    raise type(error)(f"{VARIABLE}: {error}") from error
                self._tables[name] = table
            return self._tables[name]

    def digest(self, name: str) -> str:
        """The digest of a table that is open, or of the region's table of this name."""
        with self._lock:
            if name in self._tables:
                return self._tables[name].digest
        for row in engram.tables(self.region):
            if row["name"] == name and row["state"] == "sealed":
                return str(row["digest"])
        raise ValueError(f"{VARIABLE}: the region {self.region.name} has no table {name}; `cenote engram load` makes it")


# By process, because a forked child cannot use its parent's, and by setting.
_opened: dict[tuple[int, str], Opened] = {}
_opening = threading.Lock()


def opened_of(given: Settings) -> Opened:
    """The region of these settings, opened once in a process."""
    key = os.getpid(), json.dumps(dataclasses.asdict(given), sort_keys=True)
    with _opening:
        if key not in _opened:
            _opened[key] = Opened(given)
        return _opened[key]


def facts(config: VllmConfig) -> dict[str, Any]:
    """What a namespace's name must cover of n-gram tables, besides the model's files.

    - The texts of the tokens, if they decide which rows a model reads.
    - The digest of each table that the engine reads from a region (`CENOTE_ENGRAM`)."""
    found: dict[str, Any] = {}
    if getattr(config.model_config.hf_text_config, "engram_layer_ids", None):
        found["tokenizer"] = _tokenizer(config.model_config)
    given = settings()
    layers = layers_of(config) if given is not None else []
    if given is not None and layers:
        names = {layer: given.name_of(layer, config.model_config.model) for layer in layers}
        tables = opened_of(given)
        found["tables"] = {str(layer): tables.digest(name) for layer, name in names.items()}
    return found


def _tokenizer(model: ModelConfig) -> str:
    """A digest of the tokenizer that vLLM reads. Raises ValueError if it is not on this machine."""
    place = Path(str(model.tokenizer))
    if not place.is_dir():
        try:
            found = huggingface_hub.snapshot_download(
                str(model.tokenizer), revision=model.tokenizer_revision, local_files_only=True, ignore_patterns="*"
            )
        except (OSError, ValueError) as error:
            raise ValueError(f"the rows of this model's n-gram tables depend on its tokenizer, and {place} is not in the hub's cache") from error
        place = Path(found)
    return digest_of_tokenizer(place)
