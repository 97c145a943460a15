"""Constraints on the rows of a table that sqlext keeps up to date: `CONSTRAINT c EXPECT (e) [ON VIOLATION ..]`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlext.errors import Position
from sqlext.plan.job_graph import INTERNAL_PREFIX
from sqlext.quoting import quote, quote_parts

EXPECT_PROPERTY = "sqlext.expect."
"""The prefix, before the constraint's name, of the table property that stores what the statement says after EXPECT."""

CONSTRAINTS_COLUMN = "_constraints"
INPUT_COLUMN = "_input"
FLOW_COLUMN = "_flow"
FLOW_ID_COLUMN = "_flow_id"
BATCH_COLUMN = "_micro_batch"
TIME_COLUMN = "_quarantined_at"
QUARANTINE_COLUMNS = {
    CONSTRAINTS_COLUMN: "ARRAY<STRING>",
    INPUT_COLUMN: "STRING",
    FLOW_COLUMN: "STRING",
    FLOW_ID_COLUMN: "STRING",
    BATCH_COLUMN: "BIGINT",
    TIME_COLUMN: "TIMESTAMP_LTZ",
}
"""The columns of a quarantine table, with their types, after those of the row."""


_NO_ERROR = ["NO", "ERROR"]


class Violation(StrEnum):
    """What becomes of a row that does not hold a constraint; each word follows ON VIOLATION, but ALLOW, which is the default."""

    ALLOW = "ALLOW"
    DROP = "DROP ROW"
    FAIL = "FAIL UPDATE"
    QUARANTINE = "QUARANTINE"


@dataclass(frozen=True)
class Constraint:
    """A condition on each row of a table. A row for which it is NULL does not hold it, as in WHERE.

    Attributes:
        name: its name.
        condition: the expression over the table's columns, as written.
        violation: what becomes of rows that do not hold it.
        quarantine: the table for these rows, if they are quarantined.
        position: its place in the statement; None: it was read from a table or a record.
    """

    name: str
    condition: str
    violation: Violation = Violation.ALLOW
    quarantine: tuple[str, ...] = ()
    position: Position | None = None

    @property
    def is_of_errors(self) -> bool:
        """Whether it is no expression, but says that all columns of a row can be computed."""
        return self.condition.upper().split() == _NO_ERROR

    @property
    def keeps_row(self) -> bool:
        """Whether a row that violates it is in the table all the same."""
        return self.violation is Violation.ALLOW

    @property
    def written(self) -> str:
        """What follows EXPECT in a statement."""
        condition = self.condition if self.is_of_errors else f"({self.condition})"
        done = "" if self.violation is Violation.ALLOW else f" ON VIOLATION {self.violation.value}"
        return f"{condition}{done}{f' INTO {quote_parts(self.quarantine)}' if self.quarantine else ''}"

    @property
    def wanted(self) -> str:
        """What it wants of rows, and what becomes of others, for people."""
        done = {
            Violation.ALLOW: "counted",
            Violation.DROP: "dropped",
            Violation.FAIL: "an error",
            Violation.QUARANTINE: f"quarantined in {'.'.join(self.quarantine)}",
        }[self.violation]
        return f"{self.condition}; rows that violate it are {done}"


def constraint_from(data: Mapping[str, Any]) -> Constraint:
    """Return a constraint from the fields that a record has of it."""
    return Constraint(**{**data, "violation": Violation(data["violation"]), "quarantine": tuple(data["quarantine"])})


def quarantines(constraints: Iterable[Constraint]) -> dict[tuple[str, ...], list[Constraint]]:
    """Return the constraints that quarantine rows, by the table for these."""
    found: dict[tuple[str, ...], list[Constraint]] = {}
    for each in constraints:
        if each.violation is Violation.QUARANTINE:
            found.setdefault(each.quarantine, []).append(each)
    return found


def without_dropped(query: str, columns: Mapping[str, str], constraints: Iterable[Constraint]) -> str:
    """Return a query without the rows that constraints drop.

    Args:
        query: the query of a table, as written.
        columns: the table's columns, in the order of the query's; the type of each, as DDL, or an empty text: the query's.
        constraints: on the table's rows.

    >>> print(without_dropped("SELECT 1", {"a": ""}, [Constraint("c", "a > 0", Violation.DROP)]))
    SELECT * FROM (SELECT `a` FROM (
    SELECT 1
    ) AS r(`a`)) WHERE (a > 0)
    """
    conditions = [f"({each.condition})" for each in constraints if each.violation is Violation.DROP]
    if not conditions:
        return query
    names = ", ".join(map(quote, columns))
    items = ", ".join(
        f"CAST({quote(name)} AS {kind}) AS {quote(name)}" if kind else quote(name) for name, kind in columns.items()
    )
    return f"SELECT * FROM (SELECT {items} FROM (\n{query}\n) AS r({names})) WHERE {' AND '.join(conditions)}"


COMPUTED_MARK = f"{INTERNAL_PREFIX}computed"
"""The column that is true for rows all of whose columns could be computed."""
INPUT_MARK = f"{INTERNAL_PREFIX}input"
"""The column of what other rows were to be computed of, as JSON."""
OF_ERRORS = (COMPUTED_MARK, INPUT_MARK)
MARK_PREFIX = f"{INTERNAL_PREFIX}holds_"
"""The prefix, before the number of a constraint, of the column that is true for rows that hold it."""
