"""Builds the job graph of a rewritten query: one operator per clause, with its attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlext.functions.scalar import FUNCTIONS
from sqlext.options import Level, ValueText
from sqlext.plan.job_graph import JobGraph, Operator, OperatorAttributes, OperatorAttributesBuilder, Source
from sqlext.quoting import fold
from sqlext.sql.ctes import cte_of
from sqlext.sql.dialect import to_sql
from sqlext.sql.nodes import Stream, TableArgument
from sqlext.sql.trees import aggregate_calls, function_name, is_aggregation, is_end_of_stream, window_calls


class GraphBuilder:
    """A builder of the job graph of a query and its prerequisites, from the sources up.

    Args:
        source_text: the statement's text.
        source_options: our options of each stream, by its alias.
    """

    def __init__(self, source_text: str, source_options: Mapping[str, Mapping[Level, Mapping[str, ValueText]]]) -> None:
        self._text = source_text
        self._options = source_options
        self._operators: list[Operator] = []
        self._open: list[exp.CTE] = []
        """The WITH queries whose operators are being added, from the outside in."""
        self._maintained: dict[str, int] = {}
        """The ids of maintained aggregates' operators by relation name; if not empty, new operators are above them."""
        self._prerequisites: dict[str, int] = {}
        """The ids of prerequisites' last operators by relation name."""

    def add_prerequisite(self, name: str, query: exp.Query) -> None:
        """Add the operators of a prerequisite, which later queries read by its name."""
        self._prerequisites[name] = self._query(query)

    def build(self, query: exp.Query) -> JobGraph:
        """Return the graph of a query."""
        self._query(query)
        return JobGraph(tuple(self._operators))

    def build_above(self, outer: exp.Query, aggregates: Mapping[str, exp.Query]) -> JobGraph:
        """Return the graph of `aggregates`, by relation name, and of the query above them.

        Above a maintained aggregate no operator is a full dam, since the query is evaluated at each flush; and each operator is
        idempotent, since the next evaluation replaces its rows.
        """
        maintained = {}
        for name, aggregate in aggregates.items():
            last = self._query(aggregate)
            self._operators[last] = replace(self._operators[last], detail=f"{name}, {self._operators[last].detail}")
            maintained[name] = last
        self._maintained = maintained
        self._query(outer)
        return JobGraph(tuple(self._operators))

    def _query(self, query: exp.Expr) -> int:
        if isinstance(query, exp.Subquery):
            return self._modifiers(query, self._query(query.this))
        if isinstance(query, exp.SetOperation):
            inputs = (self._query(query.this), self._query(query.expression))
            return self._modifiers(query, self._add("Union", query.key.upper(), inputs))
        if isinstance(query, exp.Select):
            return self._select(query)
        return self._add("Source", self._sql(query), (), source=Source((), "", False))

    def _select(self, select: exp.Select) -> int:
        from_ = select.args.get("from_")
        at = self._relation(from_.this) if from_ else self._add("Source", "one row", ())
        for join in select.args.get("joins") or ():
            at = self._add("Join", self._sql(join).strip(), (at, self._relation(join.this)), is_dam=is_end_of_stream(select))
        if where := select.args.get("where"):
            at = self._add("Filter", self._sql(where.this), (at, *self._read_by(where)))
        if is_aggregation(select) or is_end_of_stream(select):
            at = self._aggregate(select, at)
            if having := select.args.get("having"):
                at = self._add("Filter", self._sql(having.this), (at, *self._read_by(having)))
        else:
            for window in dict.fromkeys(self._sql(window) for window in window_calls(select)):
                at = self._add("Window", window, (at,))
            inputs = tuple(number for item in select.expressions for number in self._read_by(item))
            at = self._add("Project", ", ".join(self._sql(item) for item in select.expressions), (at, *inputs))
        return self._modifiers(select, at)

    def _read_by(self, clause: exp.Expr) -> list[int]:
        """Add the subqueries of a clause that read a prerequisite or a maintained aggregate; others remain part of its text."""
        found = clause.walk(prune=lambda node: isinstance(node, exp.Query)) if self._built else ()
        return [self._query(node) for node in found if isinstance(node, exp.Query) and self._reads_built(node)]

    @property
    def _built(self) -> dict[str, int]:
        return self._prerequisites | self._maintained

    def _reads_built(self, query: exp.Query) -> bool:
        seen: list[exp.Expr] = [query]
        for part in seen:  # grows by the WITH queries that it finds
            for table in part.find_all(exp.Table):
                if fold(table.name) in self._built:
                    return True
                cte = cte_of(table)
                if cte is not None and not any(cte is each for each in seen):
                    seen.append(cte)
        return False

    def _aggregate(self, select: exp.Select, at: int) -> int:
        group = select.args.get("group")
        calls = {function_name(call) for item in select.expressions for call in item.find_all(exp.Func)}
        calls |= {function_name(call) for call in aggregate_calls(select)}  # those of HAVING
        keys = (
            "ALL"
            if group and group.args.get("all")
            else ", ".join(self._sql(key) for key in (group.expressions if group else ()))
        )
        python = [f for f in FUNCTIONS if f.is_aggregate and not calls.isdisjoint((f.name.lower(), f.over_list_name.lower()))]
        detail = f"key: {keys or 'none'}; {', '.join(self._sql(item) for item in select.expressions)}"
        is_idempotent = all(function.is_output_idempotent for function in python)
        return self._add("Aggregate", detail, (at,), is_idempotent, is_end_of_stream(select))

    def _modifiers(self, query: exp.Expr, at: int) -> int:
        if qualify := query.args.get("qualify"):
            at = self._add("Filter", self._sql(qualify.this), (at,))
        if any(query.args.get(clause) for clause in ("order", "sort")):
            clause = query.args.get("order") or query.args.get("sort")
            at = self._add("Sort", self._sql(clause).strip() if clause else "", (at,), is_dam=True)
        if limits := [self._sql(query.args[clause]).strip() for clause in ("limit", "offset") if query.args.get(clause)]:
            at = self._add("Limit", " ".join(limits), (at,))
        return at

    def _relation(self, relation: exp.Expr) -> int:
        if isinstance(relation, Stream):
            alias = relation.alias or relation.this.name
            is_stream = not relation.args.get("is_bounded")
            options = self._options.get(fold(alias), {}) if is_stream else {}
            source = Source(_parts(relation.this), alias, is_stream, options)
            return self._add("Source", self._sql(relation), (), source=source)
        if isinstance(relation, exp.Table):
            if not relation.db and relation.name in self._built:
                return self._built[relation.name]
            if arguments := [each for each in relation.this.find_all(TableArgument) if each.parent is relation.this]:
                return self._called(relation, [each.this for each in arguments])
            if (cte := cte_of(relation)) is not None:
                return self._cte(cte)
            source = Source(_parts(relation), relation.alias_or_name, False)
            return self._add("Source", self._sql(relation), (), source=source)
        if isinstance(relation, exp.Query):
            return self._query(relation)
        return self._add("Source", self._sql(relation), ())

    def _cte(self, cte: exp.CTE) -> int:
        """Add a WITH query, once for each use of it; what it reads of itself (WITH RECURSIVE) are its rows of the step before."""
        if any(cte is each for each in self._open):
            return self._add("Source", f"{cte.alias}, of the step before", ())
        self._open.append(cte)
        last = self._query(cte.this)
        self._open.pop()
        return last

    def _called(self, call: exp.Table, tables: Sequence[exp.Expr]) -> int:
        """Add a call of a table function over tables: a full dam, unless it reads a stream that does not end."""
        is_endless = any(not stream.args.get("is_bounded") for stream in call.find_all(Stream))
        inputs = tuple(self._query(table) if isinstance(table, exp.Query) else self._relation(table) for table in tables)
        name = call.this.name
        return self._add("".join(word.title() for word in name.split("_")), self._sql(call), inputs, is_dam=not is_endless)

    def _add(
        self,
        kind: str,
        detail: str,
        inputs: tuple[int, ...],
        is_idempotent: bool | None = None,
        is_dam: bool | None = None,
        source: Source | None = None,
    ) -> int:
        number = len(self._operators)
        if self._maintained and kind != "Source":
            is_idempotent, is_dam = True, False
        builder = OperatorAttributesBuilder(f"{number} {kind}")
        if is_idempotent is not None:
            builder.set_output_idempotent(is_idempotent)
        if is_dam is not None:
            builder.set_output_only_after_end_of_stream(is_dam)
        attributes: OperatorAttributes = builder.build()
        self._operators.append(Operator(number, kind, " ".join(detail.split()), inputs, attributes, source))
        return number

    def _sql(self, node: exp.Expr) -> str:
        return to_sql(node, self._text)


def _parts(table: exp.Expr) -> tuple[str, ...]:
    if isinstance(table, exp.Table) and isinstance(table.this, exp.Func):
        return (table.this.name,)
    if isinstance(table, exp.Table):
        return tuple(part.name for part in table.parts)
    return (table.name,)
