"""The constraints of a flow's statement, checked before anything is made: their conditions, and where rows are quarantined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sqlext.errors import NameTakenError, SchemaError, UnsupportedError
from sqlext.execution.delta import quarantine, target
from sqlext.execution.flows.creation import FlowRequest, same_name
from sqlext.execution.flows.registry import Records
from sqlext.plan.constraints import Constraint, Violation
from sqlext.plan.flow_spec import Column, FlowSpec
from sqlext.plan.job_graph import QUALIFIES
from sqlext.plan.lineage import Input
from sqlext.quoting import fold, quote_parts
from sqlext.spark import conditions, failures


def qualified(
    session: SparkSession, constraints: Iterable[Constraint], there: Iterable[Constraint] = ()
) -> tuple[Constraint, ...]:
    """Return constraints with the qualified names of quarantine tables, each table's in one spelling.

    Args:
        there: other constraints of the table, whose spelling is taken.
    """
    known = [each.quarantine for each in there if each.quarantine]
    found = []
    for each in constraints:
        if each.quarantine:
            name = target.qualified(session, each.quarantine)
            name = next((other for other in known if same_name(other, name)), name)
            known.append(name)
            each = replace(each, quarantine=name)
        found.append(each)
    return tuple(found)


def recorded(request: FlowRequest) -> tuple[Constraint, ...]:
    """Return a statement's constraints as its flow's record has them."""
    return tuple(replace(each, position=None) for each in qualified(request.session, request.constraints))


def check(request: FlowRequest, name: tuple[str, ...], columns: Sequence[Column] | None, records: Records) -> None:
    """See that Spark can check the constraints of a statement, and that rows can be quarantined.

    Args:
        name: the flow's table, qualified.
        columns: where the query's columns go; None: the table is made of them.
        records: of all flows.

    Raises:
        SchemaError: Spark refuses a condition.
        UnsupportedError: a condition is not about one row, or the rows of this query cannot be quarantined.
        NameTakenError: a quarantine table is one that is kept up to date, or read, or has other columns.
    """
    if not request.constraints:
        return
    output = request.flow.output.drop(QUALIFIES)
    columns = columns_of(request, output) if columns is None else columns
    rows = target.in_target_columns(output, columns)
    for each in qualified(request.session, request.constraints):
        check_condition(request.session, rows.schema, each)
        refuse_errors(each, request.plan.appends)
        if each.violation is Violation.QUARANTINE:
            refuse_changing_rows(each, request.plan.appends)
            check_quarantine(request.session, name, columns, each, records, request.flow.inputs)


def check_of_flow(session: SparkSession, spec: FlowSpec, constraint: Constraint, records: Records) -> None:
    """See that the rows of a flow can be checked: those of its own columns; see `check`.

    Args:
        session: like the flow's own.
    """
    columns = spec.columns or spec.streams[0].columns
    written = {fold(each.target) for each in columns}
    schema = session.table(quote_parts(spec.target)).schema
    its = StructType([each for each in schema if fold(each.name) in written])
    check_condition(session, its, constraint)
    refuse_errors(constraint, spec.appends)
    if constraint.violation is Violation.QUARANTINE:
        refuse_changing_rows(constraint, spec.appends)
        check_quarantine(session, spec.target, columns, constraint, records, spec.reads)


def check_condition(session: SparkSession, columns: StructType, constraint: Constraint) -> None:
    """See that Spark can evaluate a constraint's condition for rows of a table with some columns; see `check`."""
    if constraint.is_of_errors:
        return
    try:
        found = conditions.analyse(session, columns, constraint.condition)
    except PySparkException as error:
        raise SchemaError(
            f"The constraint `{constraint.name}` cannot be checked: {failures.reason_of(error)}", constraint.position
        ) from None
    if not found.is_deterministic or found.has_subquery:
        because = "reads other rows, in a subquery" if found.has_subquery else "gives a row different results"
        raise UnsupportedError(
            f"The constraint `{constraint.name}`, EXPECT ({constraint.condition}), {because}. A constraint is a condition on one "
            "row; compute what it needs in the query.",
            constraint.position,
        )


def refuse_errors(constraint: Constraint, appends: bool) -> None:
    """Raise UnsupportedError if a constraint is about rows that cannot be computed, and the flow cannot go on with these.

    Args:
        constraint: the constraint.
        appends: whether the flow only appends rows.
    """
    if not constraint.is_of_errors:
        return
    if not appends:
        raise UnsupportedError(
            f"The constraint `{constraint.name}`, EXPECT (NO ERROR), is about single rows of a stream, and those of this query "
            "are made of several. Compute what can fail in a streaming table below, with the constraint on that one.",
            constraint.position,
        )
    if constraint.violation is Violation.FAIL:
        raise UnsupportedError(
            f"The constraint `{constraint.name}`, EXPECT (NO ERROR) ON VIOLATION FAIL UPDATE, is what a flow does without it. "
            "Leave it out.",
            constraint.position,
        )


def columns_of(request: FlowRequest, output: DataFrame) -> tuple[Column, ...]:
    """Return the columns of the table that a statement makes."""
    listed = () if request.definition is None else request.definition.columns
    names = [each.name for each in listed] or output.columns
    kinds = [each.type for each in listed] or [""] * len(names)
    each = zip(output.schema, names, kinds, strict=True)
    return tuple(Column(field.name, name, kind or target.ddl_of(field.dataType)) for field, name, kind in each)


def refuse_changing_rows(constraint: Constraint, appends: bool) -> None:
    """Raise UnsupportedError if a constraint quarantines rows that change.

    Args:
        constraint: the constraint.
        appends: whether the flow only appends rows.
    """
    if not appends:
        raise UnsupportedError(
            f"The constraint `{constraint.name}` quarantines rows, and those of this query change: a row of an aggregate that "
            "violates it now may hold it later. Use ON VIOLATION DROP ROW, which takes such a row out of the table as long as it "
            "violates the constraint, or quarantine the rows below the aggregate, in a streaming table of their own.",
            constraint.position,
        )


def check_quarantine(
    session: SparkSession,
    name: tuple[str, ...],
    columns: Sequence[Column],
    constraint: Constraint,
    records: Records,
    reads: Iterable[Input],
) -> None:
    """See that rows of a table can be quarantined as a constraint says; see `check`.

    Args:
        reads: what the query reads.
    """
    table = ".".join(constraint.quarantine)
    if any(same_name(read.name, constraint.quarantine) for read in reads):
        raise NameTakenError(
            f"Rows cannot be quarantined in {table}, which the query reads. Name another table.", constraint.position
        )
    keeper = next((r.spec.name for r in records.values() if same_name(r.spec.target, constraint.quarantine)), None)
    if same_name(constraint.quarantine, name) or keeper is not None:
        kept = f"flow `{keeper}` keeps it up to date" if keeper else "it is the table whose rows are checked"
        raise NameTakenError(f"Rows cannot be quarantined in {table}: {kept}. Name another table.", constraint.position)
    kinds = {column.target: column.type for column in columns}
    quarantine.check(session, constraint.quarantine, kinds, constraint.position)
