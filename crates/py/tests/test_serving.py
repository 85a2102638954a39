"""Serving calls return misses instead of faults."""

from __future__ import annotations

import pytest

from cenote.serving import serving, serving_with


def test_a_panic_is_a_counted_miss_and_an_exit_request_propagates() -> None:
    class Panic(BaseException):
        """Like a panic of the compiled part, not an `Exception`."""

    class Adapter:
        errors = 0

        def went_wrong(self, where: str, error: BaseException) -> None:
            self.errors += 1

        @serving(lambda: 0)
        def count(self, raised: BaseException) -> int:
            raise raised

        @serving_with(lambda keys: [False] * len(keys))
        def store(self, keys: list[str]) -> list[bool]:
            raise Panic

    adapter = Adapter()
    assert (adapter.count(Panic()), adapter.count(ValueError()), adapter.store(["a", "b"])) == (0, 0, [False, False])
    assert adapter.errors == 3
    for end in (KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(end)):
            adapter.count(end)
