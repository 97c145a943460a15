"""The partition operators, and queries with END OF STREAM, as table functions of Spark: a call becomes a part of the plan.

Spark resolves the table argument first, and then asks for the plan of the call. So a call may be anywhere a relation may be, and
nothing runs before the query does.

Relies on Spark's private side: reads Catalyst expressions and builds Catalyst plans.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.column import Column

from sqlext.errors import Position, SchemaError, SqlextError, UnsupportedError
from sqlext.execution.keyed.keyed import processed
from sqlext.execution.partitions.cogroup import OPERATOR as COGROUP
from sqlext.execution.partitions.cogroup import as_side, cogrouped
from sqlext.execution.partitions.partition import PartitionWindowedDataFrame, as_schema, check_bounded, single_partition, windowed
from sqlext.execution.views.consistent import FUNCTION as CONSISTENT_VERSIONS
from sqlext.execution.views.consistent import rows_of
from sqlext.functions.keyed import KEYED_FUNCTIONS
from sqlext.functions.keyed import OPERATOR as PROCESS_KEYED
from sqlext.functions.partition import PARTITION_FUNCTIONS, AggregateFunction
from sqlext.spark import files, kafka
from sqlext.spark.failures import reason_of
from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.jvm import frame_of, plan_has_watermark
from sqlext.spark.plans import analysed, kind
from sqlext.spark.sorted_plan import end_of_stream
from sqlext.spark.to_its_end import read_to_its_end
from sqlext.sql.end_of_stream import END_OF_STREAM, SORTED
from sqlext.sql.partition_calls import OWN_PARTITIONS


def plan_of_call(spark: SparkSession, operator: str, arguments: Any) -> Any:
    """Return the logical plan of one call.

    Args:
        spark: the session that analyses the query.
        operator: the name of the table function.
        arguments: the arguments as Catalyst expressions, in a Scala Seq; the table argument is resolved.

    Raises:
        SchemaError: the call is malformed, or its function is for another operator.
        NotFoundError: no function of that name is registered.
        UnsupportedError: the table is a stream.
    """
    try:
        if operator in kafka.FUNCTIONS:
            return kafka.plan_of_call(spark, operator, items_of(arguments))
        if operator in files.FUNCTIONS:
            return files.plan_of_call(spark, operator, items_of(arguments))
        if operator == CONSISTENT_VERSIONS:
            return _consistent_versions(spark, items_of(arguments))
        if operator == END_OF_STREAM:
            return _end_of_stream(spark, *items_of(arguments))
        return _plan(spark, operator, items_of(arguments))
    except SqlextError as error:
        error.position = error.position or _position(spark)
        raise


def _consistent_versions(spark: SparkSession, arguments: list[Any]) -> Any:
    if not arguments or any(kind(each) != "Literal" or str(each.dataType().typeName()) != "string" for each in arguments):
        raise SchemaError(f"{CONSISTENT_VERSIONS} takes the names of tables as strings, such as ('gold.a', 'gold.b').")
    return analysed(rows_of(spark, [str(each.value()) for each in arguments]))


def _end_of_stream(spark: SparkSession, table: Any, mode: Any) -> Any:
    plan = read_to_its_end(spark, table.plan())
    try:
        return end_of_stream(spark, plan, str(mode.value()) == SORTED)
    except Py4JJavaError as error:  # what Spark says about a query is another exception: this is a fault of its optimizer
        kind_of_error = str(error.java_exception.getClass().getSimpleName())
        raise UnsupportedError(
            "Spark cannot plan the query before GLOBAL WINDOW END OF STREAM: its optimizer fails, as it does without the clause "
            "where all columns are read. Leave out columns that nobody reads, or compute DISTINCT aggregates in queries of their "
            f"own. {kind_of_error}: {reason_of(error)}"
        ) from error


_TABLE = "FunctionTableSubqueryArgumentExpression"
_USAGE = {
    "sort_partition": ([_TABLE], "TABLE(t) [PARTITION BY k] ORDER BY v"),
    COGROUP: ([_TABLE, _TABLE, "Literal"], "TABLE(a) PARTITION BY k, TABLE(b) PARTITION BY k, 'function'"),
}
"""The arguments of an operator: the classes of their Catalyst expressions, and how a user writes them."""
_TABLE_AND_FUNCTION = ([_TABLE, "Literal"], "TABLE(t) [PARTITION BY k] [ORDER BY v], 'function'")


def _plan(spark: SparkSession, operator: str, arguments: list[Any]) -> Any:
    expected, usage = _USAGE.get(operator, _TABLE_AND_FUNCTION)
    if [argument.getClass().getSimpleName() for argument in arguments] != expected:
        raise SchemaError(f"{operator} is called with the wrong arguments. Write {operator}({usage}).")
    tables = [_Table(spark, operator, argument) for argument in arguments[: expected.count(_TABLE)]]
    name = str(arguments[-1].value()) if expected[-1] == "Literal" else ""
    if operator == PROCESS_KEYED:
        result = _processed(tables[0], name)
    elif operator == COGROUP:
        result = _cogrouped(tables[0], tables[1], name)
    else:
        result = _called(operator, tables[0].windows(), name)
    plan = result._jdf.queryExecution().analyzed()
    for table in tables:
        plan = _with_plan(spark, plan, table.leaf, table.plan)
    return plan


class _Table:
    """A table argument: its rows, keys and orders.

    Its plan may refer to a WITH clause of the surrounding query, and no DataFrame can be made of such a plan. So the DataFrame is
    made over a leaf with the same columns, which is replaced by the plan at the end.
    """

    def __init__(self, spark: SparkSession, operator: str, argument: Any) -> None:
        self._spark = spark
        self.operator = operator
        self._stand_for(argument.plan())
        if operator != PROCESS_KEYED:
            check_bounded(operator, self.plan.isStreaming())
        self.is_single = bool(argument.withSinglePartition())
        by = items_of(argument.partitionByExpressions())
        self.keys = [
            (each.sql().replace("`", ""), _column(spark, each)) for each in by if each.sql() != f"'{OWN_PARTITIONS}'"
        ]  # name, for messages, and expression
        orders = items_of(argument.orderByExpressions())
        self.orders = [_column(spark, each) for each in orders]
        self.first_order = [_column(spark, each.child()) for each in orders[:1]]  # without ASC or DESC

    def _stand_for(self, plan: Any) -> None:
        jvm = java_of(self._spark)
        self.plan = plan
        self.leaf = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
            plan.output(), scala_seq(self._spark, []), plan.isStreaming(), jvm.scala.Option.apply(None)
        )
        self.frame = frame_of(self._spark, self.leaf)

    def side(self) -> DataFrame:
        """Return one side of a cogroup, with column ids of its own: both tables may derive from one, and then share columns."""
        side = as_side(self.frame, self.keys)._jdf.queryExecution().analyzed()
        self._stand_for(_with_plan(self._spark, side, self.leaf, self.plan))
        return self.frame

    def windows(self) -> PartitionWindowedDataFrame:
        if self.operator == "sort_partition" and not self.orders:
            raise SchemaError("sort_partition needs an order. Write sort_partition(TABLE(t) ORDER BY v).")
        frame = single_partition(self.frame) if self.is_single else self.frame
        return windowed(self.operator, frame, self.keys, self.orders)


def _column(spark: SparkSession, expression: Any) -> Column:
    return Column(java_of(spark).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _processed(table: _Table, name: str) -> DataFrame:
    if not table.keys:
        raise SchemaError("process_keyed needs keys. Write process_keyed(TABLE(t) PARTITION BY k ORDER BY ts, 'function').")
    registered = KEYED_FUNCTIONS.get(name, PROCESS_KEYED)
    returns = as_schema(PROCESS_KEYED, registered.returns)
    function, times, has_timers = registered.function, table.first_order, plan_has_watermark(table.plan)
    return processed(table.frame, table.keys, function, returns, table.orders, times, registered.name, has_timers)


def _cogrouped(first: _Table, second: _Table, name: str) -> DataFrame:
    for table in (first, second):
        if not table.keys or table.orders or table.is_single:
            raise SchemaError(
                f"cogroup takes PARTITION BY, and no ORDER BY, after each of its tables. Write cogroup({_USAGE[COGROUP][1]})."
            )
    registered = PARTITION_FUNCTIONS.get(name, COGROUP)
    function: Any = registered.function  # registered for cogroup, so it takes two iterators
    names = [key for key, _ in first.keys]
    return cogrouped(first.side(), second.side(), names, function, registered.returns, registered.name)


def _called(operator: str, windows: PartitionWindowedDataFrame, name: str) -> DataFrame:
    if operator == "sort_partition":
        return windows.sorted()
    registered = PARTITION_FUNCTIONS.get(name, operator)
    if isinstance(registered.function, AggregateFunction):
        return windows.aggregate(registered.function, registered.returns, name=registered.name)
    if operator == "map_partition":
        return windows.map_partition(registered.function, registered.returns, name=registered.name)
    return windows.reduce(registered.function, name=registered.name)


def _with_plan(spark: SparkSession, node: Any, leaf: Any, plan: Any) -> Any:
    """Return a plan in which a leaf is replaced by another plan."""
    if node.equals(leaf):
        return plan
    children = items_of(node.children())
    return node.withNewChildren(scala_seq(spark, [_with_plan(spark, child, leaf, plan) for child in children]))


def _position(spark: SparkSession) -> Position | None:
    """Return the position of the call in its statement."""
    origin = java_of(spark).org.apache.spark.sql.catalyst.trees.CurrentOrigin.get()
    if origin.line().isEmpty() or origin.startPosition().isEmpty() or origin.startIndex().isEmpty():
        return None
    return Position(
        origin.line().get(), origin.startPosition().get() + 1, origin.startIndex().get(), origin.stopIndex().get() + 1
    )
