"""The first row by an ORDER BY, as an aggregate: MIN_BY or MAX_BY over a struct of the sort columns.

They skip a row whose sort value is null, and a struct never is. Its fields compare as ORDER BY does, nulls lowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import struct_of


def first_by(
    value: exp.Expr, order: Sequence[exp.Ordered], call: exp.Expr, name: str, *, is_last: bool = False, rows: int | None = None
) -> exp.Expr:
    """Return the aggregate of a value of the first row, or of the last one; of so many rows, as an array in their order.

    Args:
        value: the value; it becomes a part of the result.
        order: the sort columns.
        call, name: what sorts by them, for an error.

    Raises:
        RefusalError: they sort in both directions.
    """
    descends = {bool(by.args.get("desc")) for by in order}
    if len(descends) > 1:
        message = f"{name} sorts its columns in both directions. Sort all of them ASC, or all DESC."
        raise RefusalError(UnsupportedError(message), call)
    is_lowest = is_last == descends.pop()
    key = struct_of([part for by in order for part in _key(by)])
    count = [] if rows is None else [exp.Literal.number(rows)]
    return exp.Anonymous(this="MIN_BY" if is_lowest else "MAX_BY", expressions=[value, key, *count])


def _key(by: exp.Ordered) -> list[exp.Expr]:
    """Return expressions that sort like one column of ORDER BY; an extra one where NULLS FIRST or LAST is not Spark's default."""
    column = by.this.copy()
    if bool(by.args.get("nulls_first")) != bool(by.args.get("desc")):
        return [column]
    return [is_null(column), column]


def is_null(value: exp.Expr) -> exp.Expr:
    """Return the condition that a value is null."""
    whole = value.copy() if isinstance(value, exp.Column) else exp.Paren(this=value.copy())
    return exp.Is(this=whole, expression=exp.Null())
