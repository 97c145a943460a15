"""The grouping of a streaming aggregate: its grouping expressions, and the output columns by which a flush finds a row."""

from __future__ import annotations

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import QUALIFIES, Key
from sqlext.planner.sameness import Sameness
from sqlext.quoting import fold
from sqlext.sql.dialect import to_sql
from sqlext.sql.source_text import position_of
from sqlext.sql.trees import SUBTOTALS, aggregate_calls, function_name, grouping_leaves, is_aggregate_call, window_calls


def key_of(select: exp.Select, source: str) -> Key | None:
    """Return the key of a streaming aggregate's output, or None when its select list omits or changes a grouping key.

    Raises:
        UnsupportedError: a grouping key has no name or is ambiguous, an ordinal counts columns that a `*` hides, or DISTINCT
            comes after a window function.
    """
    _refuse_window_before_distinct(select, source)
    group = select.args.get("group")
    items = [item for item in select.expressions if item.alias_or_name != QUALIFIES]
    if group is None:
        return Key()
    if has_subtotals(group):  # a subtotal's null and a null of the data look alike
        return None
    if group.args.get("all"):
        return _key_of_group_by_all(items, source)
    expressions = [expression.unnest() for expression in group.expressions]
    scope = _Scope(items, expressions, Sameness(select, source), source)
    columns = [scope.column_for(expression) for expression in expressions]
    told = [column for column in columns if column is not None]
    return Key(tuple(dict.fromkeys(column for column in told if column))) if len(told) == len(columns) else None


def _refuse_window_before_distinct(select: exp.Select, source: str) -> None:
    """Refuse DISTINCT as the only grouping of a select with window functions or QUALIFY: they see duplicates."""
    is_grouped = bool(select.args.get("group")) or any(True for _ in aggregate_calls(select))
    if not select.args.get("distinct") or is_grouped:
        return
    found: exp.Expr | None = select.args.get("qualify") or next(window_calls(select), None)
    if found is not None:
        what = "QUALIFY" if isinstance(found, exp.Qualify) else "A window function"
        raise UnsupportedError(
            f"{what} comes before DISTINCT, so it needs all rows of the stream at once, duplicates too. To evaluate it over the "
            "distinct rows, write FROM (SELECT DISTINCT ..); otherwise keep the whole query, without STREAM, by CREATE "
            "MATERIALIZED VIEW.",
            position_of(found, source) or position_of(select, source),
        )


def has_subtotals(group: exp.Expr) -> bool:
    """Return whether a GROUP BY has ROLLUP, CUBE or GROUPING SETS."""
    clauses = ("rollup", "cube", "grouping_sets")
    return any(group.args.get(each) for each in clauses) or any(isinstance(e, SUBTOTALS) for e in group.expressions)


def resolved_group(select: exp.Select, source: str) -> exp.Group | None:
    """Return the GROUP BY of a select with ALL, ordinals and aliases resolved; for SELECT DISTINCT, all its columns.

    Returns:
        A copy, or None when all rows are one group.

    Raises:
        UnsupportedError: an ordinal names no column, a name is ambiguous, `*` is used where columns must be named, or DISTINCT
            comes after a window function.
    """
    _refuse_window_before_distinct(select, source)
    group: exp.Group | None = select.args.get("group")
    items = select.expressions
    if group is None and not select.args.get("distinct"):
        return None
    if group is None or group.args.get("all"):
        keys = [item for item in items if not _is_value(item)]
        for item in keys:
            if item.is_star:
                raise UnsupportedError(
                    "A `*` hides the keys of this aggregate, and the query above it needs their names. Name the columns.",
                    position_of(item, source) or position_of(select, source),
                )
        return exp.Group(expressions=[_not_an_ordinal(unaliased(item).copy()) for item in keys]) if keys else None
    group = group.copy()
    leaves = list(grouping_leaves(group))
    keys = [leaf.unnest() for leaf in leaves]
    scope = _Scope(items, keys, Sameness(select, source), source)
    for leaf, meant in [(leaf, scope.resolved(key)) for leaf, key in zip(leaves, keys, strict=True)]:
        leaf.replace(meant.copy())
    return group


def _not_an_ordinal(expression: exp.Expr) -> exp.Expr:
    """Cast an integer literal, which GROUP BY would take for an ordinal; return any other expression unchanged."""
    is_number = isinstance(expression, exp.Literal) and expression.is_int
    return exp.cast(expression.copy(), "INT") if is_number else expression


def _is_value(item: exp.Expr) -> bool:
    """Return whether GROUP BY ALL does not group by an item of the select list."""
    return any(is_aggregate_call(node) or isinstance(node, exp.Window) for node in item.walk())


def _key_of_group_by_all(items: list[exp.Expr], source: str) -> Key:
    values = [item for item in items if _is_value(item)]
    keys = [item for item in items if not any(item is value for value in values)]
    if any(item.find(exp.Star) for item in keys):
        return Key(tuple(_name(item, source) for item in values), all_but=True)
    return Key(tuple(_name(item, source) for item in keys))


def unaliased(item: exp.Expr) -> exp.Expr:
    """Return the expression of a select list item, without its alias."""
    return item.this if isinstance(item, exp.Alias) else item


class _Scope:
    """The resolution of names in GROUP BY: a column of the input, or an alias of the select list.

    Args:
        items: the select list.
        keys: the grouping expressions, as written.
    """

    def __init__(self, items: list[exp.Expr], keys: list[exp.Expr], sameness: Sameness, source: str) -> None:
        self._items = items
        self._keys = keys
        self._sameness = sameness
        self._source = source

    def resolved(self, expression: exp.Expr) -> exp.Expr:
        """Return the expression that a grouping expression means: itself, or the one that its ordinal or alias refers to."""
        items = self._items
        if isinstance(expression, exp.Literal) and expression.is_int:
            index = int(expression.name) - 1
            self._refuse_star_before(index, expression)
            if not 0 <= index < len(items) or _is_value(items[index]):
                raise UnsupportedError(
                    f"GROUP BY {index + 1} is not the position of a column of the select list that can be grouped by.",
                    position_of(expression, self._source),
                )
            return _not_an_ordinal(unaliased(items[index]))
        if any(self._sameness.may_be_same(unaliased(item), expression) for item in items):
            return expression
        item = self._item_with_alias(expression)
        return expression if item is None else unaliased(item)

    def column_for(self, expression: exp.Expr) -> str | None:
        """Return the output column that holds a grouping expression; empty for a constant, None if there is no such column."""
        items = self._items
        if isinstance(expression, exp.Literal) and expression.is_int:
            index = int(expression.name) - 1
            self._refuse_star_before(index, expression)
            if 0 <= index < len(items):
                return _name(items[index], self._source)
        for item in items:
            if self._sameness.may_be_same(unaliased(item), expression):
                return _name(item, self._source)
        if (aliased := self._item_with_alias(expression)) is not None:
            return _name(aliased, self._source)
        for item in items:
            if names_window(unaliased(item), expression, self._sameness):
                return _name(item, self._source)
        return "" if isinstance(expression, exp.Literal) else None  # a constant distinguishes no rows

    def _refuse_star_before(self, index: int, expression: exp.Expr) -> None:
        if any(item.is_star for item in self._items[: index + 1]):
            raise UnsupportedError(
                f"GROUP BY {index + 1} counts from a `*`. Name the column.", position_of(expression, self._source)
            )

    def _item_with_alias(self, expression: exp.Expr) -> exp.Expr | None:
        """Return the item of the select list whose alias GROUP BY names.

        Spark prefers a column of the input, and we do not know the input. In most cases the item would be invalid if there were
        such a column, since it would be neither grouped by nor aggregated; otherwise both meanings are possible.

        Raises:
            UnsupportedError: both meanings are possible.
        """
        item = next((item for item in self._items if self._is_alias_of(item, expression)), None)
        if item is None:
            return None
        positions = {str(at): unaliased(each) for at, each in enumerate(self._items, 1)}
        others = [
            positions.get(key.name, key) if isinstance(key, exp.Literal) else key for key in self._keys if key is not expression
        ]

        def is_key(node: exp.Expr) -> bool:
            return any(
                self._sameness.may_be_same(node, key)
                or self._sameness.fields_below(node, key)
                or names_window(node, key, self._sameness)
                for key in others
            )

        meant = unaliased(item)
        if not any(isinstance(node, exp.Column) and not is_key(node) for node in meant.walk(prune=is_key)):
            name, text = expression.name, to_sql(meant, self._source)
            raise UnsupportedError(
                f"GROUP BY {name} may mean a column of the input or `{text} AS {name}`. Give the alias another name, or write "
                "the column with its table's name.",
                position_of(expression, self._source),
            )
        return item

    def _is_alias_of(self, item: exp.Expr, expression: exp.Expr) -> bool:
        """Return whether GROUP BY names an item by its alias, or that of a field by its own name.

        For `upper(k) AS k` it does not, nor for `k.v AS k`: there k is the input's column.
        """
        if not isinstance(expression, exp.Column) or expression.table or _is_value(item):
            return False
        if not isinstance(item, exp.Alias):
            return isinstance(item, (exp.Column, exp.Dot)) and self._sameness.is_field(item, expression.name)
        return fold(item.alias) == fold(expression.name) and not self._sameness.reads_column(item.this, expression.name)


def names_window(found: exp.Expr, expression: exp.Expr, sameness: Sameness) -> bool:
    """Return whether `found` is `window`, `window.start` or `window.end` and identifies the windows of a grouping expression."""
    name = function_name(expression)
    if name not in ("window", "session_window"):
        return False
    if isinstance(found, exp.Column) and (found.name.lower() == name or found.table.lower() == name):
        return found.name.lower() in (name, "start", "end")
    return isinstance(found, exp.Dot) and sameness.same(found.this, expression)


def _name(item: exp.Expr, source: str) -> str:
    name = item.alias_or_name
    if not name or not isinstance(item, (exp.Alias, exp.Column, exp.Dot)):
        text = to_sql(item, source)
        raise UnsupportedError(
            f"The column `{text}` has no name of its own. Give it one: {text} AS name.", position_of(item, source)
        )
    return str(name)
