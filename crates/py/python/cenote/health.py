"""Logs when this process stops using its region or its cold tier, and when it uses the region again."""

from __future__ import annotations

import logging

import cenote
from cenote import clock

# Seconds between two lines about errors of the cold tier.
_QUIET = 30.0


class HealthLog:
    """Logs one line per change. An engine calls `look` in each step; the call reads two flags."""

    def __init__(self, region: cenote.Region, logger: logging.Logger) -> None:
        self._region, self._logger = region, logger
        self._is_degraded = False
        self._cold_error: str | None = None
        self._cold_at = -_QUIET

    def look(self) -> None:
        self._look_at_cold()
        reason = self._region.degraded
        if (reason is not None) == self._is_degraded:
            return
        self._is_degraded = reason is not None
        if reason is None:
            self._logger.info("Cenote: the region %s is repaired and in use again", self._region.name)
        else:
            self._logger.warning(
                "Cenote: the region %s is damaged and not in use, so the engine computes all KV: %s", self._region.name, reason
            )

    def _look_at_cold(self) -> None:
        """Logs an error of the cold tier that differs from the last logged one."""
        error = self._region.cold_error
        if error is None or error == self._cold_error or clock.now() - self._cold_at < _QUIET:
            return
        self._cold_error, self._cold_at = error, clock.now()
        self._logger.warning("Cenote: the cold tier below the region %s misses blocks: %s", self._region.name, error)
