"""How a streaming aggregate groups: its grouping expressions, and the output columns by which a flush finds a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from sqlext.dialect import position_of, to_sql
from sqlext.errors import UnsupportedError
from sqlext.plan import QUALIFIES, Key
from sqlext.shape import function_name, is_aggregate_call

_SUBTOTALS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def key_of(select: exp.Select, source: str) -> Key | None:
    """The key of a streaming aggregate's output, or None: its select list leaves out a grouping key or changes it.

    Raises:
        UnsupportedError: a grouping key has no name, has two meanings, or is an ordinal that counts from a `*`.
    """
    group = select.args.get("group")
    items = [item for item in select.expressions if item.alias_or_name != QUALIFIES]
    if group is None:
        return Key()
    if has_subtotals(group):  # a subtotal's null and a null of the data look alike
        return None
    if group.args.get("all"):
        return _key_of_group_by_all(items, source)
    expressions = [expression.unnest() for expression in group.expressions]
    columns = [_column_for(expression, expressions, items, source) for expression in expressions]
    told = [column for column in columns if column is not None]
    return Key(tuple(dict.fromkeys(column for column in told if column))) if len(told) == len(columns) else None


def has_subtotals(group: exp.Expr) -> bool:
    """Whether a GROUP BY has ROLLUP, CUBE or GROUPING SETS."""
    clauses = ("rollup", "cube", "grouping_sets")
    return any(group.args.get(each) for each in clauses) or any(isinstance(e, _SUBTOTALS) for e in group.expressions)


def resolved_group(select: exp.Select, source: str) -> exp.Group | None:
    """The GROUP BY of a select with ALL, ordinals and aliases resolved; of SELECT DISTINCT, all columns.

    Returns:
        A copy, or None when all rows are one group.

    Raises:
        UnsupportedError: an ordinal names no column, a name has two meanings, or `*` stands where columns must be named.
    """
    group: exp.Group | None = select.args.get("group")
    items = select.expressions
    if group is None and not select.args.get("distinct"):
        return None
    if group is None or group.args.get("all"):
        keys = [item for item in items if not _is_value(item)]
        for item in keys:
            if item.is_star:
                raise UnsupportedError(
                    "The keys of this aggregate stand behind a `*`, and a query above it needs their names. Name the columns.",
                    position_of(item, source) or position_of(select, source),
                )
        return exp.Group(expressions=[_not_an_ordinal(unaliased(item).copy()) for item in keys]) if keys else None
    group = group.copy()
    leaves = list(grouping_leaves(group))
    keys = [leaf.unnest() for leaf in leaves]
    for leaf, meant in [(leaf, _resolved(key, keys, items, source)) for leaf, key in zip(leaves, keys, strict=True)]:
        leaf.replace(meant.copy())
    return group


def grouping_leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    """The grouping expressions of a GROUP BY, also those inside ROLLUP, CUBE and GROUPING SETS, in their order."""
    parts = [*node.expressions, *(part for arg in ("rollup", "cube", "grouping_sets") for part in node.args.get(arg) or ())]
    for part in parts:
        is_list = not isinstance(node, exp.Group) and isinstance(part, exp.Tuple)
        if isinstance(part, _SUBTOTALS) or is_list:
            yield from grouping_leaves(part)
        else:
            yield part


def _resolved(expression: exp.Expr, keys: list[exp.Expr], items: list[exp.Expr], source: str) -> exp.Expr:
    """What one of the grouping expressions `keys` stands for."""
    if isinstance(expression, exp.Literal) and expression.is_int:
        index = int(expression.name) - 1
        _refuse_star_before(index, expression, items, source)
        if not 0 <= index < len(items) or _is_value(items[index]):
            raise UnsupportedError(
                f"GROUP BY {index + 1} names no column of the select list that can be grouped by.",
                position_of(expression, source),
            )
        return _not_an_ordinal(unaliased(items[index]))
    if any(same(unaliased(item), expression) for item in items):
        return expression
    item = _item_with_alias(expression, keys, items, source)
    return expression if item is None else unaliased(item)


def _not_an_ordinal(expression: exp.Expr) -> exp.Expr:
    """A number among the columns; in GROUP BY, a bare one would be an ordinal."""
    is_number = isinstance(expression, exp.Literal) and expression.is_int
    return exp.cast(expression.copy(), "INT") if is_number else expression


def _is_value(item: exp.Expr) -> bool:
    """Whether GROUP BY ALL leaves an item of the select list out."""
    return any(is_aggregate_call(node) or isinstance(node, exp.Window) for node in item.walk())


def _key_of_group_by_all(items: list[exp.Expr], source: str) -> Key:
    values = [item for item in items if _is_value(item)]
    keys = [item for item in items if not any(item is value for value in values)]
    if any(item.find(exp.Star) for item in keys):
        return Key(tuple(_name(item, source) for item in values), all_but=True)
    return Key(tuple(_name(item, source) for item in keys))


def _column_for(expression: exp.Expr, keys: list[exp.Expr], items: list[exp.Expr], source: str) -> str | None:
    """The output column that carries one grouping expression; empty for a constant, None when there is no such column."""
    if isinstance(expression, exp.Literal) and expression.is_int:
        index = int(expression.name) - 1
        _refuse_star_before(index, expression, items, source)
        if 0 <= index < len(items):
            return _name(items[index], source)
    for item in items:
        if same(unaliased(item), expression):
            return _name(item, source)
    if (aliased := _item_with_alias(expression, keys, items, source)) is not None:
        return _name(aliased, source)
    for item in items:
        if names_window(unaliased(item), expression):
            return _name(item, source)
    return "" if isinstance(expression, exp.Literal) else None  # a constant tells no two rows apart


def _refuse_star_before(index: int, expression: exp.Expr, items: list[exp.Expr], source: str) -> None:
    if any(item.is_star for item in items[: index + 1]):
        raise UnsupportedError(f"GROUP BY {index + 1} counts from a `*`. Name the column.", position_of(expression, source))


def unaliased(item: exp.Expr) -> exp.Expr:
    """What an item of a select list computes."""
    return item.this if isinstance(item, exp.Alias) else item


def same(one: exp.Expr, other: exp.Expr) -> bool:
    """Whether two expressions of one select mean the same; case, brackets and a qualifier that one lacks do not matter."""
    one, other = one.unnest(), other.unnest()
    if isinstance(one, exp.Column) and isinstance(other, exp.Column):
        left, right = ([part.name.lower() for part in column.parts] for column in (one, other))
        shorter = min(len(left), len(right))
        return left[-shorter:] == right[-shorter:]
    if type(one) is not type(other):
        return False
    if isinstance(one, exp.Literal):
        return one == other
    return all(_same_argument(one.args.get(arg), other.args.get(arg)) for arg in {**one.args, **other.args} if arg != "quoted")


def _same_argument(one: Any, other: Any) -> bool:
    if isinstance(one, exp.Expr) and isinstance(other, exp.Expr):
        return same(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same_argument(*pair) for pair in zip(one, other, strict=True))
    if isinstance(one, str) and isinstance(other, str):
        return one.lower() == other.lower()
    return bool(one == other or (not one and not other))


def _is_alias_of(item: exp.Expr, expression: exp.Expr) -> bool:
    """GROUP BY names an alias of the select list; `upper(k) AS k` is not one: there k is the input's column."""
    if not (isinstance(item, exp.Alias) and isinstance(expression, exp.Column) and not expression.table):
        return False
    name = expression.name.lower()
    is_named = item.alias.lower() == name and all(column.name.lower() != name for column in item.this.find_all(exp.Column))
    return is_named and not _is_value(item)


def _item_with_alias(expression: exp.Expr, keys: list[exp.Expr], items: list[exp.Expr], source: str) -> exp.Expr | None:
    """The item of the select list whose alias GROUP BY names.

    Spark takes a column of the input first, and we do not know the input. Mostly the item could not stand beside such a
    column, since it is neither grouped by nor aggregated; where it could, both meanings are possible.
    """
    item = next((item for item in items if _is_alias_of(item, expression)), None)
    if item is None:
        return None
    positions = {str(at): unaliased(each) for at, each in enumerate(items, 1)}
    others = [positions.get(key.name, key) if isinstance(key, exp.Literal) else key for key in keys if key is not expression]

    def is_key(node: exp.Expr) -> bool:
        return any(same(node, key) for key in others)

    if not any(isinstance(node, exp.Column) and not is_key(node) for node in item.this.walk(prune=is_key)):
        name, text = expression.name, to_sql(item.this, source)
        raise UnsupportedError(
            f"GROUP BY {name} may mean a column of the input or `{text} AS {name}`. Give the alias another name, or write the "
            "column with its table's name.",
            position_of(expression, source),
        )
    return item


def names_window(found: exp.Expr, expression: exp.Expr) -> bool:
    """Whether `window`, `window.start` or `window.end` tells the windows of a grouping expression apart."""
    name = function_name(expression)
    if name not in ("window", "session_window"):
        return False
    if isinstance(found, exp.Column) and (found.name.lower() == name or found.table.lower() == name):
        return found.name.lower() in (name, "start", "end")
    return isinstance(found, exp.Dot) and same(found.this, expression)


def _name(item: exp.Expr, source: str) -> str:
    name = item.alias_or_name
    if not name or not isinstance(item, (exp.Alias, exp.Column, exp.Dot)):
        text = to_sql(item, source)
        raise UnsupportedError(
            f"The column `{text}` has no name of its own. Give it one: {text} AS name.", position_of(item, source)
        )
    return str(name)
