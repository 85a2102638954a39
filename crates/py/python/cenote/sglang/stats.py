"""Metrics of the storage backend for SGLang."""

from __future__ import annotations

import threading

from sglang.srt.observability.metrics_collector import StorageMetrics

# Most batches kept between two calls of `take`.
_KEPT = 1024


class Transfers:
    """Pages and speed (GB/s) of each batch since the last call of `take`."""

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._lock = threading.Lock()
        self._metrics = StorageMetrics()

    def loaded(self, pages: int, seconds: float) -> None:
        """Records a batch of pages copied out of the region."""
        with self._lock:
            self._note(self._metrics.prefetch_pgs, self._metrics.prefetch_bandwidth, pages, seconds)

    def stored(self, pages: int, seconds: float) -> None:
        """Records a batch of pages stored in the region."""
        with self._lock:
            self._note(self._metrics.backup_pgs, self._metrics.backup_bandwidth, pages, seconds)

    def take(self) -> StorageMetrics:
        """Returns the recorded batches and clears them."""
        with self._lock:
            taken, self._metrics = self._metrics, StorageMetrics()
        return taken

    def _note(self, batches: list[int], speeds: list[float], pages: int, seconds: float) -> None:
        if pages > 0 and seconds > 0 and len(batches) < _KEPT:
            batches.append(pages)
            speeds.append(pages * self._page_bytes / seconds / 1e9)
