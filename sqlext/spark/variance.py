"""Whether the result of a query may change though nothing that it reads does: it reads the time, or random numbers.

Relies on Spark's private side: Catalyst's expressions, and which of them its optimizer takes for the day of the run. Checked with
Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from sqlext.spark.failures import SPARK_ERRORS
from sqlext.spark.java import items_of, java_of, scala_seq
from sqlext.spark.plans import kind, nodes_of

_MOMENTS = frozenset(
    "CurrentTimestamp Now CurrentDate LocalTimestamp CurrentTime CurrentBatchTimestamp CurrentUser CurrentCatalog "
    "CurrentDatabase CurrentTimeZone InputFileName InputFileBlockStart InputFileBlockLength".split()
)
_OF_SPARK = "org.apache.spark.sql.catalyst.expressions.aggregate."
_OF_CATALOGS = "V2Aggregator"
_DAY = re.compile(r"\s*(?:now|today|yesterday|tomorrow)\b", re.IGNORECASE)
_TYPED = re.compile(
    r"\b(?:date|timestamp(?:_ntz|_ltz)?)\s*r?(['\"])(\s*(?:now|today|yesterday|tomorrow)\b[^'\"]*)\1", re.IGNORECASE
)
_DATES = ("date", "timestamp", "timestamp_ntz")


class Variance:
    """Finds what varies in the plans of a session. Holds no state, so any thread may call it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = java_of(spark)

    def of_plan(self, plan: Any) -> str | None:
        """Return the first expression whose value differs from one run to the next, such as `rand()`; None if there is none."""
        patterns = self._java.org.apache.spark.sql.catalyst.trees.TreePattern
        current, cast = patterns.CURRENT_LIKE(), patterns.CAST()
        for node in nodes_of(plan):
            for expression in items_of(node.expressions()):
                found = self._day(expression) if expression.containsPattern(cast) else None
                if found is None and (not expression.deterministic() or expression.containsPattern(current)):
                    found = self._varying(expression)
                if found is not None:
                    return found
        return None

    def day_of(self, expressions: Iterable[Any]) -> str | None:
        """Return the first text in expressions that Spark takes for the time of its planning, such as 'today'; None: no one."""
        cast = self._java.org.apache.spark.sql.catalyst.trees.TreePattern.CAST()
        days = (self._day(each) for each in expressions if each.containsPattern(cast))
        return next((day for day in days if day is not None), None)

    def _varying(self, expression: Any) -> str | None:
        children = items_of(expression.children())
        found = next((each for child in children if (each := self._varying(child)) is not None), None)
        is_cause = kind(expression) in _MOMENTS or self._is_cause(expression, children)
        return found or (f"{_name_of(expression)}()" if is_cause else None)

    def _is_cause(self, expression: Any, children: list[Any]) -> bool:
        """Return whether an expression varies by itself; Spark's aggregate functions do by the order of rows only."""
        if expression.deterministic() or kind(expression) == "AggregateExpression":
            return False
        if str(expression.getClass().getName()).startswith(_OF_SPARK) and kind(expression) != _OF_CATALOGS:
            return False
        if all(child.deterministic() for child in children):
            return True
        literal = self._java.org.apache.spark.sql.catalyst.expressions.Literal
        still = [child if child.deterministic() else literal(None, child.dataType()) for child in children]
        try:
            return not expression.withNewChildren(scala_seq(self._spark, still)).deterministic()
        except SPARK_ERRORS:  # it takes children of one kind only, so it is nothing that a user calls
            return False

    def _day(self, expression: Any) -> str | None:
        """Return a text in an expression that Spark takes for the time of the run as it makes a date of it, such as 'today'."""
        found = next((each for child in items_of(expression.children()) if (each := self._day(child)) is not None), None)
        if found is not None or kind(expression) != "Cast" or str(expression.dataType().typeName()) not in _DATES:
            return found
        child = expression.child()
        if not child.foldable() or not str(child.dataType().typeName()).startswith(("string", "char", "varchar")):
            return None
        try:
            text = str(child.eval(None))
        except SPARK_ERRORS:  # it has no value before Spark runs it, like current_user(), or never has
            return None
        return f"'{text}'" if _DAY.match(text) else None


def _name_of(expression: Any) -> str:
    """Return the name of a function, as its caller writes it."""
    return str(expression.name() if kind(expression) in ("PythonUDF", "PythonUDAF") else expression.prettyName())


def day_in(texts: Iterable[str]) -> str | None:
    """Return the text of a literal in SQL such as DATE'today', for which Spark's parser puts the day; None if there is none."""
    found = next((each for text in texts if (each := _TYPED.search(text)) is not None), None)
    return None if found is None else f"'{found[2]}'"
