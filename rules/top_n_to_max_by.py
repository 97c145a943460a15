"""ROW_NUMBER() OVER (..) <= n over rows of a stream: an aggregate that keeps the first n rows of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import fold
from sqlext.sql.ctes import cte_of, ctes_around
from sqlext.sql.first_rows import first_by
from sqlext.sql.nodes import Stream
from sqlext.sql.rewriter import RefusalError
from sqlext.sql.trees import (
    drop_cte,
    function_name,
    has_rows,
    is_aggregation,
    reads_stream,
    streaming_ctes,
    struct_of,
    window_calls,
)

_RANK, _ROWS, _ROW, _AT = (f"{INTERNAL_PREFIX}{name}" for name in ("rank", "rows", "row", "at"))
_BELOW = ("from_", "joins", "laterals", "where", "hint")
_MOST = 100_000
"""The largest n that Spark's max_by takes."""


@dataclass(frozen=True)
class _Ranked:
    """A select over rows of a stream with one ROW_NUMBER() in its list.

    Attributes:
        select: the select, without clauses other than those of `_BELOW`.
        at: the place of the rank in its list.
        rank: the rank's name.
    """

    select: exp.Select
    at: int
    rank: str

    @property
    def window(self) -> exp.Window:
        found = self.select.expressions[self.at].this
        assert isinstance(found, exp.Window)
        return found

    @property
    def partition(self) -> list[exp.Expr]:
        """Return the expressions of PARTITION BY; a literal makes no partitions, and would be a place of the list to GROUP BY."""
        return [each for each in self.window.args.get("partition_by") or [] if not isinstance(each, exp.Literal)]

    def items(self) -> list[exp.Expr]:
        """Return the items other than the rank."""
        return [item for at, item in enumerate(self.select.expressions) if at != self.at]

    def aggregate(self, items: Sequence[exp.Expr]) -> exp.Select:
        """Return the select of the same rows, grouped by the rank's partition."""
        select = self.select.copy()
        select.set("expressions", list(items))
        if self.partition:
            select.set("group", exp.Group(expressions=[each.copy() for each in self.partition]))
        return select

    def first(self, value: exp.Expr, rows: int | None = None) -> exp.Expr:
        """Return the aggregate of a value of the first row of each partition; of so many rows, as an array in their order."""
        return first_by(value, self.window.args["order"].expressions, self.window, "ROW_NUMBER() over a stream", rows=rows)


def top_n_to_max_by(query: exp.Query) -> exp.Query:
    """Rewrite the filtered row number of a stream's rows into MAX_BY or MIN_BY, grouped by the number's partition.

    The window function would need all rows at once; the aggregate keeps n of each partition. Where rows have the same place in
    the order, either may come first, as with ROW_NUMBER itself. With n > 1, or where the columns are not named, the rows are
    unpacked again above the aggregate. Of two such numbers, one over the rows of the other, the outer one stays: it is evaluated
    above the aggregate of the inner one.

    SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts DESC) AS r FROM STREAM t) WHERE r = 1
    -> SELECT k, MAX_BY(NAMED_STRUCT('v', v), `STRUCT`(ts)).`v` AS v FROM STREAM t GROUP BY k
    """
    for select in _inner_first(query):
        changed = _of_qualify(select, query)
        if changed is not None:
            query = _replaced(query, select, changed)
    for select in _inner_first(query):
        relation = _relation_of(select, query)
        ranked = None if relation is None else _ranked(relation.this, streaming_ctes(query), query)
        rows = None if relation is None or ranked is None else _bound(select, ranked.rank, fold(relation.alias))
        if relation is None or ranked is None or rows is None:
            continue
        _refuse_sample(relation)
        single = _single(select, relation, ranked) if rows == 1 else None
        if single is not None:
            query = _replaced(query, select, single)
        else:
            relation.set("this", _unpacked(ranked, rows))
    return query


def _inner_first(query: exp.Query) -> list[exp.Select]:
    """Return the selects of a query: those of WITH queries in their order, then inner ones, before those that read them.

    A select that is replaced takes those in it along, as copies.
    """
    found, left = list[exp.Select](), list[exp.Expr]([query])
    while left:
        node = left.pop()
        found += [node] if isinstance(node, exp.Select) else []
        left += sorted(node.iter_expressions(), key=lambda child: not isinstance(child, exp.With))
    return found[::-1]


def _refuse_sample(relation: exp.Subquery) -> None:
    if (sample := relation.args.get("sample")) is not None:
        message = (
            "TABLESAMPLE is taken of all rows that ROW_NUMBER() numbers, and only the first rows of each partition are kept. "
            "Leave it out, or take the sample of the table that the query fills."
        )
        raise RefusalError(UnsupportedError(message), sample)


def _replaced(query: exp.Query, old: exp.Select, new: exp.Select) -> exp.Query:
    new.set("with_", old.args.get("with_"))
    if old is query:
        return new
    old.replace(new)
    return query


def _of_qualify(select: exp.Select, query: exp.Query) -> exp.Select | None:
    """Return a select with QUALIFY as one with WHERE, over a subquery with the row number as a column; None for other selects."""
    qualify = select.args.get("qualify")
    windows = [] if qualify is None else list(qualify.find_all(exp.Window))
    if qualify is None or len(windows) > 1 or qualify.find(exp.Query):
        return None
    below, condition = select.copy(), qualify.this.copy()
    below.set("qualify", None)
    below.set("with_", None)
    items: list[exp.Expr] = [exp.Star()]
    if windows:
        hidden = exp.to_identifier(_RANK, quoted=True)
        below.append("expressions", exp.alias_(windows[0].copy(), hidden))
        items = [exp.Star(except_=[exp.column(hidden.copy())])]
        if all(_name(item) for item in select.expressions):
            items = [exp.column(_identifier(item)) for item in select.expressions]
        condition = condition.transform(lambda node: exp.column(hidden.copy()) if isinstance(node, exp.Window) else node)
    ranked = _ranked(below, streaming_ctes(query), query)
    if ranked is None or {fold(column.name) for column in condition.find_all(exp.Column)} != {fold(ranked.rank)}:
        return None
    return exp.Select(expressions=items, from_=exp.From(this=exp.Subquery(this=below)), where=exp.Where(this=condition))


def _relation_of(select: exp.Select, query: exp.Query) -> exp.Subquery | None:
    """Return the subquery in a select's FROM; a WITH query that is used only there is put there first."""
    from_ = select.args.get("from_")
    relation = from_.this if from_ else None
    is_bare = relation is not None and not {name for name, value in relation.args.items() if value} - {"this", "alias"}
    if isinstance(relation, exp.Table) and is_bare and select.args.get("where") is not None:
        name = fold(relation.name)
        used = [each for each in _short_names(query) if each == name]
        found = [cte for cte in query.find_all(exp.CTE) if fold(cte.alias) == name and not cte.args["alias"].args.get("columns")]
        is_found = len(used) == len(found) == 1 and cte_of(relation) is found[0]
        if is_found and _ranked(found[0].this, streaming_ctes(query), query) is not None:
            _refuse_capture(found[0], relation)
            alias = relation.args.get("alias") or exp.TableAlias(this=exp.to_identifier(relation.name))
            subquery = exp.Subquery(this=found[0].this, alias=alias)
            relation.replace(subquery)
            drop_cte(found[0])
            relation = subquery
    if not isinstance(relation, exp.Subquery) or relation.args.get("pivots"):
        return None
    alias = relation.args.get("alias")
    return None if alias is not None and alias.args.get("columns") else relation


def _refuse_capture(cte: exp.CTE, place: exp.Table) -> None:
    """Refuse to put a WITH query in the place of its name if a table in it would be another WITH query there."""
    there = {fold(each.alias): each for each in ctes_around(place) if each is not cte}
    for table in cte.this.find_all(exp.Table):
        meant = cte_of(table)
        is_inside = meant is not None and any(each is meant for each in cte.this.find_all(exp.CTE))
        if not table.db and not is_inside and there.get(fold(table.name)) is not meant:
            message = (
                f"`{table.name}` in the WITH query `{cte.alias}` is another relation than the WITH query of that name, which is "
                "read together with it. Give that WITH query another name."
            )
            raise RefusalError(UnsupportedError(message), table)


def _ranked(select: exp.Expr, ctes: set[str], query: exp.Query) -> _Ranked | None:
    """Return a select as one with a row number over rows of a stream; None for what this rule leaves alone."""
    if not isinstance(select, exp.Select) or any(
        value for clause, value in select.args.items() if clause not in ("expressions", *_BELOW)
    ):
        return None
    places = [at for at, item in enumerate(select.expressions) if isinstance(item, exp.Alias) and _is_row_number(item.this)]
    if len(places) != 1 or len(list(window_calls(select))) != 1 or not all(map(_can_be_packed, select.expressions)):
        return None
    from_, joins, laterals = (select.args.get(clause) for clause in ("from_", "joins", "laterals"))
    relations: list[exp.Expr] = [*([from_] if from_ else []), *(joins or ()), *(laterals or ())]
    if not any(reads_stream(each, ctes) for each in relations) or is_aggregation(select):
        return None
    if any(_aggregates(each, query) for each in relations):
        return None  # rows of an aggregate: the window function is evaluated above it
    return _Ranked(select, places[0], select.expressions[places[0]].alias)


def _is_row_number(node: exp.Expr) -> bool:
    is_window = isinstance(node, exp.Window) and function_name(node.this) == "row_number"
    return is_window and bool(node.args.get("order")) and not node.args.get("alias") and not node.args.get("spec")


def _can_be_packed(item: exp.Expr) -> bool:
    return bool(item.is_star or _name(item))


def _aggregates(node: exp.Expr, query: exp.Query, known: frozenset[str] = frozenset()) -> bool:
    """Return whether a relation, or a WITH query that it reads and that is not among the `known`, aggregates."""
    if any(is_aggregation(select) for select in node.find_all(exp.Select)):
        return True
    names = {*_short_names(node)} - known
    below = [cte for cte in query.find_all(exp.CTE) if fold(cte.alias) in names]
    return any(_aggregates(cte.this, query, known | {fold(cte.alias)}) for cte in below)


def _short_names(node: exp.Expr) -> list[str]:
    """Return the names in a query that may be those of WITH queries, each as often as it is used; a stream's is a table's."""
    tables = (table for table in node.find_all(exp.Table) if not table.db and not isinstance(table.parent, Stream))
    return [fold(table.name) for table in tables]


def _bound(select: exp.Select, rank: str, alias: str) -> int | None:
    """Return how many rows of each partition can pass a select's WHERE; None if their number is not limited there."""
    where = select.args.get("where")
    conditions = [] if where is None else list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    bounds = [bound for each in conditions if (bound := _bound_of(each.unnest(), rank, alias)) is not None]
    return min((bound for bound in bounds if 1 <= bound <= _MOST), default=None)


def _bound_of(condition: exp.Expr, rank: str, alias: str) -> int | None:
    def is_rank(node: exp.Expr) -> bool:
        return isinstance(node, exp.Column) and fold(node.name) == fold(rank) and fold(node.table) in ("", alias)

    def number(node: exp.Expr | None) -> int | None:
        return int(node.name) if isinstance(node, exp.Literal) and node.is_int else None

    left, right = condition.this, condition.args.get("expression")
    if isinstance(condition, exp.Between) and is_rank(left):
        return number(condition.args["high"])
    if isinstance(condition, (exp.GTE, exp.GT)):
        left, right = right, left
    elif not isinstance(condition, (exp.LTE, exp.LT, exp.EQ)):
        return None
    found = number(right) if left is not None and is_rank(left) else None
    return found - 1 if found is not None and isinstance(condition, (exp.LT, exp.GT)) else found


def _single(select: exp.Select, relation: exp.Subquery, ranked: _Ranked) -> exp.Select | None:
    """Return the select as one aggregate whose rows are those of the select; None where its columns are not all named.

    Without a partition the aggregate would have a row, of nulls, also where no row is.
    """
    clauses = {clause for clause, value in select.args.items() if value and clause not in ("with_", "hint")}
    where = select.args["where"].this
    if clauses != {"expressions", "from_", "where"} or relation.args.get("joins") or not _is_first(where.unnest()):
        return None
    columns = _columns(select, relation, ranked)
    if columns is None:
        return None
    values = {name.name: value for name, value in columns if not _is_known(value, ranked)}
    row = _named_struct(values)
    items: list[exp.Expr] = []
    for name, value in columns:
        is_inside = name.name in values
        found = exp.Dot(this=ranked.first(row.copy()), expression=_quoted(name.name)) if is_inside else value.copy()
        items.append(found if found == exp.column(name.copy()) else exp.alias_(found, name.copy()))
    aggregate = ranked.aggregate(items)
    if not ranked.partition:
        aggregate.set("having", exp.Having(this=has_rows()))
    return aggregate


def _is_first(condition: exp.Expr) -> bool:
    """Return whether a condition that limits the rank to 1 is true for 1: `r BETWEEN 2 AND 1` never is."""
    low = condition.args.get("low") if isinstance(condition, exp.Between) else exp.Literal.number(1)
    return not isinstance(condition, exp.And) and isinstance(low, exp.Literal) and low.is_int and int(low.name) <= 1


def _columns(select: exp.Select, relation: exp.Subquery, ranked: _Ranked) -> list[tuple[exp.Identifier, exp.Expr]] | None:
    """Return the names of a select's columns with their values in the ranked select; None if a name or value is not known."""
    inner = {fold(_name(item) or ""): item for item in ranked.items() if _name(item)}
    stars = [item for item in ranked.items() if not _name(item)]
    is_all = len(select.expressions) == 1 and isinstance(select.expressions[0], exp.Star)
    if len(stars) > 1 or (is_all and (stars or select.expressions[0].args.get("except_"))):
        return None
    of_star = stars[0].args.get("table") if stars else None
    found: list[tuple[exp.Identifier, exp.Expr]] = []
    for item in ranked.select.expressions if is_all else select.expressions:
        column = exp.column(_identifier(item)) if is_all else item.unalias()
        own = isinstance(column, exp.Column) and not column.is_star and not column.db
        if not own or fold(column.table) not in ("", fold(relation.alias)):
            return None
        value = _value(inner.get(fold(column.name)))
        if fold(column.name) == fold(ranked.rank):
            value = exp.Literal.number(1)
        if value is None and not stars:
            return None
        found.append((_identifier(item), value or exp.column(column.this.copy(), table=of_star and of_star.copy())))
    return found if len({fold(name.name) for name, _ in found}) == len(found) else None


def _value(item: exp.Expr | None) -> exp.Expr | None:
    return item.this if isinstance(item, exp.Alias) else item


def _is_known(value: exp.Expr, ranked: _Ranked) -> bool:
    """Return whether a value is the same in all rows of a partition."""
    return isinstance(value, exp.Literal) or any(value == key for key in ranked.partition)


def _unpacked(ranked: _Ranked, rows: int) -> exp.Select:
    """Return the ranked select over an aggregate that holds the first rows of each partition as an array of structs.

    Each `*` is a struct of its own, and so are the named columns between two of them.
    """
    groups: dict[str, exp.Expr] = {}
    items: list[exp.Expr] = []
    named: dict[str, exp.Expr] = {}

    def close(value: exp.Expr) -> None:
        name = f"g{len(groups) + 1}"
        groups[name] = value
        items.append(exp.Column(this=exp.Star(), table=exp.to_identifier(name), db=exp.to_identifier(_ROW)))

    for at, item in enumerate(ranked.select.expressions):
        if named and (at == ranked.at or item.is_star or _name(item) in named):
            close(_named_struct(named))
            named = {}
        if at == ranked.at:
            number = exp.Add(this=exp.column(_AT), expression=exp.Literal.number(1))
            items.append(exp.alias_(number, _identifier(item).copy()))
        elif item.is_star:
            close(struct_of([item]))
        else:
            named[_name(item) or ""] = item.unalias()
    if named:
        close(_named_struct(named))
    call = ranked.first(_named_struct(groups), rows)
    explode = exp.Anonymous(this="POSEXPLODE", expressions=[exp.column(_ROWS)])
    names = exp.TableAlias(columns=[exp.to_identifier(_AT), exp.to_identifier(_ROW)])
    return exp.Select(
        expressions=items,
        from_=exp.From(this=exp.Subquery(this=ranked.aggregate([exp.alias_(call, _ROWS)]))),
        laterals=[exp.Lateral(this=explode, view=True, outer=False, alias=names)],
    )


def _named_struct(values: dict[str, exp.Expr]) -> exp.Expr:
    parts = [part for name, value in values.items() for part in (exp.Literal.string(name), value.copy())]
    return exp.Anonymous(this="NAMED_STRUCT", expressions=parts)


def _name(item: exp.Expr) -> str | None:
    """Return the name of an item; None where it is `*`, or Spark makes its name."""
    if isinstance(item, exp.Alias):
        return item.alias if isinstance(item.args.get("alias"), exp.Identifier) else None
    return item.name if isinstance(item, exp.Column) and isinstance(item.this, exp.Identifier) else None


def _identifier(item: exp.Expr) -> exp.Identifier:
    found = item.args["alias"] if isinstance(item, exp.Alias) else item.this
    assert isinstance(found, exp.Identifier)
    return found


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)
