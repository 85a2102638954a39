"""Logs when this process stops using its region and when it uses the region again."""

from __future__ import annotations

import logging

import cenote


class HealthLog:
    """Logs one line per change. An engine calls `look` in each step; the call reads one flag."""

    def __init__(self, region: cenote.Region, logger: logging.Logger) -> None:
        self._region, self._logger = region, logger
        self._is_degraded = False

    def look(self) -> None:
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
