"""Names of blocks under changing weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from cenote.weights import Weights

HASHES = [b"a" * 32, b"b" * 32]


def test_engines_share_under_unchanged_weights() -> None:
    assert Weights().keys(HASHES) == Weights().keys(HASHES) == HASHES


def test_changed_weights_without_a_file_share_nothing() -> None:
    one, other = Weights(), Weights()
    one.change()
    other.change()
    names = [one.keys(HASHES), other.keys(HASHES), HASHES]
    assert len({name for each in names for name in each}) == 6
    before = one.keys(HASHES)
    one.change()
    assert set(one.keys(HASHES)).isdisjoint(before)


def test_engines_share_under_equal_weight_versions_only(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "other"]
    for file in files:
        file.write_text("step 1")
    one, other = (Weights(str(file)) for file in files)
    first = one.keys(HASHES)
    assert first == other.keys(HASHES) != HASHES
    files[0].write_text("step 2")
    one.change()
    assert set(one.keys(HASHES)).isdisjoint(other.keys(HASHES))
    # The other engine computes with the old weights until its `change` call.
    files[1].write_text("step 2")
    assert other.keys(HASHES) == first
    other.change()
    assert one.keys(HASHES) == other.keys(HASHES)


def test_an_unreadable_version_file_gives_a_unique_version(tmp_path: Path) -> None:
    file = tmp_path / "version"
    with pytest.raises(FileNotFoundError):
        Weights(str(file))
    file.write_text("step 1")
    one, other = Weights(str(file)), Weights(str(file))
    before = one.keys(HASHES)
    file.unlink()
    for each in (one, other):
        with pytest.raises(FileNotFoundError):
            each.change()
    assert len({*one.keys(HASHES), *other.keys(HASHES), *before}) == 6


def test_short_names_are_independent_of_the_weights() -> None:
    weights = Weights()
    weights.change()
    assert [key[-8:] for key in weights.keys(HASHES)] == [each[-8:] for each in HASHES]


def test_an_engine_with_unknown_weights_shares_with_no_other(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("step 1")
    one, other, sure = (Weights(str(file)) for _ in range(3))
    for each in (one, other):
        each.doubt()
    before = one.keys(HASHES)
    assert before == one.keys(HASHES)
    names = {*before, *other.keys(HASHES), *sure.keys(HASHES)}
    assert len(names) == 6
    # A change may replace a part of the weights; the rest stays unknown.
    file.write_text("step 2")
    for each in (one, other, sure):
        each.change()
        names |= set(each.keys(HASHES))
    assert len(names) == 12
