"""Layouts of blocks in tensors of attention backends."""

import itertools

import pytest

from cenote.device import PageLayout, page_layout

B, H, N, C = 10, 4, 16, 128


def strides(order: str, sizes: dict[str, int]) -> dict[str, int]:
    """Strides of axes that are stored in this order."""
    found, step = {}, 1
    for axis in reversed(order):
        found[axis] = step
        step *= sizes[axis]
    return found


def of(order: str, heads: int = H, layers: int = 6) -> PageLayout:
    sizes = {"L": layers, "B": B, "H": heads, "N": N, "C": C}
    found = strides(order, sizes)
    shape = [sizes[axis] for axis in "BHNC"]
    return page_layout("l", shape, [found[axis] for axis in "BHNC"], 2, heads * N * C * 2)


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_contiguous_blocks_have_one_run(order: str) -> None:
    page = H * N * C * 2
    assert of(order) == PageLayout(page * (6 if order[0] == "B" else 1), ((0, page),), B)


def test_blocks_with_one_gap_have_two_runs() -> None:
    run = N * C * 2
    assert of("LHBNC", heads=2) == PageLayout(run, ((0, run), (B * run, run)), B)
    assert of("LHBNC", heads=1) == PageLayout(run, ((0, run),), B)
    assert of("BHLNC", heads=2) == PageLayout(12 * run, ((0, run), (6 * run, run)), B)


def test_separate_keys_and_values_have_two_runs() -> None:
    page = N * H * 64 * 2
    shape = (2, B, N, H, 64)
    apart = page_layout("l", shape, (B * N * H * 64, N * H * 64, H * 64, 64, 1), 2, 2 * page)
    assert apart == PageLayout(page, ((0, page), (B * page, page)), B)
    beside = page_layout("l", shape, (N * H * 64, 2 * N * H * 64, H * 64, 64, 1), 2, 2 * page)
    assert beside == PageLayout(2 * page, ((0, 2 * page),), B)


def test_smaller_blocks_of_a_backend_form_one_block() -> None:
    shape = (B * 4, H, 4, C)
    page = H * N * C * 2
    assert page_layout("l", shape, (H * 4 * C, 4 * C, C, 1), 2, page) == PageLayout(page, ((0, page),), B)


@pytest.mark.parametrize("order", ["LHBNC", "BHLNC"])
def test_blocks_of_more_than_two_runs_are_refused(order: str) -> None:
    with pytest.raises(ValueError, match=r"layer l: .*4 runs of 4096 bytes"):
        of(order)


def test_a_tensor_that_is_not_a_kv_cache_is_refused() -> None:
    for shape, steps, page in (
        ((4,), (1,), 8),
        ((4, 4), (4, 0), 8),
        ((4, 4), (4, 1), 10),
        ((3, 4), (4, 1), 16),
        ((4, 4, 4), (16, 2, 1), 32),
        ((4, 0), (4, 1), 8),
    ):
        with pytest.raises(ValueError, match="layer x: a tensor of shape"):
            page_layout("x", shape, steps, 2, page)


def test_the_runs_cover_every_byte_of_a_block_once() -> None:
    for order in map("".join, itertools.permutations("BHN")):
        sizes = {"B": 3, "H": 2, "N": 4, "C": 8}
        found = strides(order + "C", sizes)
        try:
            layout = page_layout("l", [3, 2, 4, 8], [found[axis] for axis in "BHNC"], 1, 64)
        except ValueError:
            assert order in ("NBH", "NHB", "HNB")
            continue
        expected = sorted(
            head * found["H"] + token * found["N"] + channel for head in range(2) for token in range(4) for channel in range(8)
        )
        assert sorted(at for offset, length in layout.runs for at in range(offset, offset + length)) == expected
