"""Spark's pipe operators, `FROM t |> WHERE .. |> AGGREGATE ..`, as subqueries.

sqlglot puts them into one SELECT, where WHERE comes before LIMIT whatever the order. Here each operator is a select over what
stands before it, as Spark's parser does it:

    FROM t |> LIMIT 3 |> WHERE v > 1
    -> SELECT * FROM (SELECT * FROM t LIMIT 3) WHERE v > 1

The names of the relations in FROM are known to the first operator that is not JOIN; later ones know those of AS only. Spark
knows them longer in places, so a query that is written anew may be refused by Spark for a name that it does not find.

SET has no form as a subquery: it replaces a column in its place. It stays an operator, `Select.args["pipe_set"]`.
"""

# ruff: noqa: SLF001  # these functions are a part of sqlglot's parser

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from sqlext.sql.source_text import note, origin_of
from sqlext.sql.trees import aggregate_calls_in

PIPE_SET = "pipe_set"
"""The argument of a select that holds the assignments of SET, which are evaluated after everything else of the select."""

_ORDERS = {
    TokenType.ORDER_BY: 0,
    TokenType.CLUSTER_BY: 1,
    TokenType.DISTRIBUTE_BY: 2,
    TokenType.SORT_BY: 3,
    TokenType.LIMIT: 4,
    TokenType.OFFSET: 5,
}
"""The clauses that order and limit, in the order in which one query may have them: `LIMIT 3 ORDER BY a` sorts the three rows."""
_LAST = frozenset(("order", "sort", "cluster", "distribute", "limit", "offset", "end_of_stream", PIPE_SET))
_OF_SELECT = frozenset(("kind", "hint", "distinct", "expressions", "windows", *_LAST))
_NOT_A_KEY = frozenset("ALL CUBE GROUPING ROLLUP".split()) | {"GROUPING SETS"}
Parser = Any  # sqlglot's methods are untyped here


def parse_pipes(parser: Parser, query: exp.Query) -> exp.Query:
    """Parse the operators after a query, and what may follow them: set operations, ORDER BY, LIMIT.

    Raises:
        ParseError: an operator is unknown, or has no faithful form; the message names it.
    """
    origin = origin_of(query)
    while True:
        if parser._match(TokenType.PIPE_GT):
            query = _with_operator(parser, query)
        elif parser._curr and parser._curr.token_type in parser.SET_OPERATIONS:
            query = _combined(parser, query)
        elif parser._curr and parser._curr.token_type in _ORDERS:
            query = _ordered(parser, query if isinstance(query, exp.Select) and not _is_closed(query) else _over(query))
        else:
            break
    if parser._curr and parser._curr.token_type == TokenType.GLOBAL and _is_closed(query):
        query = _over(query)
    if origin is not None:
        note(query, origin.start, parser._prev.end + 1)
    return query


def _with_operator(parser: Parser, query: exp.Query) -> exp.Query:
    word = parser._curr.text.upper() if parser._curr else ""
    if parser._curr and parser._curr.token_type in _ORDERS:
        found: exp.Query = _ordered(parser, _over(query))
    elif parser._curr and parser._curr.token_type in parser.SET_OPERATIONS:
        found = _combined(parser, query)
    else:
        found = _OPERATORS.get(word, _join)(parser, query)
    calls = found.expressions if word in ("SELECT", "EXTEND") else found.args.get(PIPE_SET) or []
    if any(True for item in calls for _ in aggregate_calls_in(item)):
        parser.raise_error(f"|> {word} cannot aggregate. Write |> AGGREGATE")
    _see_the_end(parser, word)
    return found


def _see_the_end(parser: Parser, word: str) -> None:
    """Raise ParseError where an operator goes on: `|> SELECT a WHERE b` is two operators."""
    ends = (TokenType.PIPE_GT, TokenType.R_PAREN, TokenType.SEMICOLON, TokenType.GLOBAL, *_ORDERS, *parser.SET_OPERATIONS)
    if parser._curr and parser._curr.token_type not in ends:
        parser.raise_error(f"|> {word} ends before this. Give each clause an operator of its own, or write subqueries")


def _over(query: exp.Query, alias: exp.TableAlias | None = None) -> exp.Select:
    """Return a select of all that a query has; `FROM a JOIN b` without operators is one already."""
    if alias is None and _is_open(query):
        return exp.Select(**{name: query.args[name] for name in ("expressions", "from_", "joins") if query.args.get(name)})
    inner = query.this if isinstance(query, exp.Subquery) and query.is_wrapper else query
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=inner, alias=alias)))


def _is_open(query: exp.Query) -> bool:
    """Return whether a query is only relations, as `FROM a |> JOIN b` and `FROM a |> AS b` are; their names are still known."""
    if not isinstance(query, exp.Select) or not query.meta.get("sqlext_open") or query.expressions != [exp.Star()]:
        return False
    return not {name for name, value in query.args.items() if value} - {"expressions", "from_", "joins"}


def mark_open(select: exp.Expr) -> None:
    """Mark a select that was written as FROM alone."""
    select.meta["sqlext_open"] = True


def _is_closed(query: exp.Query) -> bool:
    """Return whether a query ends with a clause after which no other can stand."""
    return any(query.args.get(clause) for clause in _LAST)


def _select(parser: Parser, query: exp.Query) -> exp.Select:
    select: exp.Select = parser._parse_select_query(parse_set_operation=False)
    others = {name for name, value in select.args.items() if value} - _OF_SELECT
    if others:
        parser.raise_error("|> SELECT takes no other clause. Give each clause an operator of its own, or write subqueries")
    below = _over(query)
    for name in ("from_", "joins"):
        select.set(name, below.args.get(name))
    return select


def _extend(parser: Parser, query: exp.Query) -> exp.Select:
    parser._advance()
    select = _over(query)
    items = parser._parse_expressions()
    if not items:
        parser.raise_error("Expected |> EXTEND expressions")
    select.set("expressions", [*select.expressions, *items])
    return select


def _set(parser: Parser, query: exp.Query) -> exp.Select:
    parser._advance()
    select = _over(query)
    select.set(PIPE_SET, parser._parse_csv(lambda: _assignment(parser)))
    return select


def _assignment(parser: Parser) -> exp.Alias:
    column = parser._parse_id_var()
    if column is None or not parser._match(TokenType.EQ):
        parser.raise_error("Expected |> SET column = expression")
    return exp.Alias(this=parser._parse_disjunction(), alias=column)


def _drop(parser: Parser, query: exp.Query) -> exp.Select:
    parser._advance()
    select = _over(query)
    names = parser._parse_csv(parser._parse_id_var)
    if not names:
        parser.raise_error("Expected |> DROP columns")
    select.set("expressions", [exp.Star(except_=[exp.column(name) for name in names])])
    return select


def _alias(parser: Parser, query: exp.Query) -> exp.Select:
    parser._advance()
    name = parser._parse_id_var()
    if name is None:
        parser.raise_error("Expected |> AS name")
    select = _over(query, exp.TableAlias(this=name))
    mark_open(select)
    return select


def _where(parser: Parser, query: exp.Query) -> exp.Select:
    select = _over(query)
    select.set("where", parser._parse_where())
    return select


def _pivot(parser: Parser, query: exp.Query) -> exp.Select:
    select = _over(query) if not _is_open(query) else _over(_over(query))
    select.args["from_"].this.set("pivots", parser._parse_pivots())
    return select


def _sample(parser: Parser, query: exp.Query) -> exp.Select:
    select = _over(query) if not _is_open(query) else _over(_over(query))
    select.args["from_"].this.set("sample", parser._parse_table_sample())
    return select


def _aggregate(parser: Parser, query: exp.Query) -> exp.Select:
    """Parse AGGREGATE: its rows have the keys first, and then the aggregates."""
    parser._advance()
    values = [] if parser._match(TokenType.GROUP_BY, advance=False) else parser._parse_expressions()
    keys: Sequence[exp.Expr] = []
    if parser._match(TokenType.GROUP_BY):
        if parser._curr and parser._curr.text.upper() in _NOT_A_KEY:
            parser.raise_error("|> AGGREGATE groups by expressions only. Write SELECT .. GROUP BY over a subquery")
        keys = parser._parse_expressions()
    for key in keys:
        if isinstance(key.unalias(), exp.Literal) and key.unalias().is_int:
            parser.raise_error("|> AGGREGATE .. GROUP BY takes no position here. Name the column")
    if not keys and not values:
        parser.raise_error("Expected |> AGGREGATE expressions GROUP BY keys")
    select = _over(query)
    select.set("expressions", [*keys, *values])
    if keys:
        select.set("group", exp.Group(expressions=[key.unalias().copy() for key in keys]))
    return select


def _ordered(parser: Parser, select: exp.Select) -> exp.Select:
    """Parse ORDER BY, LIMIT and the like, onto a select that has none of them."""
    last = -1
    while parser._curr and _ORDERS.get(parser._curr.token_type, -1) > last:
        last = _ORDERS[parser._curr.token_type]
        clause, value = parser.QUERY_MODIFIER_PARSERS[parser._curr.token_type](parser)
        select.set(clause, value)
    return select


def _combined(parser: Parser, query: exp.Query) -> exp.Query:
    """Parse a set operation with one query to its right; it is set apart, since INTERSECT would bind tighter than UNION."""
    left = query if isinstance(query, exp.Select) and not _is_closed(query) and not query.args.get("with_") else _over(query)
    operation = parser.parse_set_operation(left)
    if operation is None or operation.expression is None:
        parser.raise_error("Expected a query after the set operation")
    assert isinstance(operation, exp.Query)
    return operation


def _join(parser: Parser, query: exp.Query) -> exp.Select:
    word = parser._curr.text.upper() if parser._curr else ""
    join = None if parser._match(TokenType.COMMA, advance=False) else parser._parse_join()
    if join is None:
        parser.raise_error(f"`|> {word}` is not an operator that can be read here. Write subqueries instead")
    has_comma = any(not _is_join(each) for each in _joins(query))
    select = _over(_over(query)) if has_comma and _is_open(query) else _over(query)
    select.append("joins", join)
    mark_open(select)
    return select


def _joins(query: exp.Query) -> list[exp.Expr]:
    from_ = query.args.get("from_")
    of_relation = from_.this.args.get("joins") if from_ else None
    return [*(of_relation or ()), *(query.args.get("joins") or ())]


def _is_join(join: exp.Expr) -> bool:
    """Return whether a join is one, not a comma, which would bind less tightly than the join that follows it."""
    return any(join.args.get(name) for name in ("on", "using", "kind", "side", "method"))


_OPERATORS: dict[str, Callable[[Parser, exp.Query], exp.Select]] = {
    "AGGREGATE": _aggregate,
    "AS": _alias,
    "DROP": _drop,
    "EXTEND": _extend,
    "PIVOT": _pivot,
    "SELECT": _select,
    "SET": _set,
    "TABLESAMPLE": _sample,
    "UNPIVOT": _pivot,
    "WHERE": _where,
}
