"""The files of a scan, in slices that a source vertex reads separately.

This module makes Catalyst's plans and Delta's file indexes, which are internal to Spark and Delta; it was tested with Spark 4.2
and Delta 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import items_of, java_of, scala_object, scala_seq


class Slices:
    """The files that one scan reads, in a deterministic order.

    Args:
        scan: a FileSourceScanExec.

    Attributes:
        bytes: the size of each file, in bytes.
    """

    def __init__(self, spark: SparkSession, scan: Any) -> None:
        self._spark = spark
        self._scan = scan
        self._index = scan.relation().location()
        self._is_prepared = str(self._index.getClass().getSimpleName()) == "PreparedDeltaFileIndex"
        self._is_delta = is_delta(self._index)
        found = sorted(self._delta_files() if self._is_delta else self._plain_files(), key=lambda each: each[0])
        self._files = [file for _, _, file in found]
        self.bytes = [size for _, size, _ in found]

    def scan(self, files: Sequence[int]) -> Any:
        """Return the scan over some of the files only.

        Args:
            files: the numbers of the files.
        """
        chosen = [self._files[number] for number in files]
        index = self._delta_index(chosen) if self._is_delta else index_of_files(self._spark, self._index, chosen)
        scan, relation = self._scan, self._scan.relation()
        sliced = with_index(relation, index)
        return scan.copy(
            sliced,
            scan.stream(),
            scan.output(),
            scan.requiredSchema(),
            scan.partitionFilters(),
            scan.optionalBucketSet(),
            scan.optionalNumCoalescedBuckets(),
            scan.dataFilters(),
            scan.tableIdentifier(),
            scan.disableBucketedScan(),
        )

    def _delta_files(self) -> list[tuple[str, int, Any]]:
        if self._is_prepared:
            adds = self._index.preparedScan().files()
        else:
            adds = self._index.matchingFiles(self._partition_filters(), self._scan.dataFilters())
        return [(str(add.path()), int(add.size()), add) for add in items_of(adds)]

    def _delta_index(self, files: list[Any]) -> Any:
        # The index that Delta's planning leaves in a scan would choose the files again; a batch index has these files.
        delta, index = java_of(self._spark).org.apache.spark.sql.delta, self._index
        snapshot = index.preparedScan().scannedSnapshot() if self._is_prepared else index.getSnapshot()
        adds = scala_seq(self._spark, files)
        return delta.files.TahoeBatchFileIndex(
            self._spark._jsparkSession, "batch", adds, index.deltaLog(), index.path(), snapshot, False
        )

    def _partition_filters(self) -> Any:
        """Return the filters of partitions that can be evaluated now; those with a subquery are left to the scan."""
        has_subquery = scala_object(self._spark, "org.apache.spark.sql.catalyst.expressions.SubqueryExpression").hasSubquery
        return scala_seq(self._spark, [each for each in items_of(self._scan.partitionFilters()) if not has_subquery(each)])

    def _plain_files(self) -> list[tuple[str, int, Any]]:
        folders = items_of(self._index.listFiles(self._partition_filters(), self._scan.dataFilters()))
        files = [file for folder in folders for file in items_of(folder.files())]
        return [(path := str(file.getPath().toString()), int(file.getLen()), path) for file in files]


def is_delta(index: Any) -> bool:
    """Return whether a file index is that of a Delta table."""
    return str(index.getClass().getName()).startswith("org.apache.spark.sql.delta.")


def index_of_files(spark: SparkSession, index: Any, paths: Sequence[str]) -> Any:
    """Return a file index like another one, but over some files only, with the same values of partition columns.

    Their folders may be called anything: ALTER TABLE .. PARTITION .. SET LOCATION says which values a folder has.
    """
    java = java_of(spark)
    is_of_catalog = str(index.getClass().getSimpleName()) == "CatalogFileIndex"
    partitions = (index.filterPartitions(scala_seq(spark, [])) if is_of_catalog else index).partitionSpec()
    datasources = java.org.apache.spark.sql.execution.datasources
    return datasources.InMemoryFileIndex(
        spark._jsparkSession,
        scala_seq(spark, [java.org.apache.hadoop.fs.Path(path) for path in paths]),
        java.org.apache.spark.api.python.PythonUtils.toScalaMap({}),
        java.scala.Option.apply(index.partitionSchema()),
        getattr(datasources, "NoopCache$").__getattr__("MODULE$"),
        java.scala.Option.apply(partitions if int(index.partitionSchema().length()) else None),
        java.scala.Option.apply(None),
    )


def with_index(relation: Any, index: Any) -> Any:
    """Return a HadoopFsRelation over another file index."""
    return relation.copy(
        index,
        relation.partitionSchema(),
        relation.dataSchema(),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        relation.sparkSession(),
    )
