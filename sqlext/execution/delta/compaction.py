"""The compaction of a table, which bounds the number of its files: each flush adds some, a compaction makes few of many.

Only small files and those with many deleted rows are rewritten (`spark/sessions.py` has the thresholds), so the work depends on
what was flushed since the last compaction, not on the table's size.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from sqlext.execution.delta.commit import USER_METADATA
from sqlext.execution.delta.delta_log import table_size
from sqlext.quoting import quote
from sqlext.spark import failures
from sqlext.spark.settings import session_settings

logger = logging.getLogger(__name__)

_FLUSHES_BETWEEN_LOOKS = 8
_FLUSHES_BETWEEN_VACUUMS = 128  # of hidden tables; a small one is rewritten at each flush
_SMALL_FILES = 32


class Compaction:
    """The compaction of one table. Used by one thread.

    Args:
        flow, flow_id: the flow, for the commit's metadata.
        location: the location of the table.
        is_hidden: whether nobody else knows the table, so that its old files are deleted here (`target.create_at` defines how
            old).
    """

    def __init__(self, flow: str, flow_id: str, location: str, is_hidden: bool) -> None:
        self._is_hidden = is_hidden
        self._metadata = json.dumps({"sqlext-compaction": {"flow": flow, "flow_id": flow_id}})
        self._location = location
        self._flushes = 0
        self._at = _SMALL_FILES

    def after_flush(self, spark: SparkSession, open_table: Callable[[], DeltaTable]) -> None:
        """Compact the table if it has many more files than after the last compaction; clean a hidden table of unused files.

        A failure changes nothing, and is retried later: the flow does not fail for it.
        """
        self._flushes += 1
        try:
            if self._flushes % _FLUSHES_BETWEEN_LOOKS == 0:
                self._compact(spark, open_table)
            if self._is_hidden and self._flushes % _FLUSHES_BETWEEN_VACUUMS == 0:
                spark.sql(f"VACUUM delta.{quote(self._location)} LITE")  # by the log: listing all files takes ten times as long
        except Exception as error:  # noqa: BLE001  # of Spark, of the storage, or of a file of the log that is torn
            logger.warning("%s could not be compacted: %s", self._location, failures.reason_of(error))

    def _compact(self, spark: SparkSession, open_table: Callable[[], DeltaTable]) -> None:
        before = self._files(spark)
        table = open_table()
        if before < self._at or table.detail().select("clusteringColumns").first()[0]:  # type: ignore[index]  # one row
            return  # OPTIMIZE of a clustered table sorts it again: its owner decides when
        with session_settings(spark, {USER_METADATA: self._metadata}):
            table.optimize().executeCompaction()
        after = self._files(spark)
        self._at = 2 * after + _SMALL_FILES
        logger.info("compacted %s: from %d files to %d", self._location, before, after)

    def _files(self, spark: SparkSession) -> int:
        size = table_size(spark, self._location)
        return size.files if size is not None else 0  # a writer that writes no checksums compacts the table itself
