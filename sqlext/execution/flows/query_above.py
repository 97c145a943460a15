"""The query above a flow's maintained aggregates, whose result is the target.

A flush replaces all rows of the target: in a transaction of `OwnTable` where the table allows that, else by Delta's writer. Where
the query may be evaluated in parts (`FlowPlan.above_by`), it replaces only those with keys of which the flush has changed an
aggregate, if they are few and the target has the rows of all others: nobody else has changed it, and it has all flushes before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.execution.delta import commit, target
from sqlext.execution.delta.delta_log import last_transaction
from sqlext.execution.delta.foreign_commits import ForeignCommits
from sqlext.execution.delta.own_table import OwnTable, qualified
from sqlext.execution.delta.transaction import CommitIdentity, TableTransaction
from sqlext.execution.state.row_checks import FlowChecks, Violations
from sqlext.execution.streaming import queries
from sqlext.plan.flow_spec import FlowSpec
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings


class QueryAbove:
    """See the module's docstring. Used by the flush thread only.

    Args:
        session: the flow's own.
        spec: the flow.
        tables: where the maintained aggregates lie, by the names of their relations.
        columns: returns the columns of these, with what Spark notes of them, such as CHAR(n), or that one is a window: their
            tables have it not, and the query above is analysed with it.
        checks: the constraints on the target's rows; None: there are none.
        check: called before each commit; raises when another driver has the flow.
        leaves_out: settings of the user's by which files may be left out, of the tables that only the query reads; the session
            reads all.
    """

    def __init__(
        self,
        session: SparkSession,
        spec: FlowSpec,
        tables: Mapping[str, str],
        columns: Callable[[], Mapping[str, StructType]],
        checks: FlowChecks | None,
        check: Callable[[], None],
        leaves_out: Mapping[str, str | None],
    ) -> None:
        self._session = session
        self._spec = spec
        self._tables = tables
        self._columns = columns
        self._checks = checks
        self._check = check
        self._leaves_out = leaves_out
        self._target = OwnTable(session, spec.target_location)

    def replace(self, info: commit.CommitInfo, before: int, changed: Sequence[Callable[[], DataFrame]]) -> Violations:
        """Replace the target's rows in one commit, and return how many of the new ones violate each constraint.

        Args:
            info: the description of the commit.
            before: the target's transaction before the flush.
            changed: return the rows that the flush has changed, of each aggregate; none: they are not known.
        """
        if self._spec.above_by and changed:
            replaced = partial(self._replace_parts, info, before, self._keys(changed))
            found = commit.again_after_conflicts(replaced, self._check)
            if found is not None:
                return found
        with self._rows(info) as (rows, info):
            whole = partial(self._target.replace_all, qualified(rows), info, self._check)
            if not commit.again_after_conflicts(whole, self._check):
                commit.replace(self._session, self._spec.target, qualified(rows), info, self._check)
        return dict(info.violations or {})

    def _replace_parts(self, info: commit.CommitInfo, before: int, keys: DataFrame) -> Violations | None:
        """Replace the rows with some keys; None, and nothing was done, if all rows must be replaced."""
        table = self._target.begin(info.rows, keys.schema, keys.columns)
        if table is None or not self._has_all_others(table, info, before):
            return None
        with jvm.held(keys) as held, self._rows(info, held) as (rows, info):
            if not table.has_just((column.target for column in self._spec.columns), rows):
                return None
            identity = CommitIdentity(info.app_id, info.last_batch, info.to_json())
            self._target.replace_keys(table, keys.columns, held, rows, {}, identity, self._check)
        return dict(info.violations or {})

    def _has_all_others(self, table: TableTransaction, info: commit.CommitInfo, before: int) -> bool:
        """Return whether rows with other keys are those that the query has."""
        location = self._spec.target_location
        if last_transaction(self._session, location, info.app_id, table.version) != before:
            return False
        if not table.has_just(column.target for column in self._spec.columns):
            return False
        if table.is_known:
            return True
        others = ForeignCommits(self._session, location, self._spec.id).since_own(table.version)
        return others.is_all and not others.commits

    def _keys(self, changed: Sequence[Callable[[], DataFrame]]) -> DataFrame:
        """Return the keys that have changed, by columns of the target."""
        columns = [F.col(quote(column.output)).alias(column.target) for column in self._spec.above_by]
        return reduce(DataFrame.union, (rows().select(*columns) for rows in changed)).distinct()

    def _newest(self, location: str, columns: StructType) -> DataFrame:
        rows = delta_tables.rows_at(self._session, location, delta_tables.version(self._session, location))
        noted = {each.name: each.metadata for each in columns if each.metadata}
        return rows.select(*(F.col(quote(name)).alias(name, metadata=noted.get(name, {})) for name in rows.columns))

    @contextmanager
    def _rows(self, info: commit.CommitInfo, keys: DataFrame | None = None) -> Iterator[tuple[DataFrame, commit.CommitInfo]]:
        """Yield rows for the target, computed over the aggregates as they are now, and what the commit says.

        Args:
            keys: only rows with these are wanted; None: all.
        """
        columns = self._columns()
        tables = {name: self._newest(location, columns[name]) for name, location in self._tables.items()}
        if keys is not None:
            names = [column.output for column in self._spec.above_by]
            mine = F.broadcast(keys.toDF(*names)).alias("s")
            same = commit.same_key(names, {})
            tables = {name: rows.alias("t").join(mine, same, "left_semi") for name, rows in tables.items()}
        with self._evaluated(tables) as evaluated:
            rows = target.in_target_columns(evaluated, self._spec.columns)
            if self._checks is None:
                yield rows, info
                return
            with self._checks.counted(rows, "the query above its aggregates") as (held, found):
                yield held, replace(info, violations=found)

    @contextmanager
    def _evaluated(self, tables: Mapping[str, DataFrame]) -> Iterator[DataFrame]:
        """Yield the query's rows; where it may leave files out, all that is read with them is read before."""
        if not self._leaves_out:
            yield queries.over(self._session, tables, self._spec.above)
            return
        with ExitStack() as stack:
            whole = {name: stack.enter_context(jvm.held(rows)) for name, rows in tables.items()}
            with session_settings(self._session, self._leaves_out):
                rows = stack.enter_context(jvm.held(queries.over(self._session, whole, self._spec.above)))
            yield rows
