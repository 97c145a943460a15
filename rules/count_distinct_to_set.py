"""count(DISTINCT ..) over a stream: Spark's streaming rejects DISTINCT aggregates, but keeps sets."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import streaming_aggregates, struct_of, with_filter


def count_distinct_to_set(query: exp.Query) -> exp.Query:
    """Rewrite count(DISTINCT ..) into the size of a set; a row with a null in one of several columns does not count, as in Spark.

    SELECT k, count(DISTINCT v) AS n FROM STREAM t GROUP BY k
    -> SELECT k, CAST(SIZE(COLLECT_SET(v)) AS BIGINT) AS n FROM STREAM t GROUP BY k
    """
    for call in streaming_aggregates(query):
        if isinstance(call, exp.Count) and isinstance(call.this, exp.Distinct):
            _replace(call, call.this.expressions)
    return query


def _replace(call: exp.Count, columns: list[exp.Expr]) -> None:
    if any(column.is_star for column in columns):
        message = (
            "count(DISTINCT *) over a stream needs the columns' names: rows with a null in one of them do not count. Name them."
        )
        raise RefusalError(UnsupportedError(message), call)
    members = columns[0].copy() if len(columns) == 1 else _complete_rows(columns)
    whole, collected = with_filter(call, exp.Anonymous(this="COLLECT_SET", expressions=[members]))
    whole.replace(exp.cast(exp.Anonymous(this="SIZE", expressions=[collected]), "BIGINT"))


def _complete_rows(columns: list[exp.Expr]) -> exp.Expr:
    whole = [column.copy() if isinstance(column, exp.Column) else exp.Paren(this=column.copy()) for column in columns]
    no_nulls = exp.and_(*(exp.Not(this=exp.Is(this=column, expression=exp.Null())) for column in whole))
    return exp.Case(ifs=[exp.If(this=no_nulls, true=struct_of(columns))])
