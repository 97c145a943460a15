"""The division of a job vertex into parts, by measured bytes: few enough parts that each is worth its commit."""

from __future__ import annotations

from collections.abc import Sequence

Division = tuple[tuple[int, ...], ...]
"""For each part, the numbers of the files or buckets that it reads."""

SLICE_BYTES = 256 * 2**20
"""The minimum size of a slice of a scan, in bytes, where there are more than `LEAST_SLICES` slices."""
LEAST_SLICES = 8
"""The minimum number of slices. After a kill, each slice that was running is run again, so fewer slices would cost more then;
more would cost more always, since a key is written once for each slice it occurs in."""
GROUP_BYTES = 64 * 2**20
"""The approximate size of a group of buckets, in bytes: Spark's own advisory partition size."""

KEPT_BYTES = 512 * 2**20
"""The result of the last vertex is kept if the vertex reads at least this many bytes per slot. Less is read again in under a
minute, and a result that is not kept is written only once, by the sink."""


def slices(sizes: Sequence[int]) -> Division:
    """Divide neighbouring files into slices of about the same size.

    Args:
        sizes: the files' sizes, in bytes.

    Returns:
        At least one slice, even if there are no files.
    """
    total = sum(sizes)
    wanted = max(LEAST_SLICES, -(-total // SLICE_BYTES))
    return _in_order(sizes, max(1, min(wanted, len(sizes))))


def groups(sizes: Sequence[int], slots: int) -> Division:
    """Divide neighbouring buckets into groups of about the same size.

    Args:
        sizes: the buckets' sizes, in bytes.
        slots: the number of tasks that run at once; each group is one task, and the number of groups is a multiple of the slots.
    """
    wanted = -(-sum(sizes) // GROUP_BYTES)
    rounded = -(-max(wanted, 2 * slots) // slots) * slots
    return _in_order(sizes, max(1, min(rounded, len(sizes))))


def _in_order(sizes: Sequence[int], parts: int) -> Division:
    """Cut a list where its running total passes each multiple of an equal share; no part is empty if there are enough items."""
    total = sum(sizes) or 1
    found: list[list[int]] = [[] for _ in range(parts)]
    before = 0
    for number, size in enumerate(sizes):
        share = min(parts - 1, (before + size // 2) * parts // total)
        at_least = max(0, parts - (len(sizes) - number))  # the items left must suffice for the parts left
        at_most = number  # the parts before must have an item each
        found[max(min(share, at_most), at_least)].append(number)
        before += size
    return tuple(tuple(each) for each in found)
