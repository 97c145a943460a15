"""FLIP-365's `sum0`: a sum that is 0, not null, when there are no values."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import SchemaError
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import function_name


def expand_sum0(query: exp.Query) -> exp.Query:
    """Rewrite sum0 into Spark's functions.

    A sum that is null since it overflowed stays null: so the values are counted. The 0 is a TINYINT, the narrowest type of all
    numbers, so the result has the type of the sum.

    SELECT k, sum0(v) AS s FROM STREAM t GROUP BY k
    -> SELECT k, CASE WHEN COUNT(v) > 0 THEN SUM(v) ELSE CAST(0 AS TINYINT) END AS s FROM STREAM t GROUP BY k
    """
    for call in list(query.find_all(exp.Anonymous)):
        if function_name(call) == "sum0":
            if len(call.expressions) != 1:
                raise RefusalError(SchemaError(f"sum0 takes one argument, not {len(call.expressions)}."), call)
            whole: exp.Expr = call
            while isinstance(whole.parent, (exp.Filter, exp.Window)) and whole.arg_key == "this":
                whole = whole.parent
            whole.replace(_sum_or_zero(call.expressions[0], call, whole))
    return query


def _sum_or_zero(value: exp.Expr, call: exp.Expr, whole: exp.Expr) -> exp.Case:
    """Return the sum of a value, or 0 if there are none.

    Args:
        value: the argument of the call; with DISTINCT, there are values of it if there are distinct ones.
        whole: the call with its FILTER and OVER.
    """
    counted = value.expressions[0] if isinstance(value, exp.Distinct) else value
    count = _in_place(exp.Count(this=counted.copy(), big_int=True), call, whole)
    total = _in_place(exp.Sum(this=value.copy()), call, whole)
    some = exp.GT(this=count, expression=exp.Literal.number(0))
    return exp.Case(ifs=[exp.If(this=some, true=total)], default=exp.cast(exp.Literal.number(0), "TINYINT"))


def _in_place(aggregate: exp.Expr, call: exp.Expr, whole: exp.Expr) -> exp.Expr:
    """Return a call's FILTER and OVER with another aggregate in the call's place."""
    if whole is call:
        return aggregate
    around = whole.copy()
    around.set("this", _in_place(aggregate, call, whole.this))
    return around
