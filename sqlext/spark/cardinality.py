"""Whether an aggregate's keys are many, as the files that it reads tell.

A Parquet writer keeps a dictionary of a column's values until that is about a megabyte, and then gives it up: some ten thousands
of strings. The footer of one file says which it was.

This is a seam: it reads Catalyst's plans and Parquet's footers. Seen with Spark 4.2, Delta 4.4 and Parquet 1.17.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sqlext.spark.footers import Footers
from sqlext.spark.java import items_of, java_of

logger = logging.getLogger(__name__)

_DICTIONARY_BYTES = 2**20
"""Parquet's `parquet.dictionary.page.size`: a column that is shorter may do without for other reasons."""
_LOOKED_AT = 8
_PASSED = ("ProjectExec", "FilterExec")
_DELTA_INDEX = "PreparedDeltaFileIndex"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"


def has_many_strings(spark: SparkSession, aggregate: Any) -> bool:
    """Whether a key is a string, straight from a file, for which the file has no dictionary. False where that cannot be told.

    Args:
        aggregate: physical, before its exchange. One footer is read, of one of its files.
    """
    keys = [key for key in items_of(aggregate.groupingExpressions()) if key.dataType().catalogString() == "string"]
    scan = _scan_below(aggregate) if keys else None
    if scan is None:
        return False
    names = _columns(scan, keys)
    try:
        path = _some_file(spark, scan.relation().location()) if names else None
        return path is not None and _without_dictionary(spark, path, names)
    except (Py4JJavaError, PySparkException) as error:  # the query itself will tell what is wrong with the file
        logger.debug("the dictionary of %s cannot be looked at: %s", ", ".join(names), error)
        return False


def _scan_below(node: Any) -> Any:
    while str((node := node.child()).getClass().getSimpleName()) in _PASSED:
        pass
    is_parquet = node.getClass().getSimpleName() == "FileSourceScanExec" and "Parquet" in node.relation().fileFormat().toString()
    return node if is_parquet else None


def _columns(scan: Any, keys: list[Any]) -> set[str]:
    """The names in the files of those keys that are columns."""
    read = [attribute.exprId() for attribute in items_of(scan.output())]
    wanted = {str(key.name()) for key in keys if any(each.equals(key.exprId()) for each in read)}
    index = scan.relation().location()
    is_delta = index.getClass().getSimpleName() == _DELTA_INDEX  # which alone knows what its files call a column
    schema = index.preparedScan().scannedSnapshot().metadata().schema() if is_delta else scan.relation().dataSchema()
    fields = json.loads(schema.json())["fields"]
    return {field["metadata"].get(_PHYSICAL_NAME, field["name"]) for field in fields if field["name"] in wanted}


def _some_file(spark: SparkSession, index: Any) -> Any:
    """The path of the largest of the first files; None where to find one would take a query."""
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
    """Whether the first row group has no dictionary for one of some columns, or only for its beginning."""
    with Footers(spark).of(path) as footer:
        blocks = footer.getBlocks()
        columns = () if blocks.isEmpty() else blocks.get(0).getColumns()
        wanted = (column for column in columns if str(column.getPath().toDotString()) in names)
        pages = [each.getEncodingStats() for each in wanted if each.getTotalUncompressedSize() > _DICTIONARY_BYTES]
        return any(each is not None and each.hasNonDictionaryEncodedPages() for each in pages)
