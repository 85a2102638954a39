"""What SGLang asks of a storage backend for its metrics."""

from __future__ import annotations

import threading

from sglang.srt.observability.metrics_collector import StorageMetrics

# Transfers that are kept if nobody asks for them.
_KEPT = 1024


class Transfers:
    """Pages and speed of each batch, since SGLang last asked."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._lock = threading.Lock()
        self._metrics = StorageMetrics()

    def loaded(self, pages: int, seconds: float) -> None:
        """Pages that were copied out of the region."""
        with self._lock:
            self._note(self._metrics.prefetch_pgs, self._metrics.prefetch_bandwidth, pages, seconds)

    def stored(self, pages: int, seconds: float) -> None:
        """Pages that are in the region now."""
        with self._lock:
            self._note(self._metrics.backup_pgs, self._metrics.backup_bandwidth, pages, seconds)

    def take(self) -> StorageMetrics:
        """What was noted, which is forgotten."""
        with self._lock:
            taken, self._metrics = self._metrics, StorageMetrics()
        return taken

    def _note(self, batches: list[int], speeds: list[float], pages: int, seconds: float) -> None:
        if pages > 0 and seconds > 0 and len(batches) < _KEPT:
            batches.append(pages)
            speeds.append(pages * self._page_bytes / seconds / 1e9)
