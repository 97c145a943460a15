"""Keyed windows: batches sorted by key, cut where the key changes, one key at a time (FLIP-380 over FLIP-140's sorted input).

Keys are equal exactly when Spark's GROUP BY takes them for one: null equals null, NaN equals NaN, and -0.0 equals 0.0. This
module runs in Python workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class KeyRun:
    """The consecutive rows of one key.

    Args:
        keys: the key columns of the first row.
    """

    def __init__(self, keys: list[pa.Array]) -> None:
        self._keys = keys

    def values(self) -> list[Any]:
        """Return the key, for messages."""
        return [column[0].as_py() for column in self._keys]


def key_runs(batches: Iterable[pa.RecordBatch], key_count: int) -> Iterator[tuple[KeyRun, Iterator[pa.RecordBatch]]]:
    """Cut sorted batches into the runs of their keys.

    Args:
        batches: the rows, sorted by their last `key_count` columns.
        key_count: the number of key columns.

    Yields:
        A run and its batches, without the key columns. Batches that are still unread when the next run is requested are skipped.
        Only one batch is in memory.
    """
    for run, pieces in itertools.groupby(_pieces(batches, key_count), key=itemgetter(0)):
        yield run, map(itemgetter(1), pieces)


@dataclass(frozen=True)
class CutBatch:
    """A batch and the positions at which keys begin in it.

    Attributes:
        values: its columns without the keys.
        keys: the key columns.
        starts: the indices, ascending, of the rows whose key differs from that of the previous row. The row before row 0 is the
            last row of the previous batch; row 0 of the very first batch begins a key.
    """

    values: pa.RecordBatch
    keys: list[pa.Array]
    starts: list[int]


def cut_batches(batches: Iterable[pa.RecordBatch], key_count: int) -> Iterator[CutBatch]:
    """Find the positions at which keys begin in each batch; empty batches are skipped.

    Args:
        batches: the rows, sorted by their last `key_count` columns.
        key_count: the number of key columns.
    """
    last: list[pa.Array] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        keys = batch.columns[-key_count:]
        starts = _starts_of_runs(keys)
        first = [column.slice(0, 1) for column in keys]
        if not last or _starts_of_runs([pa.concat_arrays(pair) for pair in zip(last, first, strict=True)]):
            starts.insert(0, 0)
        last = [column.slice(batch.num_rows - 1) for column in keys]
        yield CutBatch(batch.select(range(batch.num_columns - key_count)), keys, starts)


def _pieces(batches: Iterable[pa.RecordBatch], key_count: int) -> Iterator[tuple[KeyRun, pa.RecordBatch]]:
    run = KeyRun([])  # a placeholder: the first batch begins a run
    for cut in cut_batches(batches, key_count):
        begin = 0
        for start in cut.starts:
            if start > begin:
                yield run, cut.values.slice(begin, start - begin)
            run, begin = KeyRun([column.slice(start, 1) for column in cut.keys]), start
        yield run, cut.values.slice(begin)


def _starts_of_runs(keys: list[pa.Array]) -> list[int]:
    """Return the indices, from 1, of the rows whose key differs from that of the previous row."""
    changes = _changes(keys[0])
    for column in keys[1:]:
        changes = pc.or_(changes, _changes(column))
    return [index + 1 for index in pc.indices_nonzero(changes).to_pylist()]


def _changes(column: pa.Array) -> pa.BooleanArray:
    """Return, for each row but the first, whether its value differs from that of the previous row."""
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):  # Arrow does not compare these
        pairs = itertools.pairwise(column.cast(_in_utc(column.type)).to_pylist())
        return pa.array([not _are_same(one, other) for one, other in pairs], pa.bool_())
    before, after = column.slice(0, len(column) - 1), column.slice(1)
    equal = pc.equal(before, after)
    if pa.types.is_floating(column.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(before), pc.is_nan(after)))
    both_null = pc.and_(before.is_null(), after.is_null())
    return pc.invert(pc.or_(pc.fill_null(equal, False), both_null))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with its timestamps in UTC: in other zones, Python takes both of the hours that clocks repeat for one."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def _are_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)  # NaN
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_are_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return bool(one == other)
