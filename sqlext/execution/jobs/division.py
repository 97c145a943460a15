"""Into how many parts a job vertex is divided, from measured bytes: few enough that each is worth its commit."""

from __future__ import annotations

from collections.abc import Sequence

Division = tuple[tuple[int, ...], ...]
"""What each part reads: numbers of files, or of buckets."""

SLICE_BYTES = 256 * 2**20
"""A slice of a scan has at least so much, if there are more than `LEAST_SLICES`."""
LEAST_SLICES = 8
"""What a kill may cost: each slice that was running is run again. Fewer would cost more then, and more would cost more always: a
key that is in many slices is written as often."""
GROUP_BYTES = 64 * 2**20
"""A group of buckets has about so much: Spark's own advisory size of a partition."""

KEPT_BYTES = 512 * 2**20
"""What the last vertex reads for each slot, from which on its result is kept: less is read again in less than a minute, and a
result that is not kept is written once only, by the sink."""


def slices(sizes: Sequence[int]) -> Division:
    """Neighbouring files, in slices of about the same size.

    Args:
        sizes: of the files, in bytes.

    Returns:
        At least one slice, even of no file.
    """
    total = sum(sizes)
    wanted = max(LEAST_SLICES, -(-total // SLICE_BYTES))
    return _in_order(sizes, max(1, min(wanted, len(sizes))))


def groups(sizes: Sequence[int], slots: int) -> Division:
    """Neighbouring buckets, in groups of about the same size; as many as run at once, or a multiple of that.

    Args:
        sizes: of the buckets, in bytes.
        slots: how many tasks run at once; a group is one.
    """
    wanted = -(-sum(sizes) // GROUP_BYTES)
    rounded = -(-max(wanted, 2 * slots) // slots) * slots
    return _in_order(sizes, max(1, min(rounded, len(sizes))))


def _in_order(sizes: Sequence[int], parts: int) -> Division:
    """Cut a list where its running total passes each multiple of an equal share; no part is empty if there is enough for all."""
    total = sum(sizes) or 1
    found: list[list[int]] = [[] for _ in range(parts)]
    before = 0
    for number, size in enumerate(sizes):
        share = min(parts - 1, (before + size // 2) * parts // total)
        at_least = max(0, parts - (len(sizes) - number))  # as many parts as files are left to fill
        at_most = number  # a part is opened by a file of its own
        found[max(min(share, at_most), at_least)].append(number)
        before += size
    return tuple(tuple(each) for each in found)
