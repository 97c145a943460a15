"""A Delta table whose files a flow may rewrite: it is read and changed in transactions, from one to the next with files known.

All rows are replaced here, and rows by key are brought in where `commit.merge` would run Delta's MERGE: an empty table is
written, a small one is rewritten as a whole, and of a large one the rows of the changed keys are marked as deleted. Either takes
two or three Spark jobs, MERGE six.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.execution.delta import commit
from sqlext.execution.delta.delta_log import last_transaction, table_size
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.transaction import FILE_COLUMN, ROW_COLUMN, CommitIdentity, KnownFiles, TableTransaction
from sqlext.plan.flow_spec import StreamSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.quoting import quote
from sqlext.spark import delta_tables, jvm
from sqlext.spark.settings import session_settings

_MOST_FILES = 500
"""The largest number of files of a table that are kept in memory; each file that changes takes a few calls to Java."""
_NEEDS_MERGE = ("delta.enableChangeDataFeed", "delta.enableRowTracking")
"""Properties of tables in which a row that is replaced must be known as the one it was: only Delta's own MERGE notes that."""
_FILE_BYTES = 8 * 1024**2  # of a table that is rewritten


class OwnTable:
    """One table; see the module's docstring. Used by the flush thread only.

    Args:
        spark: the session of the flow's commits.
        location: the location of the table.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location
        self._known: KnownFiles | None = None  # if the previous flush wrote the table by a transaction

    def begin(self, rows: int, schema: StructType, key: Sequence[str]) -> TableTransaction | None:
        """Begin a transaction for some rows to be brought in.

        Args:
            rows: their number; -1: unknown.
            schema, key: their schema and key.

        Returns:
            The transaction; None if there are too many rows for a table that has some already, the table has too many files or
            no deletion vectors, or each change of its rows is recorded.
        """
        snapshot = delta_tables.snapshot(self._spark, self._location)  # asked for once: each time, the log's folder is listed
        size = table_size(self._spark, self._location, int(snapshot.version()))
        properties = delta_tables.properties_of(self._spark, snapshot)
        if size is None or size.files > _MOST_FILES or any(properties.get(name) == "true" for name in _NEEDS_MERGE):
            return None
        if size.files and not commit.are_few(rows, schema, key):
            return None
        table = TableTransaction(self._spark, snapshot, self._known, size.bytes <= commit.SMALL_TABLE_BYTES)
        return table if table.is_empty or table.is_small or table.can_mark_rows else None

    def note(self, known: KnownFiles) -> None:
        """Remember the files after a commit."""
        self._known = known

    def upsert(
        self,
        stream: StreamSpec,
        rows: DataFrame,
        reach: Bounds,
        info: commit.CommitInfo,
        check: Callable[[], None],
        all_rows: DataFrame | None = None,
    ) -> bool:
        """Bring rows into the table in one commit, in place of those of the same key; nothing if their transaction is there.

        Args:
            stream, info, check: as for `commit.merge`.
            rows: as for `commit.merge`; they are evaluated twice.
            reach: the ranges of their keys, where known.
            all_rows: all rows that the table is to have, if they are at hand: a small table that nobody else has changed since
                the last flush gets them, and is not read.

        Returns:
            False, and nothing was done, if it takes a MERGE.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was read.
        """
        table = self.begin(info.rows, rows.schema, stream.key)
        if table is None or not table.has_just((column.target for column in stream.columns), rows):
            return False
        if self._has(table, info):
            return True
        identity = CommitIdentity(info.app_id, info.last_batch, info.to_json())
        if table.is_small and table.is_known and all_rows is not None and not table.is_empty:
            check()
            with session_settings(self._spark, commit.FEW_ROWS):
                self.note(table.write_whole(qualified(all_rows).coalesce(_files(table)), identity))
            return True
        self.replace_keys(table, stream.key, rows, rows, reach, identity, check)
        return True

    def replace_all(self, rows: DataFrame, info: commit.CommitInfo, check: Callable[[], None]) -> bool:
        """Replace all rows of the table in one commit; nothing if its transaction is there.

        Delta's own writer finds the table and its files by some twenty Spark jobs.

        Args:
            rows: the new rows.
            info, check: as for `commit.merge`.

        Returns:
            False, and nothing was done, if Delta's own writer must do it: the table has other columns too, or very many files.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was looked at.
        """
        snapshot = delta_tables.snapshot(self._spark, self._location)
        size = table_size(self._spark, self._location, int(snapshot.version()))
        if size is None or size.files > _MOST_FILES:
            return False
        table = TableTransaction(self._spark, snapshot, self._known, is_small=True)
        if not table.has_just(rows.columns, rows):
            return False
        if not self._has(table, info):
            check()
            self.note(table.write_whole(rows, CommitIdentity(info.app_id, info.last_batch, info.to_json())))
        return True

    def _has(self, table: TableTransaction, info: commit.CommitInfo) -> bool:
        """Return whether the table has the commit already."""
        done = last_transaction(self._spark, self._location, info.app_id, table.version)
        return done is not None and done >= info.last_batch

    def replace_keys(
        self,
        table: TableTransaction,
        key: Sequence[str],
        keys: DataFrame,
        rows: DataFrame,
        reach: Bounds,
        identity: CommitIdentity,
        check: Callable[[], None],
    ) -> None:
        """Commit rows in place of all that have certain keys.

        Args:
            table: a transaction that `begin` has begun.
            key: the columns of the key.
            keys: rows with these keys.
            rows: the new rows; those with a false `QUALIFIES` are left out.
            reach: the ranges of the keys, where known.
            identity: of the commit.
            check: called before the commit.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was read.
        """
        if table.is_empty:
            check()
            self.note(table.write_whole(qualified(rows), identity))
            return
        with session_settings(self._spark, commit.FEW_ROWS):
            keys = F.broadcast(keys.select(*(quote(name) for name in key)))
            same = commit.same_key(key, reach)
            if table.is_small:
                others = table.rows.alias("t").join(keys.alias("s"), same, "left_anti")
                check()
                self.note(table.write_whole(others.unionByName(qualified(rows)).coalesce(_files(table)), identity))
                return
            places = table.placed_rows(reach).alias("t").join(keys.alias("s"), same, "left_semi").select(FILE_COLUMN, ROW_COLUMN)
            with jvm.held(places) as found:
                check()
                self.note(table.replace(found, qualified(rows), identity))


def qualified(rows: DataFrame) -> DataFrame:
    """Return the rows that belong into a table, of those that take the place of others by key, without `QUALIFIES`."""
    return rows.where(quote(QUALIFIES)).drop(QUALIFIES) if QUALIFIES in rows.columns else rows


def _files(table: TableTransaction) -> int:
    """Return how many files a table is written in when it is rewritten."""
    return 1 + table.bytes // _FILE_BYTES
