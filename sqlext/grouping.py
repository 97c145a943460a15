"""Which columns of an aggregate's output are its key: the ones a flush finds a row of the target by."""

from __future__ import annotations

from sqlglot import exp

from sqlext.dialect import position_of, to_sql
from sqlext.errors import UnsupportedError
from sqlext.plan import QUALIFIES, Key
from sqlext.shape import function_name, is_aggregate_call


def key_of(select: exp.Select, source: str) -> Key:
    """The key of a streaming aggregate's output.

    Raises:
        UnsupportedError: a grouping key is not in the select list, is changed there, or has no name.
    """
    group = select.args.get("group")
    items = [item for item in select.expressions if item.alias_or_name != QUALIFIES]
    if group is None:
        return Key()
    for clause in ("rollup", "cube", "grouping_sets"):
        if group.args.get(clause) or any(item.key == clause.replace("_", "") for item in group.expressions):
            raise UnsupportedError(
                f"{clause.replace('_', ' ').upper()} makes rows whose key is not in the target: a subtotal's null and a null "
                "of the data look alike. Write one flow for each grouping.",
                position_of(group, source),
            )
    if group.args.get("all"):
        return _key_of_group_by_all(items, source)
    columns = [_column_for(expression.unnest(), items, source) for expression in group.expressions]
    return Key(tuple(dict.fromkeys(column for column in columns if column)))


def _key_of_group_by_all(items: list[exp.Expr], source: str) -> Key:
    values = [item for item in items if any(is_aggregate_call(node) for node in item.walk())]
    keys = [item for item in items if not any(item is value for value in values)]
    if any(item.find(exp.Star) for item in keys):
        return Key(tuple(_name(item, source) for item in values), all_but=True)
    return Key(tuple(_name(item, source) for item in keys))


def _column_for(expression: exp.Expr, items: list[exp.Expr], source: str) -> str:
    """The output column that carries one grouping expression."""
    if isinstance(expression, exp.Literal) and expression.is_int:
        index = int(expression.name) - 1
        if any(item.is_star for item in items[: index + 1]):
            raise UnsupportedError(f"GROUP BY {index + 1} counts from a `*`. Name the column.", position_of(expression, source))
        if 0 <= index < len(items):
            return _name(items[index], source)
    for item in items:
        if _same(_unaliased(item), expression):
            return _name(item, source)
    for item in items:
        if _is_alias_of(item, expression) or _names_window(item, expression):
            return _name(item, source)
    if isinstance(expression, exp.Literal):
        return ""  # a constant tells no two rows apart
    text = to_sql(expression, source)
    raise UnsupportedError(
        f"The select list leaves out the grouping key `{text}`, or changes it, so rows of the target have no key. Add it to "
        "the select list as it stands in GROUP BY.",
        position_of(expression, source),
    )


def _unaliased(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _same(item: exp.Expr, expression: exp.Expr) -> bool:
    if isinstance(item, exp.Column) and isinstance(expression, exp.Column):
        same_table = not item.table or not expression.table or item.table.lower() == expression.table.lower()
        return same_table and item.name.lower() == expression.name.lower()
    return item == expression


def _is_alias_of(item: exp.Expr, expression: exp.Expr) -> bool:
    """GROUP BY names an alias of the select list; `upper(k) AS k` is not one: there k is the input's column."""
    if not (isinstance(item, exp.Alias) and isinstance(expression, exp.Column) and not expression.table):
        return False
    name = expression.name.lower()
    return item.alias.lower() == name and all(column.name.lower() != name for column in item.this.find_all(exp.Column))


def _names_window(item: exp.Expr, expression: exp.Expr) -> bool:
    """`window`, `window.start` or `window.end` tells windows of one length apart."""
    if function_name(expression) not in ("window", "session_window"):
        return False
    found = _unaliased(item)
    name = function_name(expression)
    if isinstance(found, exp.Column) and (found.name.lower() == name or found.table.lower() == name):
        return found.name.lower() in (name, "start", "end")
    return isinstance(found, exp.Dot) and found.this == expression


def _name(item: exp.Expr, source: str) -> str:
    name = item.alias_or_name
    if not name or not isinstance(item, (exp.Alias, exp.Column, exp.Dot)):
        text = to_sql(item, source)
        raise UnsupportedError(
            f"The column `{text}` has no name of its own. Give it one: {text} AS name.", position_of(item, source)
        )
    return str(name)
