"""How files and buckets are divided into parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sqlext.execution.jobs.division import GROUP_BYTES, LEAST_SLICES, SLICE_BYTES, Division, groups, slices

SIZES = st.lists(st.integers(0, 2**33), max_size=60)


def total(division: Division, sizes: list[int]) -> list[int]:
    return [sum(sizes[number] for number in part) for part in division]


@given(SIZES)
def test_slices_hold_every_file_once_in_order(sizes: list[int]) -> None:
    found = slices(sizes)
    assert [number for part in found for number in part] == list(range(len(sizes)))
    assert len(found) <= max(1, len(sizes))
    assert len(found) >= min(len(sizes), LEAST_SLICES) or not sizes


@given(SIZES, st.integers(1, 8))
def test_groups_hold_every_bucket_once_in_order(sizes: list[int], slots: int) -> None:
    found = groups(sizes, slots)
    assert [number for part in found for number in part] == list(range(len(sizes)))
    assert len(found) <= max(1, len(sizes))


@given(st.integers(1, 60), st.integers(1, 2**33))
def test_files_of_one_size_make_slices_of_one_size(count: int, size: int) -> None:
    counts = [len(part) for part in slices([size] * count)]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


def test_little_data_is_cut_for_a_kill_to_cost_little() -> None:
    assert len(slices([10] * 100)) == LEAST_SLICES
    assert slices([10, 10]) == ((0,), (1,))
    assert slices([]) == ((),)


def test_much_data_is_cut_by_size() -> None:
    sizes = [SLICE_BYTES // 4] * 80
    assert len(slices(sizes)) == 20
    assert set(total(slices(sizes), sizes)) == {SLICE_BYTES}


def test_groups_fill_the_slots() -> None:
    assert len(groups([GROUP_BYTES] * 16, 2)) == 16
    assert len(groups([1] * 16, 2)) == 4
    assert len(groups([GROUP_BYTES // 4] * 16, 3)) == 6
    assert len(groups([0] * 3, 4)) == 3
