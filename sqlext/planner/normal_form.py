"""A streaming aggregate in normal form: an inner query that Spark keeps by key, and an outer query over its rows.

The inner query has one column for each grouping expression and each aggregate call; everything else is in the outer query.

    SELECT upper(k) AS u, count(*) AS n FROM STREAM t WHERE v > 0 GROUP BY upper(k) HAVING n > 1 ORDER BY n LIMIT 3
    -> SELECT upper(k) AS __sqlext_k1, count(*) AS __sqlext_a1 FROM STREAM t WHERE v > 0 GROUP BY upper(k)
    -> SELECT __sqlext_k1 AS u, __sqlext_a1 AS n FROM __sqlext_aggregate_1 WHERE __sqlext_a1 > 1 ORDER BY n LIMIT 3
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX, Key
from sqlext.planner.grouping import has_subtotals, names_window, resolved_group
from sqlext.planner.sameness import Sameness
from sqlext.quoting import fold
from sqlext.sql.dialect import to_sql
from sqlext.sql.source_text import position_of
from sqlext.sql.trees import (
    function_name,
    grouping_leaves,
    is_aggregate_call,
    is_aggregation,
    reads_parameter,
    relation_names,
    window_calls,
    with_aliases_expanded,
)

GROUPING = f"{INTERNAL_PREFIX}grouping"
"""The column that distinguishes the subtotals of ROLLUP, CUBE and GROUPING SETS."""

ABOVE_CLAUSES = ("distinct", "qualify", "windows", "sort", "cluster", "distribute", "order", "limit", "offset")
"""The clauses that a select evaluates over its groups, besides its list and HAVING."""

_BELOW_CLAUSES = ("with_", "hint", "joins", "laterals", "pivots", "sample", "where", "group", "having")
_AROUND_A_CALL = (exp.Filter, exp.WithinGroup, exp.IgnoreNulls, exp.RespectNulls)


class NormalForm:
    """The two queries that one select is split into.

    Args:
        select: a select that aggregates rows of a stream; `put_above` turns it into the outer query, in place.
        source: the statement's text.

    Attributes:
        inner: the inner query, for Spark, without CTEs.
        key: the key of the inner query's rows.

    Raises:
        UnsupportedError: `*` hides the names of the keys, or a grouping set is given twice.
    """

    def __init__(self, select: exp.Select, source: str) -> None:
        self._select = select
        self._source = source
        self._relations = relation_names(select)
        self._sameness = Sameness(select, source)
        self._group = resolved_group(select, source)
        self._keys: list[exp.Expr] = []
        self._calls: list[exp.Expr] = []
        self._correlated: list[exp.Column] = []
        self._named_outside: dict[str, exp.Expr] = {}
        self._shadowing = frozenset(fold(item.alias) for item in select.expressions if self._shadows(item))
        self._has_subtotals = self._group is not None and has_subtotals(self._group)
        for leaf in grouping_leaves(self._group) if self._group else ():
            if not isinstance(leaf, exp.Literal) and not any(self._sameness.same(leaf, key) for key in self._keys):
                self._keys.append(leaf)
        if self._has_subtotals and self._group is not None:
            self._refuse_doubles(self._group)
        below = select.copy()
        self._rewrite_outer()
        self.inner = self._make_inner(below)
        names = [f"{INTERNAL_PREFIX}k{number}" for number in range(1, len(self._keys) + 1)]
        self.key = Key((*names, GROUPING) if self._has_subtotals else tuple(names))

    def put_above(self, name: str) -> None:
        """Make the select the outer query over the relation `name`."""
        for column in self._correlated:
            column.set("table", exp.to_identifier(name))
        relation: exp.Expr = exp.to_table(name)
        if self._named_outside:
            names = [exp.alias_(column, each, quoted=True) for each, column in self._named_outside.items()]
            rows = exp.Select(expressions=[exp.Star(), *names], from_=exp.From(this=relation))
            relation = exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(name)))
        self._select.set("from_", exp.From(this=relation))

    def _make_inner(self, inner: exp.Select) -> exp.Select:
        for clause in (*ABOVE_CLAUSES, "with_", "having"):
            inner.set(clause, None)
        items = [exp.alias_(key.copy(), f"{INTERNAL_PREFIX}k{number}") for number, key in enumerate(self._keys, 1)]
        if self._has_subtotals:
            items.append(exp.alias_(exp.Anonymous(this="grouping_id", expressions=[]), GROUPING))
        if not items and not self._calls:  # only the existence of the group matters
            self._calls.append(exp.Count(this=exp.Star(), big_int=True))
        items += [exp.alias_(call.copy(), f"{INTERNAL_PREFIX}a{number}") for number, call in enumerate(self._calls, 1)]
        inner.set("expressions", items)
        inner.set("group", self._group)
        return inner

    def _rewrite_outer(self) -> None:
        select = self._select
        if (having := select.args.get("having")) is not None:
            condition = exp.Where(this=with_aliases_expanded(having.this.copy(), select))
        if select.args.get("group") is None and not any(is_aggregate_call(node) for node in select.walk()):
            select.set("distinct", None)  # the groups are already distinct
        for index in range(len(select.expressions)):
            self._rewrite_item(index)
        outputs = frozenset(fold(item.alias_or_name) for item in select.expressions if item.alias_or_name)
        for clause in ABOVE_CLAUSES:
            value = select.args.get(clause)
            for node in value if isinstance(value, list) else [value] if isinstance(value, exp.Expr) else []:
                self._replace_below(node, outputs if clause in ("order", "sort", "cluster", "distribute") else frozenset())
        for clause in _BELOW_CLAUSES:
            select.set(clause, None)
        if having is not None:
            self._replace_below(condition, frozenset())
            for bracket in list(condition.find_all(exp.Paren)):
                if isinstance(bracket.this, exp.Column) and bracket.this.name.startswith(INTERNAL_PREFIX):
                    bracket.replace(bracket.this)
            select.set("where", condition)

    def _rewrite_item(self, index: int) -> None:
        item = self._select.expressions[index]
        if item.is_star:
            raise UnsupportedError(
                "A `*` hides which columns this aggregate groups by. Name the columns.",
                position_of(item, self._source) or position_of(self._select, self._source),
            )
        before, text = item.copy(), to_sql(item, self._source)
        self._replace_below(item, frozenset())
        item = self._select.expressions[index]
        if item != before and not isinstance(item, exp.Alias):
            alias = self._named(before) if isinstance(before, exp.Column) else before.alias_or_name if _is_dot(before) else text
            quoted = None if not isinstance(alias, str) or alias.isidentifier() else True
            item.replace(exp.alias_(item.copy(), alias, quoted=quoted))

    def _named(self, column: exp.Column) -> exp.Identifier:
        """Return the name that a column in the select list gives its output: with subtotals Spark takes GROUP BY's spelling."""
        is_field = column.table and fold(column.table) not in self._relations
        number = self._number_of_key(column) if self._has_subtotals and not is_field else None
        key = column if number is None else self._keys[number - 1]
        name: exp.Identifier = (key if isinstance(key, exp.Column) else column).this
        return name.copy()

    def _replace_below(self, root: exp.Expr, outputs: frozenset[str]) -> None:
        """Replace expressions by the inner query's columns that hold their values; unqualified `outputs` are outer columns."""
        found = [(node, column) for node in self._outermost(root, outputs) if (column := self._column_for(node))]
        for node, column in found:
            self._refuse_zipped_key(node)
            _with_qualifier(node).replace(_called_the_same(node, column))

    def _shadows(self, item: exp.Expr) -> bool:
        """Return whether an item gives its output another value than that of the input's column of the name."""
        return isinstance(item, exp.Alias) and not self._sameness.is_column(item.this, item.alias)

    def _outermost(self, root: exp.Expr, outputs: frozenset[str]) -> Iterator[exp.Expr]:
        def is_output(node: exp.Expr, names: frozenset[str] = outputs) -> bool:
            first = (
                fold(node.parts[0].name) if isinstance(node, exp.Column) else ""
            )  # of `s.v`, which may be a field of an output
            return isinstance(node, exp.Column) and first in names and not (node.table and first in self._relations)

        def is_key(node: exp.Expr) -> bool:
            hidden = outputs & self._shadowing  # `-v AS v .. ORDER BY -v` means the output, also where -v is a key
            means_another = any(is_output(each, hidden) for each in node.walk()) or reads_parameter(node)
            return not means_another and self._key_column(node) is not None

        def is_known(node: exp.Expr) -> bool:
            return is_output(node) or isinstance(node, exp.Query) or _is_call(node) or is_key(node)

        for node in root.walk(prune=is_known):
            if isinstance(node, exp.Query):
                self._replace_correlated(node)
            elif is_known(node) and not is_output(node):
                yield node

    def _column_for(self, node: exp.Expr) -> exp.Expr | None:
        if not _is_call(node):
            return self._key_column(node)
        if reads_parameter(node):
            raise UnsupportedError(
                f"`{to_sql(node, self._source)}` aggregates a parameter of the lambda around it, which Spark cannot do. Use "
                "aggregate(..), or another function of arrays.",
                position_of(node, self._source),
            )
        asked = node.copy()
        self._sameness.keep(asked)
        number = next((at for at, call in enumerate(self._calls, 1) if self._sameness.same(call, asked)), None)
        if number is None:
            self._calls.append(asked)
            number = len(self._calls)
        return exp.column(f"{INTERNAL_PREFIX}a{number}")

    def _key_column(self, node: exp.Expr) -> exp.Expr | None:
        """Return the inner query's column with the value of a grouping expression, or a field of that column."""
        if (number := self._number_of_key(node)) is not None:
            return exp.column(f"{INTERNAL_PREFIX}k{number}")
        for number, key in enumerate(self._keys, 1):
            name = f"{INTERNAL_PREFIX}k{number}"
            if isinstance(node, exp.Column) and names_window(node, key, self._sameness):
                return exp.column(node.this.copy(), table=name) if node.table else exp.column(name)
        if isinstance(node, exp.Column) and len(node.parts) > 1:
            return self._field_of_key(node)
        return None

    def _number_of_key(self, node: exp.Expr) -> int | None:
        """Return the number of the grouping expression that a node is equal to; None if it is equal to none."""
        likely = [number for number, key in enumerate(self._keys, 1) if self._sameness.may_be_same(node, key)]
        if len(likely) < 2:
            return next(iter(likely), None)
        sure = next((number for number in likely if self._sameness.same(node, self._keys[number - 1])), None)
        if sure is None:
            text = to_sql(node, self._source)
            raise UnsupportedError(
                f"`{text}` may be more than one of the grouping expressions. Write it exactly as in GROUP BY.",
                position_of(node, self._source),
            )
        return sure

    def _field_of_key(self, node: exp.Column) -> exp.Expr | None:
        for number, key in enumerate(self._keys, 1):
            if isinstance(key, exp.Column) and (fields := self._sameness.fields_below(node, key)):
                parts = [part.copy() for part in node.parts[-len(fields) :]]
                return exp.Dot.build([exp.column(f"{INTERNAL_PREFIX}k{number}"), *parts])
        return None

    def _replace_correlated(self, query: exp.Query) -> None:
        """Replace the qualified columns in a subquery that are keys of the select around it.

        A column without a qualifier may be one of the subquery's own relations, which Spark looks at first. So it stays, and the
        key has its name, too, in the relation of the outer query.
        """
        own = {name for select in query.find_all(exp.Select) for name in relation_names(select)}
        for column in list(query.find_all(exp.Column)):
            if fold(column.table) in self._relations - own and (found := self._key_column(column)) is not None:
                self._refuse_zipped_key(column)
                same = _called_the_same(column, found)
                column.replace(same)
                bare = same.this if isinstance(same, exp.Alias) else same
                if isinstance(bare, exp.Column):
                    self._correlated.append(bare)
            elif not column.table and (name := fold(column.name)) not in self._named_outside:
                numbers = [number for number, key in enumerate(self._keys, 1) if self._sameness.is_column(key, name)]
                if len(numbers) == 1:
                    self._named_outside[name] = exp.column(f"{INTERNAL_PREFIX}k{numbers[0]}")

    def _refuse_zipped_key(self, node: exp.Expr) -> None:
        """Refuse arrays_zip of a key: it names a field after the key, and no other call can give the field this name."""
        call = node.parent
        if call is not None and function_name(call) == "arrays_zip" and isinstance(node, exp.Column):
            raise UnsupportedError(
                f"arrays_zip names a field after the column `{node.name}`, which the groups below have under another name. Name "
                "the fields yourself: transform(arrays_zip(..), x -> named_struct(..)) in a query over the table.",
                position_of(node, self._source),
            )

    def _refuse_doubles(self, group: exp.Group) -> None:
        sets = _grouping_sets(group, self._keys, self._sameness)
        if len(sets) != len(set(sets)):
            raise UnsupportedError(
                "A grouping set is given twice here, so two rows would have the same key. Give each grouping set once.",
                position_of(group, self._source) or position_of(self._select, self._source),
            )


def is_above(select: exp.Select) -> bool:
    """Return whether a streaming aggregate has clauses that must be evaluated over its groups; HAVING does not count."""
    clauses = [clause for clause in ABOVE_CLAUSES if select.args.get(clause)]
    if clauses and set(clauses) <= {"distribute"}:
        return False
    if clauses == ["distinct"] and not select.args.get("group"):
        without = select.copy()
        without.set("distinct", None)
        return is_aggregation(without)
    return bool(clauses) or any(True for _ in window_calls(select))


def _is_call(node: exp.Expr) -> bool:
    """Return whether a node is an aggregate call, with or without FILTER and WITHIN GROUP."""
    while isinstance(node, _AROUND_A_CALL):
        node = node.this
    return is_aggregate_call(node)


def _with_qualifier(node: exp.Expr) -> exp.Expr:
    """Return a call with what is written before it, as in `system.builtin.count(v)`."""
    while isinstance(node.parent, exp.Dot) and node.arg_key == "expression" and isinstance(node, (exp.Func, exp.Dot)):
        node = node.parent
    return node


def _called_the_same(node: exp.Expr, column: exp.Expr) -> exp.Expr:
    """Return a column of the inner query in a form that keeps the field names which the replaced node gives a struct.

    Spark names the fields of struct(..), of (.., ..) and of arrays_zip(..) after their arguments: a column's name, otherwise the
    position.
    """
    call = node.parent
    is_column = isinstance(node, (exp.Column, exp.Dot))
    if call is None or node.arg_key != "expressions":
        return column
    is_row = isinstance(call, exp.Tuple) and not isinstance(call.parent, (exp.In, exp.Values))
    if is_row or function_name(call) == "struct":
        return exp.alias_(column, node.name if is_column else f"col{(node.index or 0) + 1}", quoted=True)
    if function_name(call) == "arrays_zip" and not is_column:
        return exp.Anonymous(this="COALESCE", expressions=[column])
    return column


def _is_dot(node: exp.Expr) -> bool:
    return isinstance(node, exp.Dot) and bool(node.alias_or_name)


def _grouping_sets(group: exp.Group, keys: list[exp.Expr], sameness: Sameness) -> list[frozenset[int]]:
    """Return all grouping sets of a GROUP BY, as sets of indices into `keys`."""

    def numbers(node: exp.Expr) -> frozenset[int]:
        leaves = node.expressions if isinstance(node, exp.Tuple) else [node]
        return frozenset(at for leaf in leaves for at, key in enumerate(keys) if sameness.same(leaf, key))

    def of_list(kind: type[exp.Expr], parts: list[exp.Expr]) -> list[frozenset[int]]:
        if kind is exp.GroupingSets:
            nested = (exp.Rollup, exp.Cube, exp.GroupingSets)
            return [
                s
                for part in parts
                for s in (of_list(type(part), part.expressions) if isinstance(part, nested) else [numbers(part)])
            ]
        steps = [numbers(part) for part in parts]
        if kind is exp.Rollup:
            return [frozenset().union(*steps[:length]) for length in range(len(steps) + 1)]
        chosen: list[frozenset[int]] = [frozenset()]
        for step in steps:
            chosen += [each | step for each in chosen]
        return chosen

    for arg, kind in (("rollup", exp.Rollup), ("cube", exp.Cube), ("grouping_sets", exp.GroupingSets)):
        if written := group.args.get(arg):
            parts = [part for node in written for part in node.expressions]
            return of_list(kind, parts or group.expressions)
    sets: list[frozenset[int]] = [frozenset()]
    for part in group.expressions:
        is_nested = isinstance(part, (exp.Rollup, exp.Cube, exp.GroupingSets))
        factor = of_list(type(part), part.expressions) if is_nested else [numbers(part)]
        sets = [one | other for one in sets for other in factor]
    return sets
