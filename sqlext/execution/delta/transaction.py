"""A Delta table read and changed in one transaction of Delta's own: a small one rewritten as a whole, a large one row by row.

Delta's MERGE and its writer first find the table's files with Spark jobs over its log, which take longer than processing the rows
of a small table; and MERGE reads a large table twice, to find rows and to write them. But the last writer of a table knows its
files, and rows that were read with their positions need not be found again: deletion vectors mark them. Reading and writing are
one transaction, so a change by somebody else in between is a conflict.

Relies on Delta's private side: OptimisticTransaction, and the helpers with which DELETE makes deletion vectors. Checked with
Delta 4.4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from sqlext.errors import SchemaError, UnsupportedError
from sqlext.execution.delta.commit import USER_METADATA
from sqlext.execution.delta.file_statistics import may_hold
from sqlext.execution.delta.key_ranges import Bounds
from sqlext.execution.delta.row_types import in_types_of
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.spark import delta_tables
from sqlext.spark.java import items_of, java_of, scala_object, scala_seq, texts_of
from sqlext.spark.jvm import active
from sqlext.spark.settings import session_settings

FILE_COLUMN = f"{INTERNAL_PREFIX}file"
ROW_COLUMN = f"{INTERNAL_PREFIX}row"
_METRICS = "spark.databricks.delta.history.metricsEnabled"
_DELTA = "org.apache.spark.sql.delta"
_COMMANDS = f"{_DELTA}.commands"
_NEEDS_WRITER = ("delta.universalFormat.", "delta.enableIcebergCompat", "delta.identity.")
"""Beginnings of properties, of tables or columns, for which Delta's writer does more than writing files."""
_FEED, _MAPPING = "delta.enableChangeDataFeed", "delta.columnMapping.mode"
LENGTH = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's note in the metadata of a column that is CHAR(n) or VARCHAR(n)."""


@dataclass(frozen=True)
class KnownFiles:
    """The files of one version of a table, as Delta's AddFile actions by path."""

    version: int
    files: Mapping[str, Any]


@dataclass(frozen=True)
class CommitIdentity:
    """The identity of a commit.

    Attributes:
        app_id, app_version: its transaction.
        metadata: its userMetadata.
    """

    app_id: str
    app_version: int
    metadata: str


class TableTransaction:
    """One transaction; see the module's docstring.

    Args:
        spark: the session in which it runs.
        snapshot: the newest version of the table, as `delta_tables.snapshot` returns it.
        known: the result of the last commit; ignored if others have committed since.
        is_small: whether all rows are rewritten, rather than some marked.
        check: called right before a commit; raises if there must be none.

    Attributes:
        version: the version of the table that is read.
        is_small: as given.
        is_known: whether nobody has committed since the last commit.
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Any,
        known: KnownFiles | None,
        is_small: bool,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._spark = spark
        self._check = check
        self.is_small = is_small
        self._java = java_of(spark)
        self._none, self._some = self._java.scala.Option.apply(None), self._java.scala.Option.apply
        self._definition: list[Any] = []  # the actions of `take_definition` or `go_back`, and its operation
        self._operation: Any = None
        self._is_going_back = False
        self._has_other_columns = False  # than those of the version that is read
        with active(spark):
            self._snapshot = snapshot
            self._log = self._snapshot.deltaLog()
            self.version = int(self._snapshot.version())
            self._transaction = begun(spark, snapshot)
            self._transaction.readWholeTable()
            self.is_known = known is not None and known.version == self.version
            if known is not None and self.is_known:
                self._files = known.files
            else:
                self._files = {str(file.path()): file for file in delta_tables.files_of(self._snapshot)}

    @cached_property
    def _schema(self) -> StructType:
        return _schema(self._spark, self._snapshot)

    @property
    def can_mark_rows(self) -> bool:
        """Whether the table has deletion vectors."""
        utils = scala_object(self._spark, f"{_COMMANDS}.DeletionVectorUtils")
        return bool(utils.deletionVectorsWritable(self._snapshot, self._none, self._none))

    @property
    def is_empty(self) -> bool:
        """Whether the table has no files."""
        return not self._files

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(int(file.size()) for file in self._files.values())

    def has_just(self, columns: Iterable[str], rows: DataFrame | None = None) -> bool:
        """Return whether the table has these columns and no others, and Delta's writer would just write files with them.

        Args:
            rows: those to be written, if their types are in question too.
        """
        return _has_just(self._schema, self._snapshot, columns) and (rows is None or in_types_of(self._schema, rows) is not None)

    @property
    def rows(self) -> DataFrame:
        """All rows of the table."""
        return self._rows_of([*self._files.values()])

    def placed_rows(self, reach: Bounds) -> DataFrame:
        """Return at least all rows with keys in `reach`, with the position of each in `FILE_COLUMN` and `ROW_COLUMN`.

        Args:
            reach: the ranges of the keys, by columns of the table.
        """
        has_other_names = str(self._snapshot.metadata().columnMappingMode().name()) != "none"  # of columns, in files
        files = [file for file in self._files.values() if has_other_names or may_hold(_statistics(file), reach, self._schema)]
        path, row = F.col("_metadata.file_path").alias(FILE_COLUMN), F.col("_metadata.row_index").alias(ROW_COLUMN)
        return self._rows_of(files).select("*", path, row)

    def _rows_of(self, files: Sequence[Any]) -> DataFrame:
        seq = scala_seq(self._spark, [*files])
        with active(self._spark):
            return DataFrame(self._log.createDataFrame(self._snapshot, seq, False, self._none), self._spark)

    def take_definition(self, model: Any) -> None:
        """Give the table the definition of another one, in the commit of `write_whole`, as REPLACE TABLE .. AS SELECT does.

        Args:
            model: the newest version of the other table: its columns, partitioning, clustering, properties, comment and id.

        Raises:
            UnsupportedError: Delta cannot make this definition of the table's.
            AnalysisException: Delta's reason against the definition.
        """
        clustering = self._java.org.apache.spark.sql.delta.skipping.clustering.ClusteredTableUtils
        if items_of(model.metadata().partitionColumns()) and clustering.isSupported(self._snapshot.protocol()):
            raise UnsupportedError(
                "Delta does not replace a table that was CLUSTER BY by one that is PARTITIONED BY. Drop it and create it again, "
                "or write CLUSTER BY."
            )
        properties = texts_of(self._spark, model.metadata().configuration())
        if properties.get(_FEED) == "true" and properties.get(_MAPPING, "none") != "none":
            raise UnsupportedError(
                f"Delta does not replace a table, with its rows, by one with {_FEED} and {_MAPPING} = {properties[_MAPPING]}. "
                f"Leave {_FEED} out, and set it afterwards, or drop the table and create it again."
            )
        self._has_other_columns = True
        with active(self._spark):
            self._transaction.updateMetadataForNewTableInReplace(model.metadata())
            self._transaction.updateProtocol(self._transaction.protocol().merge(scala_seq(self._spark, [model.protocol()])))
            domains = scala_object(self._spark, f"{_DELTA}.DomainMetadataUtils").handleDomainMetadataForReplaceTable(
                self._snapshot.domainMetadata(), clustering.getClusteringDomainMetadata(model)
            )
        self._definition = items_of(domains)
        self._operation = getattr(self._java.org.apache.spark.sql.delta, "DeltaOperations$ReplaceTable")(
            model.metadata(), True, True, True, *[self._none] * 7
        )

    def take_columns(self, schema: StructType) -> None:
        """Give the table other columns, in the commit of `write_whole`; all else of its definition stays.

        Raises:
            AnalysisException: Delta's reason against these columns.
        """
        now = self._snapshot.metadata()
        changed = now.copy(
            now.id(),
            now.name(),
            now.description(),
            now.format(),
            schema.json(),
            now.partitionColumns(),
            now.configuration(),
            now.createdTime(),
        )
        self._has_other_columns = True
        with active(self._spark):
            self._transaction.updateMetadataForTableOverwrite(changed)

    def go_back(self, version: int, metadata: str, closed: Mapping[str, int]) -> None:
        """Give the table the columns, properties and comment of an earlier version, in the commit of `write_whole`.

        Args:
            version: the earlier version.
            metadata: its metadata, as `delta_tables.metadata_of` returns it.
            closed: applications whose writers must commit no more, with the versions of their last transactions: a write that
                one of them has begun is in conflict with this commit.
        """
        if metadata != delta_tables.metadata_of(self._snapshot):
            self._has_other_columns = True
            with active(self._spark):
                self._transaction.updateMetadata(delta_tables.metadata_from(self._spark, metadata), False)
        noted = self._java.org.apache.spark.sql.delta.actions.SetTransaction
        self._definition = [noted(app, last, self._none) for app, last in closed.items()]
        self._operation = restore_operation(self._spark, version)
        self._is_going_back = True

    def note_read(self, app_id: str) -> None:
        """Let a commit of an application since the version that is read be a conflict."""
        note_read(self._transaction, app_id)

    def write_whole(self, rows: DataFrame, identity: CommitIdentity) -> KnownFiles:
        """Replace all rows of the table.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was read.
        """
        now = int(time.time() * 1000)
        operation = self._operation or write_operation(self._spark, "Overwrite")
        with active(self._spark):
            added = self._files_with(rows)
            removed = [file.removeWithTimestamp(now, True) for file in self._files.values()]
            actions = [*self._definition, *added, *removed]
            metrics: dict[str, int] | None = None if self._is_going_back else {}  # RESTORE has others
            self._check()
            version = commit_actions(self._spark, self._transaction, actions, operation, identity, metrics)
        return KnownFiles(version, {str(file.path()): file for file in added})

    def append(self, rows: DataFrame, identity: CommitIdentity) -> KnownFiles | None:
        """Add rows to the table; None, and nothing is committed, if there are none.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was read.
        """
        operation = write_operation(self._spark, "Append")
        with active(self._spark):
            added = self._files_with(rows)
            if not added:
                return None
            self._check()
            version = commit_actions(self._spark, self._transaction, added, operation, identity, {})
        return KnownFiles(version, {**self._files, **{str(file.path()): file for file in added}})

    def replace(self, places: DataFrame | None, rows: DataFrame | None, identity: CommitIdentity) -> KnownFiles:
        """Delete rows of the table, and add others.

        Args:
            places: the positions of the rows to delete, from `placed_rows`; None: none.
            rows: the rows to add; None: none.
            identity: the identity of the commit.

        Raises:
            DeltaConcurrentModificationException: somebody else has changed the table since it was read.
        """
        operation = getattr(self._java.org.apache.spark.sql.delta, "DeltaOperations$Merge")(
            *[self._none] * 4, *[scala_seq(self._spark, [])] * 3
        )
        with active(self._spark):
            added = [] if rows is None else self._files_with(rows)
            removed, marked, gone = ([], [], set[str]()) if places is None else self._without(places)
            self._check()
            version = commit_actions(self._spark, self._transaction, [*added, *removed, *marked], operation, identity)
        left = {path: file for path, file in self._files.items() if path not in gone}
        return KnownFiles(version, left | {str(file.path()): file for file in (*marked, *added)})

    def _files_with(self, rows: DataFrame) -> list[Any]:
        """Write files with rows, and return their AddFile actions."""
        given = rows if self._has_other_columns else in_types_of(self._schema, rows)
        if given is None:
            raise SchemaError(
                f"A column of the table in {self._log.dataPath().toString()} has become another one: its columns are "
                f"{self._schema.simpleString()}, and the rows are {rows.schema.simpleString()}. Give it its type again."
            )
        return items_of(self._transaction.writeFiles(given._jdf))

    def _without(self, places: DataFrame) -> tuple[list[Any], list[Any], set[str]]:
        """Return the actions that delete rows.

        Returns:
            The files to remove; those of them that have rows left, to be added again with deletion vectors; and the paths of all
            of them.
        """
        files, now = scala_seq(self._spark, [*self._files.values()]), int(time.time() * 1000)
        helper = scala_object(self._spark, f"{_COMMANDS}.DMLWithDeletionVectorsHelper")
        every = self._java.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()
        found = scala_object(
            self._spark, f"{_COMMANDS}.DeletionVectorBitmapGenerator"
        ).buildRowIndexSetsForFilesMatchingCondition(
            self._spark._jsparkSession,
            self._transaction,
            True,
            places._jdf,
            files,
            every,
            self._some(F.col(FILE_COLUMN)._jc),
            self._some(F.col(ROW_COLUMN)._jc),
        )
        by_path = helper.generateCandidateFileMap(self._log.dataPath(), files)
        removed, marked, gone = [], [], set()
        for touched in items_of(helper.findFilesWithMatchingRows(self._transaction, by_path, found)):
            file = touched.fileLogEntry()
            gone.add(str(file.path()))
            if touched.isFullyReplaced():
                removed.append(file.removeWithTimestamp(now, True))
                continue
            both = file.removeRows(touched.newDeletionVector(), True, True)
            marked.append(both._1())
            removed.append(both._2())
        return removed, marked, gone


def written_files(rows: DataFrame, snapshot: Any) -> list[Any] | None:
    """Write files with rows for a table, without a commit.

    Args:
        rows: the rows; their columns are the table's.
        snapshot: the newest version of the table.

    Returns:
        An AddFile action for each; None, and nothing was written, if the table has columns of its own or other types, or its
        rows need Delta's own writer.
    """
    spark = rows.sparkSession
    schema = _schema(spark, snapshot)
    given = in_types_of(schema, rows) if _has_just(schema, snapshot, rows.columns) else None
    return None if given is None else items_of(begun(spark, snapshot).writeFiles(given._jdf))


def _schema(spark: SparkSession, snapshot: Any) -> StructType:
    none = java_of(spark).scala.Option.apply(None)
    return DataFrame(snapshot.deltaLog().createDataFrame(snapshot, scala_seq(spark, []), False, none), spark).schema


def _has_just(schema: StructType, snapshot: Any, columns: Iterable[str]) -> bool:
    """See `TableTransaction.has_just`. The lengths of CHAR and VARCHAR are checked by the analysis of a statement."""
    if set(schema.names) != set(columns) or any(LENGTH in field.metadata for field in schema):
        return False
    definition = f"{snapshot.metadata().configuration()}{snapshot.metadata().schemaString()}"
    return not any(name in definition for name in _NEEDS_WRITER)


def begun(spark: SparkSession, snapshot: Any) -> Any:
    """Begin one of Delta's transactions over a version of a table."""
    option = java_of(spark).scala.Option.apply
    return snapshot.deltaLog().startTransaction(option(None), option(snapshot))


def note_read(transaction: Any, app_id: str) -> None:
    """Let a commit of an application since a transaction's version be a conflict.

    Delta notes that itself where it looks an application's transaction up, by a Spark job.
    """
    transaction.readTxn().addOne(app_id)


def write_operation(spark: SparkSession, mode: str) -> Any:
    """Return Delta's name of a write for a table's history; `mode` is one of Spark's SaveMode."""
    java = java_of(spark)
    modes, none = java.org.apache.spark.sql.SaveMode, java.scala.Option.apply(None)
    return getattr(java.org.apache.spark.sql.delta, "DeltaOperations$Write")(getattr(modes, mode), *[none] * 8)


def restore_operation(spark: SparkSession, version: int) -> Any:
    """Return Delta's name of setting a table back to a version, for its history."""
    java = java_of(spark)
    return getattr(java.org.apache.spark.sql.delta, "DeltaOperations$Restore")(
        java.scala.Option.apply(version), java.scala.Option.apply(None)
    )


def commit_actions(
    spark: SparkSession,
    transaction: Any,
    actions: Sequence[Any],
    operation: Any,
    identity: CommitIdentity,
    metrics: Mapping[str, int] | None = None,
) -> int:
    """Commit actions of Delta's in one of its transactions, and return the new version.

    What sessions have cached of the table is computed anew when it is read next, as after Delta's own commands.

    Args:
        metrics: of the operation, for the table's history: those of the files that the transaction has written itself, and
            these. None: none. A MERGE has others, of a plan of its own that does not exist here.

    Raises:
        DeltaConcurrentModificationException: somebody else has changed what the transaction read.
    """
    java = java_of(spark)
    done = java.org.apache.spark.sql.delta.actions.SetTransaction(
        identity.app_id, identity.app_version, java.scala.Option.apply(int(time.time() * 1000))
    )
    if metrics:
        transaction.registerSQLMetrics(spark._jsparkSession, _sql_metrics(spark, metrics))
    with session_settings(spark, {USER_METADATA: identity.metadata, _METRICS: str(metrics is not None).lower()}):
        version = int(transaction.commit(scala_seq(spark, [*actions, done]), operation))
    spark.catalog.refreshByPath(str(transaction.deltaLog().dataPath().toString()))
    return version


def _sql_metrics(spark: SparkSession, metrics: Mapping[str, int]) -> Any:
    """Return metrics as Spark's, in a Scala Map."""
    java, made = java_of(spark), scala_object(spark, "scala.collection.immutable.Map").empty()
    for name, value in metrics.items():
        metric = java.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(spark._jsparkSession.sparkContext(), name)
        metric.set(value)
        made = made.updated(name, metric)
    return made


def _statistics(file: Any) -> str | None:
    """Return the statistics of an AddFile action, as JSON."""
    found = file.stats()
    return None if found is None else str(found)
