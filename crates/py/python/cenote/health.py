"""Logs when this process stops using its region, its cold tier or its peers, and when it uses the region again."""

from __future__ import annotations

import logging

import cenote
from cenote import clock

# Seconds between two lines about errors of the cold tier, and of peers.
_QUIET = 30.0


class HealthLog:
    """Logs one line per change. An engine calls `look` in each step; the call reads a few flags."""

    def __init__(self, region: cenote.Region, logger: logging.Logger) -> None:
        self._region, self._logger = region, logger
        self._is_degraded = False
        self._cold = _Errors(logger, f"the cold tier below the region {region.name} misses blocks")
        self._peers = _Errors(logger, f"the region {region.name} is without blocks of a peer")

    def look(self) -> None:
        self._cold.look(self._region.cold_error)
        self._peers.look(self._region.peers_error)
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


class _Errors:
    """Logs an error that differs from the last logged one, and no two of them at a time."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger, self._what = logger, what
        self._last: str | None = None
        self._at = -_QUIET

    def look(self, error: str | None) -> None:
        if error is None or error == self._last or clock.now() - self._at < _QUIET:
            return
        self._last, self._at = error, clock.now()
        self._logger.warning("Cenote: %s: %s", self._what, error)
