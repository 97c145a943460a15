"""The number of grouping sets in a statement: CUBE doubles it with each column, and Spark projects every row once per set."""

from __future__ import annotations

import math

from sqlglot import exp

from sqlext.errors import UnsupportedError
from sqlext.sql.source_text import position_of
from sqlext.sql.statements import Query
from sqlext.sql.trees import total_of

MOST_GROUPING_SETS = 4096
"""The limit of a statement: the grouping sets of CUBE over 12 columns.

Spark's own limit is 64 columns, and it runs out of memory on their CUBE.
"""

_CLAUSES = {"rollup": exp.Rollup, "cube": exp.Cube, "grouping_sets": exp.GroupingSets}


def check_grouping_sets(query: Query) -> None:
    """Raise UnsupportedError if one GROUP BY of a query, or all together, have more than `MOST_GROUPING_SETS` grouping sets."""
    for group in query.tree.find_all(exp.Group):
        if (number := count_grouping_sets(group)) > MOST_GROUPING_SETS:
            raise _refusal("This GROUP BY has", number, group, query)
    if (number := total_of(query.tree, _of_subtotals)) > MOST_GROUPING_SETS:
        raise _refusal("With all uses of its WITH queries, this statement has", number, query.tree, query)


def _refusal(who_has: str, number: int, node: exp.Expr, query: Query) -> UnsupportedError:
    shown = f"{number:,}" if number < 10**12 else f"more than 2^{number.bit_length() - 2}"
    return UnsupportedError(
        f"{who_has} {shown} grouping sets; a statement may have at most {MOST_GROUPING_SETS:,}, as many as one CUBE over "
        f"{MOST_GROUPING_SETS.bit_length() - 1} columns. Write the sets that you need as GROUPING SETS.",
        position_of(node, query.source) or position_of(query.tree, query.source),
    )


def _of_subtotals(node: exp.Expr) -> int:
    """Return the number of grouping sets of a GROUP BY that has more than one; 0 for all other nodes."""
    number = count_grouping_sets(node) if isinstance(node, exp.Group) else 0
    return number if number > 1 else 0


def count_grouping_sets(group: exp.Group) -> int:
    """Return the number of grouping sets, without building them; 1 for a plain GROUP BY.

    `GROUP BY a, CUBE (b, c), ROLLUP (d)` has 1 * 4 * 2.
    """
    written = [(kind, node) for clause, kind in _CLAUSES.items() for node in group.args.get(clause) or ()]
    if written:  # GROUP BY a, b WITH CUBE: the clause's columns are written before it
        return math.prod(_count(kind, node.expressions or group.expressions) for kind, node in written)
    return math.prod(_count_of_part(part) for part in group.expressions)


def _count_of_part(part: exp.Expr) -> int:
    is_nested = isinstance(part, tuple(_CLAUSES.values()))
    return _count(type(part), part.expressions) if is_nested else 1


def _count(kind: type[exp.Expr], parts: list[exp.Expr]) -> int:
    if kind is exp.GroupingSets:
        return sum(map(_count_of_part, parts))
    return len(parts) + 1 if kind is exp.Rollup else 2 ** len(parts)
