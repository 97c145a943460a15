"""Constraints on the rows of a table, applied on their way into it: which rows are counted, kept, refused, quarantined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sqlext.errors import ConstraintError
from sqlext.execution.delta import target
from sqlext.plan.constraints import (
    COMPUTED_MARK,
    CONSTRAINTS_COLUMN,
    INPUT_COLUMN,
    MARK_PREFIX,
    OF_ERRORS,
    Constraint,
    Violation,
    quarantines,
)
from sqlext.plan.flow_spec import Column as ColumnMapping
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.quoting import quote
from sqlext.spark import jvm, row_errors, sessions
from sqlext.spark.plans import analysed
from sqlext.spark.row_counts import RowCounts
from sqlext.spark.varying import has_moment

_SHOWN_CHARACTERS = 300  # of a row in a message

Violations = dict[str, int]
"""The number of rows that violate each constraint, by the constraint's name."""


class RowChecks:
    """The checks of the rows of a table. Thread-safe: no state is kept here.

    Args:
        table: the table, qualified.
        constraints: on its rows.
        way_out: what to do if a row must not be, for a message.
    """

    def __init__(self, table: tuple[str, ...], constraints: Sequence[Constraint], way_out: str) -> None:
        self._table = table
        self._way_out = way_out
        self._marks = {f"{MARK_PREFIX}{at}": each for at, each in enumerate(constraints)}

    @property
    def may_fail(self) -> bool:
        """Whether a constraint fails what violates it."""
        return any(each.violation is Violation.FAIL for each in self._marks.values())

    def violations_in(self, rows: DataFrame, where: str) -> Violations:
        """Return the numbers of violations among rows that can be computed again.

        Args:
            rows: rows of the table.
            where: what they are of, for a message.

        Raises:
            ConstraintError: a constraint with FAIL UPDATE is violated.
        """
        marked = self._marked(rows)
        counts = marked.agg(*(F.count_if(~F.col(mark)) for mark in self._marks)).collect()[0]
        violations = {each.name: int(count) for each, count in zip(self._marks.values(), counts, strict=True)}
        self._refuse(marked, violations, where)
        return violations

    def _marked(self, rows: DataFrame) -> DataFrame:
        """Return rows with a column for each constraint.

        What could not be computed of a row is held against no other one, unless such rows are to be in the table.
        """
        is_kept = all(each.keeps_row for each in self._marks.values() if each.is_of_errors)
        passes = F.lit(False) if is_kept or COMPUTED_MARK not in rows.columns else ~F.col(COMPUTED_MARK)
        for mark, each in self._marks.items():
            holding = holds(each, rows)
            rows = rows.withColumn(mark, holding if each.is_of_errors else passes | holding)
        return rows

    def _refuse(self, marked: DataFrame, violations: Mapping[str, int], where: str) -> None:
        for mark, each in self._marks.items():
            if each.violation is Violation.FAIL and violations[each.name]:
                columns = [quote(name) for name in marked.columns if name not in (*self._marks, *OF_ERRORS, QUALIFIES)]
                row = marked.where(~F.col(mark)).select(F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})).first()
                number = "1 row" if violations[each.name] == 1 else f"{violations[each.name]} rows"
                shown = "" if row is None else f", such as {str(row[0])[:_SHOWN_CHARACTERS]}"
                raise ConstraintError(
                    f"The constraint `{each.name}` of {'.'.join(self._table)}, EXPECT ({each.condition}) ON VIOLATION FAIL "
                    f"UPDATE, is violated by {number} of {where}{shown}. None of its rows are in the table. {self._way_out}"
                )


class FlowChecks(RowChecks):
    """The checks of the rows that a flow writes.

    Args:
        spec: the flow, with its constraints.
    """

    def __init__(self, spec: FlowSpec) -> None:
        way_out = "ALTER STREAMING TABLE .. DROP CONSTRAINT, and START FLOW, let them pass."
        super().__init__(spec.target, spec.constraints, way_out)
        self._spec = spec
        self._is_repeatable = True  # the frame of a micro-batch does not tell

    def caught(self, frame: DataFrame, columns: Sequence[ColumnMapping]) -> DataFrame:
        """Return the flow's query, with `OF_ERRORS` if rows that cannot be computed violate a constraint, and do not fail it.

        Whether the query has the same rows each time that it is computed is noted for `marked`.

        Args:
            frame: the analysed query, before it runs.
            columns: of the table, whose types its values must have.
        """
        self._is_repeatable = bool(analysed(frame).deterministic())
        if not any(each.is_of_errors for each in self._spec.constraints):
            return frame
        return row_errors.caught(target.in_target_types(frame, columns))

    @contextmanager
    def marked(self, rows: DataFrame) -> Iterator[tuple[DataFrame, bool]]:
        """Yield rows with a column for each constraint, true where the row holds it; they can be computed twice, alike.

        With them, whether what they are made of is read each time that they are.
        """
        found = self._marked(rows)
        is_read_twice = quarantines(self._spec.constraints)
        if is_read_twice and (not self._is_repeatable or has_moment(rows.sparkSession, analysed(found))):
            with jvm.held(found) as held:
                yield held, False
        else:
            yield found, True

    def _marked(self, rows: DataFrame) -> DataFrame:
        """Return marked rows; the session of a micro-batch, Spark's own clone of the flow's, gets the variables of conditions."""
        session: SparkSession = rows.sparkSession
        given = self._spec.variables if self._spec.constraints else {}
        sessions.declare(session, {name: value for name, value in given.items() if jvm.variable(session, name) is None})
        return super()._marked(rows)

    def watched(self, marked: DataFrame) -> tuple[DataFrame, Callable[[], Violations]]:
        """Return the rows that go into the table; and the numbers of violations, after Spark has computed them, once."""
        counts = RowCounts(marked, {each.name: ~F.col(mark) for mark, each in self._marks.items()})
        dropping = [mark for mark, each in self._marks.items() if not each.keeps_row]
        kept = counts.rows.where(_all_of(dropping)) if dropping else counts.rows
        return kept.drop(*self._marks, *OF_ERRORS), counts.values

    def quarantined(self, marked: DataFrame, violations: Violations, batch: int) -> dict[tuple[str, ...], DataFrame]:
        """Refuse a micro-batch with a row that must not be; else return those of its rows that are to be quarantined, by table.

        They have `CONSTRAINTS_COLUMN`, and `INPUT_MARK` if that is there. What differs from one micro-batch to the next is not
        in them: it would be compiled into each.

        Raises:
            ConstraintError: a constraint with FAIL UPDATE is violated.
        """
        self._refuse(marked, violations, f"micro-batch {batch}")
        found: dict[tuple[str, ...], DataFrame] = {}
        before: list[str] = []
        names = F.array_compact(F.array(*(F.when(~F.col(mark), F.lit(each.name)) for mark, each in self._marks.items())))
        for table, constraints in quarantines(self._spec.constraints).items():
            marks = [mark for mark, each in self._marks.items() if each in constraints]
            if any(violations[each.name] for each in constraints):
                chosen = marked.where(~_all_of(marks) & _all_of(before))
                found[table] = chosen.withColumn(CONSTRAINTS_COLUMN, names).drop(*self._marks, COMPUTED_MARK)
            before += marks
        return found

    @contextmanager
    def counted(self, rows: DataFrame, where: str) -> Iterator[tuple[DataFrame, Violations]]:
        """Yield rows that replace others by key, computed once, and the numbers of violations among those that are to stay.

        Where a constraint drops rows, `QUALIFIES` is false for these.

        Args:
            rows: rows of the table, perhaps with `QUALIFIES`.
            where: what they are of, for a message.

        Raises:
            ConstraintError: a constraint with FAIL UPDATE is violated.
        """
        stays = F.col(quote(QUALIFIES)) if QUALIFIES in rows.columns else F.lit(True)
        counts = RowCounts(self._marked(rows), {each.name: stays & ~F.col(mark) for mark, each in self._marks.items()})
        with jvm.held(counts.rows) as held:
            violations = counts.values()
            self._refuse(held.where(stays), violations, where)
            yield self.qualified(held), violations

    def qualified(self, rows: DataFrame) -> DataFrame:
        """Return rows with `QUALIFIES` false for those that a constraint drops.

        Args:
            rows: rows of the table, with or without marks.
        """
        marked = rows if set(self._marks) <= {*rows.columns} else self._marked(rows)
        dropping = [mark for mark, each in self._marks.items() if not each.keeps_row]
        if dropping:
            stays = F.col(quote(QUALIFIES)) if QUALIFIES in rows.columns else F.lit(True)
            marked = marked.withColumn(QUALIFIES, stays & _all_of(dropping))
        return marked.drop(*self._marks)


def holds(constraint: Constraint, rows: DataFrame) -> Column:
    """Return the condition that a row holds a constraint; it is false, and not NULL, where the constraint's is NULL.

    Args:
        constraint: the constraint.
        rows: rows of the table, on their way into it or back from quarantine. Those that could not be computed are told by
            `COMPUTED_MARK` and by `INPUT_COLUMN`; where there is neither, all could be.
    """
    if not constraint.is_of_errors:
        return F.coalesce(F.expr(constraint.condition), F.lit(False))
    if COMPUTED_MARK in rows.columns:
        return F.col(COMPUTED_MARK)
    return F.col(INPUT_COLUMN).isNull() if INPUT_COLUMN in rows.columns else F.lit(True)


def total(found: Iterable[Mapping[str, int]]) -> Violations:
    """Return the sums of numbers of violations."""
    sums = Violations()
    for each in found:
        for name, number in each.items():
            sums[name] = sums.get(name, 0) + number
    return sums


def _all_of(marks: Iterable[str]) -> Column:
    condition = F.lit(True)
    for mark in marks:
        condition = condition & F.col(mark)
    return condition
