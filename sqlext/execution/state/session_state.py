"""The state of an aggregate by session windows: partial results by key and session, in a Delta table of the flow's own.

A row may join two sessions into one, even long after both were written: it is merged with the stored rows of the sessions that it
touches, and the rows of sessions that no longer exist are deleted from the query's table. No row is ever too late, so sessions
are kept for ever, as a batch query would find them.

Sessions of one key neither overlap nor touch. So the sessions that a row joins, directly or through others, are those that touch
the session which it forms with the other new rows.

A flush consists of two commits, each with the flow's transaction:

1. the query's table gets the new state of the sessions;
2. the state's table gets the same. Until then it has the sessions that the query's table showed before.

A crash between the two leaves a state that is behind its table. The micro-batches still exist, in the buffer or in the source,
and are merged into the state alone before any others are (`TableWriter`).

Where functions depend on the order of rows (`first`, lists), Spark processes the rows of a session by their own windows, each
from a row to the end of its gap. Then the state has a row for each of these windows, so that late ones find their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType, TimestampType

from sqlext.execution.delta import commit, key_ranges, target
from sqlext.execution.delta.delta_log import last_transaction, table_size
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, TableTransaction
from sqlext.execution.state.buffer import BATCH_COLUMN
from sqlext.execution.state.delta_state import Advance, DeltaState, Show, StateFlush
from sqlext.execution.state.mergeable import MergeableAggregate
from sqlext.moments import Moment, announce
from sqlext.plan.flow_spec import Column, StreamSpec
from sqlext.plan.job_graph import INTERNAL_PREFIX, QUALIFIES, OutputMode
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm

_OWN = f"{INTERNAL_PREFIX}own"
"""The column with the window of a row by itself, beside that of its session."""
_STORED, _NEW = 0, 1  # in the order of arrival


def schema_of(aggregate: MergeableAggregate) -> StructType:
    """Return the schema of the state's table."""
    schema = StructType(list(aggregate.schema.fields))
    return schema.add(_OWN, schema[aggregate.session].dataType) if aggregate.is_ordered else schema


@dataclass(frozen=True)
class _Changes:
    """The changes of a flush to the state; all rows have the state's columns.

    Attributes:
        stored: all stored rows, with their positions if `table` is to replace rows.
        before: the stored rows of the sessions that the new ones touch.
        after: the rows that replace those, new ones included.
        table: the transaction that is to write them; None: a MERGE does.
    """

    stored: DataFrame
    before: DataFrame
    after: DataFrame
    table: TableTransaction | None


class SessionState(DeltaState):
    """The state of an aggregate by session windows; see the module's docstring, and `DeltaState`."""

    def committed(self) -> int | None:
        """Return the last micro-batch that is in the state; None: there is none."""
        return last_transaction(self._spark, self.location, self._spec.application)

    def flush(self, flush: StateFlush, show: Show) -> None:
        """Merge partial results into the query's table, as the sessions that they form with others; then into the state.

        Rows of sessions that no longer exist are shown with a false `QUALIFIES`.
        """
        aggregate, batches = flush.aggregate, flush.batches
        table = self._begin(flush)  # first: what is stored is what it reads
        version = delta_tables.version(self._spark, self.location) if table is None else table.version
        if table is None:
            self.refuse_changes_of_others(version)
        fresh = self._not_committed(batches, version)
        given = flush.partials(fresh) if fresh else flush.partials(batches).limit(0)
        with self._settings(flush.is_small), self._begun(flush, given, table, version) as changes:
            are = self._results(aggregate, _sessions(aggregate, changes.after))
            were = self._results(aggregate, _sessions(aggregate, changes.before))
            with jvm.held(_with_gone(are, were, self._stream.key)) as rows:
                show(Advance(rows))
            announce(Moment.STATE_COMMITTED, self._spec.name)
            if fresh:
                self._write(flush, changes, version)

    @contextmanager
    def _begun(self, flush: StateFlush, partials: DataFrame, table: TableTransaction | None, version: int) -> Iterator[_Changes]:
        aggregate, reach = flush.aggregate, flush.reach
        is_whole = table is not None and table.is_small
        own = partials.withColumn(_OWN, F.col(aggregate.session)) if aggregate.is_ordered else partials
        with jvm.held(_together(aggregate, own)) as new:
            stored = self._stored(version) if table is None else table.rows if is_whole else table.placed_rows(reach)
            with jvm.held(_touched(aggregate, stored, new, reach, is_whole)) as before:
                pieces = _numbered(before.drop(FILE_COLUMN, ROW_COLUMN), _STORED).unionByName(_numbered(new, _NEW))
                with jvm.held(_together(aggregate, pieces)) as after:
                    yield _Changes(stored, before, after, table)

    def _write(self, flush: StateFlush, changes: _Changes, version: int) -> None:
        """Store the new state of the sessions in one commit.

        Args:
            version: the version of the state's table that was read.
        """
        info, key = replace(flush.info, read_version=version), _key_of(flush.aggregate)
        identity = self._identity(info, version)
        flush.check()
        if changes.table is None:
            columns = tuple(Column(f.name, f.name, target.ddl_of(f.dataType)) for f in changes.after.schema)
            stream = StreamSpec(self._stream.relation, "", OutputMode.UPDATE, key, columns)
            rows, size = _with_gone(changes.after, changes.before, key), table_size(self._spark, self.location)
            commit.merge(self._spark, self.table(), stream, rows, flush.reach, info, flush.check, size, attempts=1)
            self._refuse_changes_since(version)
        elif changes.table.is_small:
            rest = _without(changes.stored, changes.before, key)
            self._own.note(changes.table.write_whole(rest.unionByName(changes.after), identity))
        else:
            self._own.note(changes.table.replace(changes.before, changes.after, identity))


def _together(aggregate: MergeableAggregate, pieces: DataFrame) -> DataFrame:
    """Merge rows of the state, in the order of `BATCH_COLUMN`, into sessions."""
    if not aggregate.is_ordered:
        return aggregate.merged(aggregate.joined(pieces), BATCH_COLUMN)
    by_own = aggregate.merged(pieces.withColumn(aggregate.session, F.col(_OWN)), BATCH_COLUMN)
    return aggregate.joined(by_own.withColumn(_OWN, F.col(aggregate.session)))


def _sessions(aggregate: MergeableAggregate, rows: DataFrame) -> DataFrame:
    """Return the partial results of sessions, one for each, from rows of the state."""
    return aggregate.merged(rows, _OWN) if aggregate.is_ordered else rows


def _key_of(aggregate: MergeableAggregate) -> tuple[str, ...]:
    """Return the columns that identify the state's rows."""
    return tuple(_OWN if name == aggregate.session and aggregate.is_ordered else name for name in aggregate.key)


def _touched(aggregate: MergeableAggregate, stored: DataFrame, new: DataFrame, reach: Bounds, is_small: bool) -> DataFrame:
    """Return the stored rows of sessions that overlap or touch new ones.

    Args:
        is_small: whether all stored rows are read anyway.
    """
    start, end = (f"{{0}}.{quote(aggregate.session)}.{field}" for field in ("start", "end"))
    others = tuple(name for name in aggregate.key if name != aggregate.session)
    touching = F.expr(f"{start.format('t')} <= {end.format('s')} AND {end.format('t')} >= {start.format('s')}")
    stored = stored.alias("t")
    if not is_small and isinstance(_time_of(aggregate), TimestampType):
        stored = _near(stored, new, start, end)
    if not is_small and (of_keys := key_ranges.condition(reach, aggregate.schema, "t")) is not None:
        stored = stored.where(of_keys)
    same = touching & commit.same_key(others, reach) if others else touching
    return stored.join(new.alias("s"), same, "left_semi")


def _near(stored: DataFrame, new: DataFrame, start: str, end: str) -> DataFrame:
    """Restrict stored sessions to about the time of new ones: constants in a condition keep other files from being read."""
    reach = f"unix_micros(min({start.format('s')})) AS least", f"unix_micros(max({end.format('s')})) AS most"
    times = new.alias("s").selectExpr(*reach).collect()[0]
    if times.least is None:
        return stored.where(F.lit(False))
    return stored.where(f"{start.format('t')} <= timestamp_micros({times.most})").where(
        f"{end.format('t')} >= timestamp_micros({times.least})"
    )


def _time_of(aggregate: MergeableAggregate) -> object:
    """Return the type of a session's start and end."""
    window = aggregate.schema[aggregate.session].dataType
    return window["start"].dataType if isinstance(window, StructType) else None


def _numbered(rows: DataFrame, number: int) -> DataFrame:
    return rows.withColumn(BATCH_COLUMN, F.lit(number))


def _with_gone(rows: DataFrame, before: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return rows for `commit.merge`: the current ones, and those of keys that no longer exist, which do not qualify."""
    are = rows if QUALIFIES in rows.columns else rows.withColumn(QUALIFIES, F.lit(True))
    gone = _without(before.drop(QUALIFIES, FILE_COLUMN, ROW_COLUMN), rows, key)
    return are.unionByName(gone.withColumn(QUALIFIES, F.lit(False)))


def _without(rows: DataFrame, others: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows whose key none of the others has."""
    keys = others.select(*(F.col(quote(name)).alias(name) for name in key))  # separate columns, even if both derive from the same
    return rows.alias("t").join(keys.alias("s"), commit.same_key(key, {}), "left_anti")
