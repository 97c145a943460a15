"""The footers of Parquet files.

Calls Parquet through Py4J. Checked with Parquet 1.17.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.java import java_of


class Footers:
    """A reader of footers. Thread-safe.

    Args:
        spark: the session whose Hadoop configuration opens the files.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._parquet = java_of(spark).org.apache.parquet
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        # Without options, Parquet reads all of Hadoop's XML files again for each file.
        self._options = self._parquet.HadoopReadOptions.builder(self._conf).build()

    def rows_in(self, status: Any) -> int:
        """Return the number of rows of a file, given its Hadoop FileStatus.

        Raises:
            Py4JJavaError: the file is gone, or has no footer.
        """
        with self._opened(self._parquet.hadoop.util.HadoopInputFile.fromStatus(status, self._conf)) as reader:
            return int(reader.getRecordCount())

    @contextmanager
    def of(self, path: Any) -> Iterator[Any]:
        """Yield Parquet's ParquetMetadata of a file, given its Hadoop Path.

        Raises:
            Py4JJavaError: the file is gone, or has no footer.
        """
        with self._opened(self._parquet.hadoop.util.HadoopInputFile.fromPath(path, self._conf)) as reader:
            yield reader.getFooter()

    @contextmanager
    def _opened(self, file: Any) -> Iterator[Any]:
        reader = self._parquet.hadoop.ParquetFileReader.open(file, self._options)
        try:
            yield reader
        finally:
            reader.close()
