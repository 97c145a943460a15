"""FLIP-365's `sum0`: a sum that is 0, not null, when there are no values."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import SchemaError
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import function_name


def expand_sum0(query: exp.Query) -> exp.Query:
    """Rewrite sum0 into Spark's functions.

    SELECT k, sum0(v) AS s FROM STREAM t GROUP BY k
    -> SELECT k, COALESCE(SUM(v), 0) AS s FROM STREAM t GROUP BY k
    """
    for call in list(query.find_all(exp.Anonymous)):
        if function_name(call) == "sum0":
            if len(call.expressions) != 1:
                raise RefusalError(SchemaError(f"sum0 takes one argument, not {len(call.expressions)}."), call)
            whole: exp.Expr = call
            while isinstance(whole.parent, (exp.Filter, exp.Window)):
                whole = whole.parent
            total = exp.Sum(this=call.expressions[0].copy())
            if whole is call:
                call.replace(exp.Coalesce(this=total, expressions=[exp.Literal.number(0)]))
            else:
                call.replace(total)
                whole.replace(exp.Coalesce(this=whole.copy(), expressions=[exp.Literal.number(0)]))
    return query
