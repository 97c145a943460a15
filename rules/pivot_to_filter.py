"""PIVOT over a stream: one aggregate with FILTER for each of its values."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.quoting import fold
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import function_name, reads_stream, streaming_ctes

_DOUBLES = frozenset("stddev stddev_pop stddev_samp var_pop var_samp variance".split())
_NULL_OF_NOTHING = frozenset("avg max mean min sum".split()) | _DOUBLES
_COUNTS = frozenset(("count", "count_if"))  # 0 for no rows, where PIVOT may return null
_TYPES_OF_NULL = "^(tinyint|smallint|int|bigint|float|double|boolean|decimal.*)$"
"""The types for which Spark's PIVOT aggregates in two steps.

If all aggregates have one of these types, Spark groups by the pivot column too, so a value without rows has no count (null).
Otherwise it aggregates in one step, and the count is 0.
"""
_DECIMAL = re.compile(r"(0|[1-9][0-9]*)\.[0-9]+")


@dataclass(frozen=True)
class _Value:
    """A value of the IN list; `name` is its column's name, or with several aggregates the beginning of its columns' names."""

    literal: exp.Expr
    name: str


def pivot_to_filter(query: exp.Query) -> exp.Query:
    """Rewrite PIVOT into a GROUP BY of the columns that it does not read, with a filtered aggregate for each value.

    The grouping columns must be visible in the query, so PIVOT must follow a subquery with named columns. Other forms of PIVOT
    are left unchanged, and refused later. Spark casts a value to the type of the column, which only Spark knows; comparing a
    column with a string that is not a number has the same effect.

    SELECT * FROM (SELECT c, v FROM STREAM t) PIVOT (sum(v) FOR c IN ('a'))
    -> SELECT * FROM (SELECT sum(v) FILTER(WHERE c IS NOT DISTINCT FROM 'a') AS `a` FROM (SELECT c, v FROM STREAM t))
    """
    ctes = streaming_ctes(query)
    for relation in list(query.find_all(exp.Subquery)):
        pivots = relation.args.get("pivots") or []
        if len(pivots) == 1 and not pivots[0].args.get("unpivot") and reads_stream(relation.this, ctes):
            aggregated = _aggregated(relation, pivots[0])
            if aggregated is not None:
                relation.replace(exp.Subquery(this=aggregated, alias=pivots[0].args.get("alias")))
    return query


def _aggregated(relation: exp.Subquery, pivot: exp.Pivot) -> exp.Select | None:
    """Return the aggregate that a pivoted subquery becomes; None when this rule does not support its form."""
    has_more = any(value for name, value in relation.args.items() if name not in ("this", "alias", "pivots"))
    columns, calls, column = _columns(relation), _calls(pivot), _column(pivot)
    if has_more or not columns or not calls or column is None:
        return None
    values = _values(pivot)
    read = {_top_level(each, relation, columns) for call, _ in calls for each in call.find_all(exp.Column)}
    read.add(_top_level(column, relation, columns))
    keys = [exp.Column(this=name.copy()) for folded, name in columns.items() if folded not in read]
    items: list[exp.Expr] = list(keys)
    for value in values:
        condition = exp.NullSafeEQ(this=column.copy(), expression=_cast(value.literal, column))
        for call, suffix in calls:
            of_value = _of_value(call, condition, [each for each, _ in calls])
            items.append(exp.alias_(of_value, value.name + suffix, quoted=True))
    below = relation.copy()
    below.set("pivots", None)
    select = exp.Select(expressions=items, from_=exp.From(this=below))
    if keys:
        select.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    return select


def _columns(relation: exp.Subquery) -> dict[str, exp.Identifier]:
    """Return the columns of a subquery by folded name; none if a column has no name or two have the same."""
    query = relation.this
    items = query.expressions if isinstance(query, exp.Select) else []
    alias = relation.args.get("alias")
    if (alias is not None and alias.args.get("columns")) or not all(_is_named(item) for item in items):
        return {}
    names: list[exp.Identifier] = [item.args["alias"] if isinstance(item, exp.Alias) else item.this for item in items]
    found = {fold(name.name): name for name in names}
    return found if len(found) == len(names) else {}


def _is_named(item: exp.Expr) -> bool:
    if isinstance(item, exp.Alias):
        return isinstance(item.args.get("alias"), exp.Identifier)
    return isinstance(item, exp.Column) and isinstance(item.this, exp.Identifier)


def _top_level(column: exp.Column, relation: exp.Subquery, columns: dict[str, exp.Identifier]) -> str:
    """Return the folded name of the subquery's column that an expression reads, itself or a field of it.

    Spark takes the first part of a dotted name for the subquery's alias if possible, otherwise for a column.
    """
    parts = [fold(part.name) for part in column.parts]
    if len(parts) > 1 and relation.alias and parts[0] == fold(relation.alias) and parts[1] in columns:
        return parts[1]
    if parts[0] in columns:
        return parts[0]
    name = ".".join(part.name for part in column.parts)
    raise _refused(
        f"PIVOT reads `{name}`, which is not a column of the subquery before it, so its grouping columns are not known. Give the "
        "subquery a column of that name.",
        column,
    )


def _calls(pivot: exp.Pivot) -> list[tuple[exp.Expr, str]]:
    """Return each aggregate call of PIVOT with the suffix of its columns' names; none if a call is not supported."""
    found: list[tuple[exp.Expr, str]] = []
    for each in pivot.expressions:
        is_named = isinstance(each, exp.Alias)
        found.append((each.this if is_named else each, f"_{each.alias}" if is_named else ""))
    if len(found) == 1:
        found = [(found[0][0], "")]
    elif any(not suffix for _, suffix in found):
        return []
    are_simple = all(
        function_name(call) in _NULL_OF_NOTHING | _COUNTS and call.find(exp.Lambda, exp.Query) is None for call, _ in found
    )
    return found if are_simple else []


def _column(pivot: exp.Pivot) -> exp.Column | None:
    """Return the column after FOR; Spark allows only one without a qualifier."""
    fields = pivot.args.get("fields") or []
    if len(fields) != 1 or not isinstance(fields[0], exp.In):
        return None
    column = fields[0].this
    return column if isinstance(column, exp.Column) and len(column.parts) == 1 else None


def _values(pivot: exp.Pivot) -> list[_Value]:
    """Return the values of the IN list.

    Raises:
        RefusalError: a value is not a literal, its column's name is not known, or it is given twice.
    """
    found: dict[str, _Value] = {}
    for each in pivot.args["fields"][0].expressions:
        literal = each.this if isinstance(each, exp.PivotAlias) else each
        name = each.alias if isinstance(each, exp.PivotAlias) else _name_of(literal)
        if not _is_literal(literal):
            raise _refused("PIVOT over a stream takes literals after IN, and this is not one. Write the value itself.", each)
        text = _text_of(literal)
        if name is None or (not name and len(pivot.expressions) == 1):
            raise _refused("Spark's name for the column of this value is not known. Give it a name: IN (value AS name).", each)
        if text in found:
            raise _refused(f"PIVOT names the value {literal.sql('spark')} twice. Name it once.", each)
        found[text] = _Value(literal, name)
    return list(found.values())


def _refused(message: str, node: exp.Expr) -> RefusalError:
    return RefusalError(UnsupportedError(message), node)


def _is_literal(node: exp.Expr) -> bool:
    """Return whether a node is a number, string, boolean, null, or a typed literal such as DATE '2026-01-01'."""
    node = node.this if isinstance(node, exp.Neg) else node
    of_text = isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal)
    return of_text or isinstance(node, (exp.Literal, exp.Boolean, exp.Null))


def _name_of(literal: exp.Expr) -> str | None:
    """Return the text that Spark casts a literal to; None where that is not certain."""
    if isinstance(literal, exp.Null):
        return "null"
    if isinstance(literal, exp.Boolean):
        return str(literal.this).lower()
    if isinstance(literal, exp.Literal) and literal.is_string:
        return str(literal.this)
    if isinstance(literal, exp.Cast) and literal.is_type("date"):
        with suppress(ValueError):
            return literal.name if date.fromisoformat(literal.name).isoformat() == literal.name else None
        return None
    number = literal.this if isinstance(literal, exp.Neg) else literal
    sign = "-" if isinstance(literal, exp.Neg) else ""
    if isinstance(number, exp.Literal) and number.is_int:
        return str(int(sign + number.name))
    is_decimal = isinstance(number, exp.Literal) and _DECIMAL.fullmatch(number.name) and float(number.name)
    return sign + number.name if is_decimal else None


def _text_of(literal: exp.Expr) -> str:
    """Return a form in which literals are equal that may be the same value in the column's type: 1, 1.0 and '01' are."""
    if isinstance(literal, exp.Null):
        return "NULL"
    text = _name_of(literal) or literal.sql("spark")
    return f"{number:g}" if (number := _number(text)) is not None else f"'{text}"


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text.strip().rstrip("dDfFlL") or "-")
    return None


def _cast(literal: exp.Expr, column: exp.Column) -> exp.Expr:
    """Return a value cast to the column's type, as PIVOT casts it; `c <=> 1` would cast a string column c instead."""
    is_text = isinstance(literal, exp.Literal) and literal.is_string and _number(literal.name) is None
    if is_text or isinstance(literal, exp.Null):
        return literal.copy()
    variant, root = exp.cast(literal.copy(), "VARIANT"), exp.Literal.string("$")
    return exp.Anonymous(this="variant_get", expressions=[variant, root, _type_of(column)])


def _type_of(node: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this="typeof", expressions=[node.copy()])


def _of_value(call: exp.Expr, condition: exp.Expr, calls: list[exp.Expr]) -> exp.Expr:
    """Return a call over the rows of one value; a count of no rows is null where Spark's two steps return null."""
    filtered = _filtered(call, condition)
    if function_name(call) not in _COUNTS:
        return filtered
    some: exp.Expr = exp.GT(this=exp.Anonymous(this="COUNT_IF", expressions=[condition.copy()]), expression=exp.Literal.number(0))
    for other in calls:
        if function_name(other) not in _COUNTS | _DOUBLES:
            kind = exp.RegexpLike(this=_type_of(_filtered(other, condition)), expression=exp.Literal.string(_TYPES_OF_NULL))
            some = exp.Or(this=some, expression=exp.Not(this=kind))
    return exp.Case(ifs=[exp.If(this=some, true=filtered)])


def _filtered(call: exp.Expr, condition: exp.Expr) -> exp.Expr:
    return exp.Filter(this=call.copy(), expression=exp.Where(this=condition.copy()))
