"""listagg(DISTINCT ..) over a stream: Spark keeps a set, whose members are sorted and joined."""

from __future__ import annotations

from sqlglot import exp

from sqlext.sql.trees import streaming_aggregates, with_filter


def listagg_distinct_to_set(query: exp.Query) -> exp.Query:
    """Rewrite listagg(DISTINCT ..) into the sorted and joined members of a set; null for an empty set.

    Spark compares the texts of the values: those of 0.0 and -0.0 differ, those of two times in the hour that a clock goes back
    do not. CONCAT of one value makes its text as listagg does, and leaves a STRING as it is, with its collation. With WITHIN
    GROUP, Spark takes only types whose values differ where their texts do, and sorts the values; without it any order is valid.

    SELECT listagg(DISTINCT v) FROM STREAM t
    -> SELECT CASE WHEN SIZE(COLLECT_SET(CONCAT(v))) > 0 THEN ARRAY_JOIN(SORT_ARRAY(COLLECT_SET(CONCAT(v))), '') END FROM STREAM t
    """
    for call in streaming_aggregates(query):
        if isinstance(call, exp.GroupConcat) and (found := _members_and_direction(call)) is not None:
            whole, collected = with_filter(call, exp.Anonymous(this="COLLECT_SET", expressions=[found[0].copy()]))
            ordered = _call("SORT_ARRAY", collected, *([exp.false()] if found[1] else []))
            joined = _call("ARRAY_JOIN", ordered, _delimiter(call))
            some = exp.GT(this=_call("SIZE", collected.copy()), expression=exp.Literal.number(0))
            whole.replace(exp.Case(ifs=[exp.If(this=some, true=joined)]))
    return query


def _members_and_direction(call: exp.GroupConcat) -> tuple[exp.Expr, bool] | None:
    """Return the expression whose set is joined, and whether it is sorted descending; None for a call that is left to Spark."""
    order = call.this if isinstance(call.this, exp.Order) else None
    distinct = order.this if order else call.this
    if not isinstance(distinct, exp.Distinct) or len(distinct.expressions) != 1:
        return None
    member = distinct.expressions[0]
    if order is None:
        return _call("CONCAT", member.copy()), False
    by = order.expressions
    if len(by) != 1 or by[0].this != member:  # Spark rejects another sort expression for distinct values
        return None
    return member, bool(by[0].args.get("desc"))


def _delimiter(call: exp.GroupConcat) -> exp.Expr:
    """Return listagg's delimiter: an empty string if it is absent or null."""
    given = call.args.get("separator")
    if given is None or isinstance(given, exp.Null):
        return exp.Literal.string("")
    return given.copy() if given.is_string else exp.Coalesce(this=given.copy(), expressions=[exp.Literal.string("")])


def _call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(arguments))
