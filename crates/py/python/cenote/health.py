"""Tells an engine's log when its region is left alone, and when it is used again."""

from __future__ import annotations

import logging

import cenote


class HealthLog:
    """One line for each change. An engine asks in each of its steps, which costs a look at a flag."""

    def __init__(self, region: cenote.Region, logger: logging.Logger) -> None:
        self._region, self._logger = region, logger
        self._is_degraded = False

    def look(self) -> None:
        reason = self._region.degraded
        if (reason is not None) == self._is_degraded:
            return
        self._is_degraded = reason is not None
        if reason is None:
            self._logger.info("Cenote: the region %s is sound again and in use", self._region.name)
        else:
            self._logger.warning(
                "Cenote: the region %s is damaged and left alone, so that everything is computed: %s", self._region.name, reason
            )
