"""Statements that call partition operators: what Spark is to parse, what EXPLAIN adds, and SHOW PARTITION FUNCTIONS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from sqlext.commands.answers import Answer, SparkStatement, Table
from sqlext.execution.partitions.partition import ATTRIBUTES
from sqlext.functions.keyed import KEYED_FUNCTIONS
from sqlext.functions.partition import PARTITION_FUNCTIONS
from sqlext.redaction import SqlText
from sqlext.spark.jvm import frame_of
from sqlext.sql.statements import PartitionQuery


def answer(spark: SparkSession, query: PartitionQuery, spark_parse: Callable[[str], Any]) -> Answer:
    """Hand a statement on in Spark's form; `extension/table_functions.py` then plans each call. EXPLAIN shows the attributes."""
    if not query.is_explain:
        return SparkStatement(query.text)
    plan = frame_of(spark, spark_parse(query.text)).collect()[0][0]  # Spark's EXPLAIN runs nothing
    operators = [SqlText(f"{written} [{ATTRIBUTES[operator]}]") for operator, written in query.calls]
    return Table({"plan": "STRING"}, [{"plan": ("== Partition operators ==", *operators, "", plan.rstrip())}])


def functions_table() -> Table:
    """SHOW PARTITION FUNCTIONS: those of whole partitions, and those of keys."""
    columns = {"name": "STRING", "operator": "STRING", "reads": "STRING", "returns": "STRING"}
    rows = [
        {"name": each.name, "operator": each.operator, "reads": each.reads, "returns": each.returns or None}
        for each in PARTITION_FUNCTIONS
    ]
    keyed = [{"name": each.name, "operator": each.operator, "reads": "rows", "returns": each.returns} for each in KEYED_FUNCTIONS]
    return Table(columns, [*rows, *keyed])
