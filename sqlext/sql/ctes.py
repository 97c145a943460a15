"""WITH queries: which one a relation's name means, and the ones that a part of a query needs to stand alone.

As in Spark, a WITH query is visible to those behind it in the same WITH, to the query that the WITH belongs to, and to all below
that; with RECURSIVE also to itself. An inner one hides an outer one of its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.quoting import fold
from sqlext.sql.source_text import position_of


def ctes_around(node: exp.Expr) -> list[exp.CTE]:
    """Return the WITH queries in whose scope a node is, outer ones first; also those that inner ones of their name hide."""
    scopes: list[list[exp.CTE]] = []
    below = node
    while (above := below.parent) is not None:
        scopes.append(_visible_from(above, below))
        below = above
    return [cte for scope in reversed(scopes) for cte in scope]


def cte_of(table: exp.Table) -> exp.CTE | None:
    """Return the WITH query that a relation's name means; None: it is a table or view."""
    below: exp.Expr = table
    while not table.args.get("db") and (above := below.parent) is not None:
        found = [cte for cte in _visible_from(above, below) if fold(cte.alias) == fold(table.name)]
        if found:
            return found[-1]
        below = above
    return None


def is_recursive(cte: exp.CTE) -> bool:
    """Return whether a WITH query is in a WITH RECURSIVE, and so may read itself."""
    return isinstance(cte.parent, exp.With) and bool(cte.parent.args.get("recursive"))


def with_needed(query: exp.Query, around: Sequence[exp.CTE], source: str) -> None:
    """Put those WITH queries into `query` that it reads, directly or through others.

    Args:
        query: a query that stands alone; it is changed.
        around: the WITH queries in whose scope it stood, outer ones first.
        source: the statement's text.

    Raises:
        UnsupportedError: two of them have one name, or one would read itself.
    """
    needed = _needed(query, around)
    if not needed:
        return
    with_ = query.args.get("with_")
    every = [*needed, *(with_.expressions if with_ else ())]
    recursive = any(map(is_recursive, every))
    names: set[str] = set()
    for cte in every:
        name = fold(cte.alias)
        if name in names:
            raise UnsupportedError(
                f"Two WITH queries named `{cte.alias}` are read in a part of the query that runs alone. Give each its own name.",
                position_of(cte, source),
            )
        if recursive and not is_recursive(cte) and any(_is_named(table, name) for table in cte.find_all(exp.Table)):
            raise UnsupportedError(
                f"The WITH query `{cte.alias}` reads a table of its own name, and is needed beside a WITH RECURSIVE, where that "
                "name would mean itself. Give the WITH query another name.",
                position_of(cte, source),
            )
        names.add(name)
    query.set("with_", exp.With(expressions=[cte.copy() for cte in every], recursive=recursive))


def _needed(query: exp.Query, around: Sequence[exp.CTE]) -> list[exp.CTE]:
    by_name = {fold(cte.alias): cte for cte in around}
    known = {id(cte) for cte in around}
    needed: set[int] = set()
    reading: list[exp.Expr] = [query]
    while reading:
        node = reading.pop()
        for table in node.find_all(exp.Table):
            cte = cte_of(table)
            if cte is None and node is query and not table.args.get("db"):
                cte = by_name.get(fold(table.name))
            if cte is not None and id(cte) in known - needed:
                needed.add(id(cte))
                reading.append(cte)
    return [cte for cte in around if id(cte) in needed]


def _is_named(table: exp.Table, name: str) -> bool:
    return not table.args.get("db") and fold(table.name) == name


def _visible_from(above: exp.Expr, below: exp.Expr) -> list[exp.CTE]:
    """Return the WITH queries that a node's parent makes visible to it."""
    if isinstance(above, exp.With):
        before = next(number for number, cte in enumerate(above.expressions) if cte is below)
        return list(above.expressions[: before + bool(above.args.get("recursive"))])
    with_ = above.args.get("with_")
    return [] if with_ is None or with_ is below else list(with_.expressions)
