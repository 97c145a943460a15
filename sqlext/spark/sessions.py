"""A flow's or job's own session: like the session that created it, also after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import SparkSession

from sqlext.functions.scalar import FUNCTIONS
from sqlext.plan.job_graph import References
from sqlext.quoting import quote
from sqlext.spark import jvm, settings

_FLOW_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",  # costs a read for each write
    "spark.sql.streaming.pollingDelay": "100ms",  # how often an idle source is polled; Spark's own 10 ms keep a core busy
    "spark.databricks.delta.optimize.minFileSize": str(16 * 1024**2),  # compaction leaves larger files alone, unless ..
    "spark.databricks.delta.optimize.maxDeletedRowsRatio": "0.3",  # .. this share of a file's rows is deleted
    "spark.databricks.delta.merge.materializeSource": "none",  # a flush reads files that nobody changes
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",  # its bounds of cached rows leave out NaN (SPARK-58482)
    "spark.sql.ui.explainMode": "simple",  # how Spark draws each execution's plan for its page, and again after each stage
    # Delta computes these over all files of a table at each commit with a transaction, and we never read them.
    "spark.databricks.delta.fileSizeHistogramMetrics.enabled": "false",
    "spark.databricks.delta.checksumDeletedRecordCountsHistogramMetrics.enabled": "false",
}

_TAKES_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
NAMED_STREAMS = {
    _TAKES_NAMES: "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}
"""The settings with which Spark takes names of streams, and keeps offsets by them; it refuses streams without a name then."""
_SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
_LEAST_PARTITIONS, _MOST_PARTITIONS = 2, 50  # Delta's own default is the most
_FILES_A_PARTITION = 10_000
"""Data files whose log entries one task replays: they take some ten MB."""

_LOCAL_RENAMES = (
    # At each rename, Spark's default for checkpoints starts processes to check whether a local path is a symbolic link, which
    # takes a fifth of a micro-batch's time. This one only renames; the fence ensures that no other driver writes there.
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)


class SessionRecord(Protocol):
    """The part of a flow's or job's record that describes the session which created it; see `FlowSpec`."""

    @property
    def catalog(self) -> str: ...

    @property
    def database(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]: ...

    @property
    def variables(self) -> Mapping[str, str]: ...

    @property
    def session_bound(self) -> tuple[str, ...]: ...


def session_for(session: SparkSession, references: References) -> SparkSession:
    """Return a new session for a flow or job: a copy of `session` with those session variables that the query uses.

    If the query gives its streams names, Spark takes them there.
    """
    own = jvm.clone_session(session, has_variables=False)
    settings.pin(own)
    for key, value in NAMED_STREAMS.items() if references.names_streams else ():
        own.conf.set(key, value)
    declare(own, variables_of(session, references))
    return own


def takes_names_of_streams(session: SparkSession) -> bool:
    """Return whether Spark takes names of streams (IDENTIFIED BY) in a session."""
    return session.conf.get(_TAKES_NAMES, None) == "true"


def restored_session(spark: SparkSession, spec: SessionRecord) -> SparkSession:
    """Return a session like the one that created the flow or job.

    It has temporary views of `spark` only for one that reads such views: they would stand in the place of tables of the same
    names.
    """
    session = jvm.bare_clone(spark)
    if not spec.session_bound:
        jvm.drop_temporary_views(session)
    settings.restore(session, spec.settings)
    session.catalog.setCurrentCatalog(spec.catalog)
    session.catalog.setCurrentDatabase(spec.database)
    declare(session, spec.variables)
    return session


def prepare(session: SparkSession, home: str, files: Callable[[], int]) -> None:
    """Apply the settings that every flow runs with.

    Delta replays a table's log in 50 tasks, whatever its size, where nobody has set another number: that takes seconds of each
    first look at a small table.

    Args:
        session: the flow's own session.
        home: the location of the flow's checkpoint.
        files: returns the number of data files of the largest of the flow's tables; called only if nobody has set a number.
    """
    for key, value in _FLOW_SETTINGS.items():
        session.conf.set(key, value)
    if home.startswith("file:"):
        session.conf.set(*_LOCAL_RENAMES)
    if session.conf.get(_SNAPSHOT_PARTITIONS, None) is None:
        tasks = -(-files() // _FILES_A_PARTITION)
        session.conf.set(_SNAPSHOT_PARTITIONS, str(min(max(tasks, _LEAST_PARTITIONS), _MOST_PARTITIONS)))


def variables_of(session: SparkSession, references: References) -> dict[str, str]:
    """Return the session variables that a query uses: type and value by name, as DECLARE VARIABLE takes them."""
    found = {name: jvm.variable(session, name) for name in references.columns}
    return {name: value for name, value in found.items() if value is not None}


def bound_to(session: SparkSession, references: References) -> tuple[str, ...]:
    """Return the temporary views and functions that a query uses, which end with their session."""
    ours = {name for function in FUNCTIONS for name in (function.name.lower(), function.over_list_name.lower())}
    views = [name for name in references.relations if jvm.is_temporary_view(session, name)]
    functions = [name for name in references.functions if name not in ours and jvm.is_temporary_function(session, name)]
    return (*views, *functions)


def declare(session: SparkSession, variables: Mapping[str, str]) -> None:
    """Give a session variables of another one, as `variables_of` returns them."""
    for name, value in variables.items():
        session.sql(f"DECLARE OR REPLACE VARIABLE {quote(name)} {value}")
