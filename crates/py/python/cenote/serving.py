"""Calls of engines' serving paths, into which no fault of ours may go."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Counting(Protocol):
    """Whoever counts what goes wrong, and tells it once."""

    def went_wrong(self, where: str, error: Exception) -> None: ...


_S = TypeVar("_S", bound=Counting)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Method = Callable[Concatenate[_S, _P], _R]


def serving(otherwise: Callable[[], _R]) -> Callable[[_Method[_S, _P, _R]], _Method[_S, _P, _R]]:
    """A method of the serving path: what goes wrong in it is counted, and to the engine it is what `otherwise` makes: a miss."""

    def wrap(method: _Method[_S, _P, _R]) -> _Method[_S, _P, _R]:
        @functools.wraps(method)
        def safe(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self.went_wrong(method.__name__, error)
                return otherwise()

        return safe

    return wrap
