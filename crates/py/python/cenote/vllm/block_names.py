"""Names of a request's blocks in the namespaces of all ranks, computed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request

    import cenote
    from cenote.vllm.groups import Group


class BlockNames:
    """Names of consecutive blocks of one request and group, on every rank.

    A name is a hash of the block's key, and a request is looked up in each step until it is admitted.
    Names are taken only together with the keys that they were computed from."""

    def __init__(self, group: Group, ranks: Sequence[cenote.Namespace], request: Request) -> None:
        self.group, self.ranks, self.request = group, ranks, request
        self._first = 0
        self._keys: list[bytes] = []
        self._names: list[cenote.Hashes] = []

    def are_of(self, ranks: Sequence[cenote.Namespace], request: Request) -> bool:
        """True if the names are of this request, on these ranks."""
        return self.request is request and self.ranks is ranks

    def of(self, first: int, last: int) -> list[cenote.Hashes]:
        """Names of the blocks with `first <= block < last`, one object per rank."""
        keys = self.group.keys(self.request, first, last)
        at = self._known(first, keys)
        return [names[at : at + len(keys)] for names in self._names]

    def _known(self, first: int, keys: list[bytes]) -> int:
        """Computes what is missing of these blocks' names. Returns the place of the first."""
        end = self._first + len(self._keys)
        low, high = max(first, self._first), min(first + len(keys), end)
        same = low <= high and keys[low - first : high - first] == self._keys[low - self._first : high - self._first]
        if not self._names or not same:
            self._first, self._keys = first, keys
            self._names = [rank.alias(keys) for rank in self.ranks]
            return 0
        before, after = keys[: low - first], keys[high - first :]
        if before or after:
            self._first, self._keys = self._first - len(before), before + self._keys + after
            self._names = [
                rank.alias(before) + names + rank.alias(after) for rank, names in zip(self.ranks, self._names, strict=True)
            ]
        return first - self._first
