"""Keys that are a table's partition columns too.

Delta keeps a partition's value as text, and reads that text back. A few values do not come back as they were: an empty string
becomes NULL, of two instants that a clock shows alike one becomes the other. In a key this doubles groups, or mixes them, so a
flush refuses such values before it commits anything. A flow that only adds rows gives what a batch INSERT does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from sqlext.errors import FlowError
from sqlext.plan.flow_spec import Column, FlowSpec, StreamSpec
from sqlext.quoting import quote
from sqlext.spark import delta_tables

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"  # what Spark's writers call the folder of a partition whose value is NULL
_PLAIN_TIME = "TIMESTAMP_NTZ"  # no clock is set back in it
_KINDS = ("STRING", "VARCHAR", "CHAR", "BINARY", "TIMESTAMP")


def lossy(spark: SparkSession, location: str, columns: Sequence[Column]) -> tuple[str, ...]:
    """Return the partition columns of a table, among some of its columns, whose type has values that do not come back unchanged.

    Args:
        location: where the table lies.
    """
    found = {column.target for column in columns if may_be_lost(column.type)}
    return tuple(name for name in delta_tables.partition_columns(spark, location) if name in found) if found else ()


def refuse_lost_values(spec: FlowSpec, stream: StreamSpec, names: Sequence[str], rows: DataFrame) -> None:
    """Look for keys that would not come back from the table.

    Args:
        names: key columns that the table is partitioned by, as `lossy` gives them.
        rows: rows of the table with all keys that a flush brings.

    Raises:
        FlowError: names the column and the value; nothing was committed.
    """
    kinds = {column.target: column.type for column in stream.columns}
    for name in names:
        found = rows.where(is_lost(name, kinds[name])).selectExpr(_as_literal(name)).take(1)
        if found:
            raise FlowError(
                f"A group of flow `{spec.name}` has {found[0][0]} in the key `{name}`, by which {'.'.join(spec.target)} is "
                "partitioned, and Delta does not keep that value in a partition: groups would be doubled or mixed. Nothing of "
                f"this flush was committed. Make the table CLUSTER BY ({name}) instead of PARTITIONED BY, or let the query give "
                f"another value, such as nullif({name}, '') for an empty string."
            )


def may_be_lost(kind: str) -> bool:
    """Return whether a type, given as DDL, has values that do not come back unchanged from a partition."""
    return kind.upper().startswith(_KINDS) and kind.upper() != _PLAIN_TIME


def is_lost(name: str, kind: str) -> str:
    """Return SQL for whether a value changes, or becomes NULL, when it is stored as text."""
    column = quote(name)
    text = f"CAST({column} AS STRING)"
    return f"{text} IN ('', '{_NULL_FOLDER}') OR NOT is_valid_utf8({text}) OR NOT (TRY_CAST({text} AS {kind}) <=> {column})"


def _as_literal(name: str) -> str:
    return f"concat('''', make_valid_utf8(CAST({quote(name)} AS STRING)), '''')"
