"""Whether an aggregate has many distinct keys, judged by the files that it reads.

A Parquet writer keeps a dictionary of a column's values until it reaches about a megabyte, some tens of thousands of strings, and
then gives it up. The footer of a single file shows which was the case.

Relies on Spark's private side: reads Catalyst plans and Parquet footers. Checked with Spark 4.2, Delta 4.4 and Parquet 1.17.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.footers import Footers
from sqlext.spark.java import items_of, java_of

logger = logging.getLogger(__name__)

_DICTIONARY_BYTES = 2**20
"""Parquet's `parquet.dictionary.page.size`: a smaller column may lack a dictionary for other reasons."""
_LOOKED_AT = 8
_PASSED = ("ProjectExec", "FilterExec")
_DELTA_INDEX = "PreparedDeltaFileIndex"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


def has_many_strings(spark: SparkSession, aggregate: Any) -> bool:
    """Return whether a key is a string straight from a file that has no dictionary for it; False if that is unknown.

    Args:
        spark: the session.
        aggregate: the physical aggregate before its exchange. The footer of one of its files is read.
    """
    keys = [key for key in items_of(aggregate.groupingExpressions()) if key.dataType().catalogString() == "string"]
    scan = _scan_below(aggregate) if keys else None
    if scan is None:
        return False
    names = _columns(scan, keys)
    try:
        path = _some_file(spark, scan.relation().location()) if names else None
        return path is not None and _without_dictionary(spark, path, names)
    except SPARK_ERRORS as error:  # the query itself will report what is wrong with the file
        logger.debug("the dictionary of %s cannot be examined: %s", ", ".join(names), error)
        return False


def _scan_below(node: Any) -> Any:
    while str((node := node.child()).getClass().getSimpleName()) in _PASSED:
        pass
    is_parquet = node.getClass().getSimpleName() == "FileSourceScanExec" and "Parquet" in node.relation().fileFormat().toString()
    return node if is_parquet else None


def _columns(scan: Any, keys: list[Any]) -> set[str]:
    """Return the names, in the files, of those keys that are columns."""
    read = [attribute.exprId() for attribute in items_of(scan.output())]
    wanted = {str(key.name()) for key in keys if any(each.equals(key.exprId()) for each in read)}
    index = scan.relation().location()
    is_delta = index.getClass().getSimpleName() == _DELTA_INDEX  # only it knows the names of columns in its files
    schema = index.preparedScan().scannedSnapshot().metadata().schema() if is_delta else scan.relation().dataSchema()
    fields = json.loads(schema.json())["fields"]
    return {field["metadata"].get(_PHYSICAL_NAME, field["name"]) for field in fields if field["name"] in wanted}


def _some_file(spark: SparkSession, index: Any) -> Any:
    """Return the path of the largest of the first files; None if it would take a query to find one."""
    path = java_of(spark).org.apache.hadoop.fs.Path
    kind = str(index.getClass().getSimpleName())
    if kind == _DELTA_INDEX:
        files = items_of(index.preparedScan().files().take(_LOOKED_AT))
        uri = java_of(spark).java.net.URI
        return path(index.path(), path(uri(max(files, key=lambda add: int(add.size())).path()))) if files else None
    if kind == "InMemoryFileIndex":
        files = items_of(index.allFiles().take(_LOOKED_AT))
        return max(files, key=lambda status: int(status.getLen())).getPath() if files else None
    return None


def _without_dictionary(spark: SparkSession, path: Any, names: set[str]) -> bool:
    """Return whether the first row group has no dictionary for one of these columns, or only for its beginning."""
    with Footers(spark).of(path) as footer:
        blocks = footer.getBlocks()
        columns = () if blocks.isEmpty() else blocks.get(0).getColumns()
        wanted = (column for column in columns if str(column.getPath().toDotString()) in names)
        pages = [each.getEncodingStats() for each in wanted if each.getTotalUncompressedSize() > _DICTIONARY_BYTES]
        return any(each is not None and each.hasNonDictionaryEncodedPages() for each in pages)
