"""Finds the streaming aggregates of a query and splits it into the aggregates and the query above them.

Each innermost streaming aggregate becomes a streaming query of its own (`normal_form.py`), whose rows are kept in a table;
the rest is a batch query over these tables, evaluated at each flush (FLIP-365's most viewed page every two minutes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import AGGREGATE_PREFIX, Key
from sqlext.planner.grouping import key_of
from sqlext.planner.normal_form import NormalForm, is_above
from sqlext.quoting import fold
from sqlext.sql.ctes import cte_of, ctes_around, with_needed
from sqlext.sql.dialect import to_sql, without_brackets
from sqlext.sql.nodes import Stream
from sqlext.sql.source_text import position_of
from sqlext.sql.tokens import tokens
from sqlext.sql.trees import drop_cte, function_name, is_aggregation, relation_names, relations_of, window_calls


@dataclass(frozen=True)
class InnerAggregate:
    """A streaming aggregate; `select` is the query for Spark before the rules for aggregates, with the CTEs that it needs."""

    name: str
    select: exp.Select
    key: Key


@dataclass(frozen=True)
class Split:
    """A query in two steps: `aggregates`, and `outer`, which reads the aggregates by their names."""

    aggregates: tuple[InnerAggregate, ...]
    outer: exp.Query


class _Rows(Enum):
    """The origin of a query's rows."""

    TABLES = auto()
    STREAM = auto()
    AGGREGATE = auto()


_Scope = dict[str, _Rows]
"""The origin of the rows of each WITH query in scope, by its name."""
_RowSources = list[tuple[_Rows, exp.Expr]]


def split(tree: exp.Query, source: str) -> Split | None:
    """Split a query into its streaming aggregates and the query above them.

    Args:
        tree: the query without our hints and options; it is not changed.
        source: the text that it was parsed from.

    Returns:
        None when there is no query above: the query is one aggregate whose rows are the target's, or has no streaming aggregate.

    Raises:
        UnsupportedError: the query combines rows of a stream with an aggregate, an aggregate is correlated with the query around
            it, or a query without an aggregate needs all rows at once.
    """
    outer = tree.copy()
    splitter = _Splitter(outer, source)
    rows = splitter.query(outer, {}, frozenset())
    if not splitter.aggregates:
        return None
    if rows is _Rows.STREAM:
        splitter.refuse_beside(outer)
    _remove_unused_ctes(outer)
    used = {table.name for table in outer.find_all(exp.Table)}
    return Split(tuple(each for each in splitter.aggregates if each.name in used), outer)


class _Splitter:
    """A walk of a query from the outside in, which turns it into the outer query on the way back."""

    def __init__(self, root: exp.Query, source: str) -> None:
        self._root = without_brackets(root)
        self._source = source
        self.aggregates: list[InnerAggregate] = []

    def query(self, query: exp.Expr, scope: _Scope, enclosing: frozenset[str]) -> _Rows:
        """Split one query; `enclosing` are the names of the relations of the queries around it that it can use."""
        with_ = query.args.get("with_")
        for cte in with_.expressions if with_ else ():
            scope = {**scope, fold(cte.alias): self.query(cte.this, scope, enclosing)}
        if isinstance(query, exp.Select):
            return self._select(query, scope, enclosing)
        if isinstance(query, exp.SetOperation):
            return self._set_operation(query, scope, enclosing)
        if isinstance(query, exp.Subquery):
            rows = self._relation(query.this, scope, enclosing)
            if rows is _Rows.STREAM:
                self._refuse_all_rows(query)
            return rows
        return _Rows.TABLES

    def _relation(self, relation: exp.Expr, scope: _Scope, enclosing: frozenset[str]) -> _Rows:
        rows = _Rows.TABLES
        if isinstance(relation, Stream):
            rows = _Rows.STREAM
        elif isinstance(relation, exp.Table):
            rows = rows if relation.db else scope.get(fold(relation.name), rows)
        elif isinstance(relation, exp.Lateral) and isinstance(relation.this, exp.Query):
            rows = self.query(relation.this, scope, enclosing)
        elif isinstance(relation, exp.Query):
            rows = self.query(relation, scope, enclosing)
        table = relation.this if isinstance(relation, Stream) else relation
        pivot = next((each for each in table.args.get("pivots") or () if not each.args.get("unpivot")), None)
        if pivot is not None and rows is _Rows.STREAM:
            raise UnsupportedError(
                "PIVOT over a stream must follow a subquery with named columns, FOR one column IN literals: (SELECT k, c, v "
                "FROM STREAM t) PIVOT (sum(v) FOR c IN ('a', 'b')). Otherwise write one aggregate with FILTER for each column: "
                "sum(v) FILTER (WHERE c = 'a') AS a, with GROUP BY.",
                position_of(pivot, self._source) or position_of(relation, self._source),
            )
        inner_joins = [join.this for join in relation.args.get("joins") or ()]
        return self._together([(rows, relation), *((self._relation(each, scope, enclosing), each) for each in inner_joins)])

    def _set_operation(self, query: exp.SetOperation, scope: _Scope, enclosing: frozenset[str]) -> _Rows:
        sides = (query.this, query.expression)
        rows = self._together([(self._relation(side, scope, enclosing), side) for side in sides])
        if rows is _Rows.STREAM:
            if not isinstance(query, exp.Union) or query.args.get("distinct"):
                raise UnsupportedError(
                    "UNION, EXCEPT and INTERSECT of streams need all rows at once. Use UNION ALL, or a set operation of "
                    "aggregates: give each side a GROUP BY.",
                    position_of(query, self._source),
                )
            self._refuse_all_rows(query)
        return rows

    def _select(self, select: exp.Select, scope: _Scope, enclosing: frozenset[str]) -> _Rows:
        visible = enclosing | relation_names(select)
        below: _RowSources = []
        for relation in relations_of(select):
            around = visible if isinstance(relation, exp.Lateral) else enclosing
            below.append((self._relation(relation, scope, around), relation))
        joins = select.args.get("joins") or ()
        below += self._subqueries([select.args.get("where"), *(join.args.get("on") for join in joins)], scope, visible)
        rows = self._together(below)
        rest = [value for arg, value in select.args.items() if arg not in ("with_", "from_", "joins", "laterals", "where")]
        above = self._subqueries(
            [node for value in rest for node in (value if isinstance(value, list) else [value])], scope, visible
        )
        if rows is not _Rows.STREAM:
            return self._together([(rows, select), *above] if rows is _Rows.AGGREGATE else [*below, *above])
        if not is_aggregation(select):
            self._together([*below, *above])
            self._refuse_all_rows(select)
            return rows
        for subquery_rows, subquery in above:
            if subquery_rows is _Rows.STREAM:
                self.refuse_beside(subquery)
        self._refuse_correlated(select, enclosing)
        has_aggregates_above = any(found is _Rows.AGGREGATE for found, _ in above)
        is_target = select is self._root and not has_aggregates_above and not is_above(select)
        if not is_target or key_of(select, self._source) is None:
            self._maintain(select)
        return _Rows.AGGREGATE

    def _subqueries(self, nodes: Iterable[object], scope: _Scope, visible: frozenset[str]) -> _RowSources:
        return [
            (self.query(found, scope, visible), found)
            for node in nodes
            if isinstance(node, exp.Expr)
            for found in list(_outermost_queries(node))
        ]

    def _together(self, found: _RowSources) -> _Rows:
        """Return the origin of the combined rows of several relations; refuse a stream combined with an aggregate."""
        kinds = {rows for rows, _ in found}
        if {_Rows.STREAM, _Rows.AGGREGATE} <= kinds:
            self.refuse_beside(next(node for rows, node in found if rows is _Rows.STREAM))
        return next((kind for kind in (_Rows.STREAM, _Rows.AGGREGATE) if kind in kinds), _Rows.TABLES)

    def _maintain(self, select: exp.Select) -> None:
        own = select.args.get("with_")
        around = [*ctes_around(select), *(own.expressions if own else ())]
        form = NormalForm(select, self._source)
        inner = form.inner
        with_needed(inner, around, self._source)
        text = _words(to_sql(inner, self._source))  # sqlglot's trees are equal where Spark's are not
        known = next((each for each in self.aggregates if _words(to_sql(each.select, self._source)) == text), None)
        if known is None:
            known = InnerAggregate(f"{AGGREGATE_PREFIX}{len(self.aggregates) + 1}", inner, form.key)
            self.aggregates.append(known)
        form.put_above(known.name)
        select.set("with_", own)  # its subqueries above the aggregate may read them

    def refuse_beside(self, node: exp.Expr) -> None:
        """Raise UnsupportedError for rows of a stream that are combined with an aggregate."""
        stream = node.find(Stream) or node
        raise UnsupportedError(
            f"The rows of `{_one_line(to_sql(stream, self._source))}` are combined with an aggregate over a stream, and only the "
            "aggregate is kept. Aggregate these rows as well, read them without STREAM, or keep the whole query, without STREAM, "
            "by CREATE MATERIALIZED VIEW.",
            position_of(stream, self._source),
        )

    def _refuse_correlated(self, select: exp.Select, enclosing: frozenset[str]) -> None:
        own = {name for each in select.find_all(exp.Select) for name in relation_names(each)}
        for column in select.find_all(exp.Column):
            if fold(column.table) in enclosing - own:
                raise UnsupportedError(
                    f"This streaming aggregate depends on the query around it through `{to_sql(column, self._source)}`, so it "
                    "cannot be kept on its own. Group it by that column in a subquery, and join the two.",
                    position_of(column, self._source),
                )

    def _refuse_all_rows(self, query: exp.Query) -> None:
        """Refuse clauses that need all rows at once: appended rows have no order, no end and no neighbours."""
        for clause, name in (
            ("order", "ORDER BY"),
            ("limit", "LIMIT"),
            ("offset", "OFFSET"),
            ("sort", "SORT BY"),
            ("cluster", "CLUSTER BY"),
            ("qualify", "QUALIFY"),
        ):
            if (node := query.args.get(clause)) is not None:
                raise self._needs_all_rows(name, node)
        if isinstance(query, exp.Select) and (window := next(window_calls(query), None)) is not None:
            raise self._needs_all_rows("a window function", window)

    def _needs_all_rows(self, what: str, node: exp.Expr) -> UnsupportedError:
        is_rank = isinstance(node, exp.Window) and function_name(node.this) in ("row_number", "rank", "dense_rank")
        rank = (
            " So is ROW_NUMBER() OVER (PARTITION BY .. ORDER BY ..) AS r in a subquery that WHERE r <= 3 filters."
            if is_rank
            else ""
        )
        return UnsupportedError(
            f"The rows of this stream are appended as they arrive, but {what} needs all rows at once. Use it in the queries that "
            f"read the table, or in a view over it; above an aggregate with GROUP BY it is allowed here.{rank}",
            position_of(node, self._source) or position_of(self._root, self._source),
        )


def _outermost_queries(node: exp.Expr) -> Iterator[exp.Query]:
    for each in node.walk(prune=lambda each: isinstance(each, exp.Query)):
        if isinstance(each, exp.Query):
            yield each


def _remove_unused_ctes(outer: exp.Query) -> None:
    """Remove the CTEs that the outer query no longer reads: the aggregates have copies of their own."""
    for cte in reversed(list(outer.find_all(exp.CTE))):
        if not any(cte_of(table) is cte for table in outer.find_all(exp.Table)):
            drop_cte(cte)


def _words(text: str) -> list[str]:
    return [token.text for token in tokens(text)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
