"""Wrappers that keep Cenote's faults out of an engine's serving path."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Counting(Protocol):
    """An adapter that counts faults, and logs each kind once."""

    def went_wrong(self, where: str, error: BaseException) -> None: ...


class FaultCounts:
    """Counts an adapter's faults in `errors`, and logs the first of each kind."""

    def count_faults(self, logger: logging.Logger) -> None:
        """Begins to count. Call it before the first method of the engine."""
        self.errors = 0
        self._fault_logger = logger
        self._faults_told: set[tuple[str, str]] = set()
        self._counting = threading.Lock()

    def went_wrong(self, where: str, error: BaseException) -> None:
        kind = (where, type(error).__name__)
        with self._counting:
            self.errors += 1
            is_new = kind not in self._faults_told
            self._faults_told.add(kind)
        if is_new:
            self._fault_logger.warning(
                "Cenote: %s failed, which counts as a miss; later errors of this kind are not logged", where, exc_info=error
            )


_S = TypeVar("_S", bound=Counting)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[_S, _P], _R]

# Requests to end the program, not faults.
_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)


def serving(otherwise: Callable[[], _R]) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """Decorates a serving method: counts its errors and returns `otherwise()`, a miss."""
    return serving_with(lambda *_args, **_kwargs: otherwise())


def serving_with(otherwise: Callable[_P, _R]) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """Like `serving`, but `otherwise` gets the arguments of the call to make the miss."""

    def wrap(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @functools.wraps(method)
        def safe(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(self, *args, **kwargs)
            except _ENDS:
                raise
            except BaseException as error:  # A panic of the compiled part is not an `Exception`.
                self.went_wrong(method.__name__, error)
                return otherwise(*args, **kwargs)

        return safe

    return wrap
