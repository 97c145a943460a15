"""A streaming table's statement, against what its flow was made from: the same, other options, or another definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from sqlext.errors import NameTakenError
from sqlext.execution.flows.constraint_checks import recorded
from sqlext.execution.flows.creation import FlowRequest, same_name, sources_of
from sqlext.options import Level, is_option_key, option
from sqlext.plan.constraints import EXPECT_PROPERTY
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import ColumnDefinition, FlowPlan
from sqlext.quoting import quote, quote_string
from sqlext.sql.tokens import normal_text

QUERY = "the query"
"""How `differences` calls a query that is another one."""
_FIXED = ("PARTITIONED", "CLUSTER", "LOCATION")
"""How the clauses begin that decide how a table is stored."""


@dataclass(frozen=True)
class Update:
    """What a statement changes of a flow that is there.

    Attributes:
        spec: with the statement's options.
        set: table properties with new values.
        unset: options and constraints among the table's properties that the statement no longer has.
        comment: the table's, as a literal or NULL; None: it stays.
    """

    spec: FlowSpec
    set: Mapping[str, str]
    unset: tuple[str, ...]
    comment: str | None

    def names(self) -> list[str]:
        """Return the names of what is changed."""
        return [*sorted([*self.set, *self.unset]), *(["comment"] if self.comment is not None else [])]


def update(spec: FlowSpec, request: FlowRequest, there: Mapping[str, str]) -> Update:
    """Return what a statement with the same definition changes.

    Options and properties of the statement win over those in force; an option that the statement before had and this one has not
    goes back to its default; what only ALTER FLOW has set stays.

    Args:
        there: the table's properties.
    """
    level = Level.PROPERTY.name
    now, before = request.given.get(level, {}), {option(key).key for key in there if is_option_key(key)}
    kept = {key: value for key, value in spec.given.get(level, {}).items() if key in now or key not in before}
    given = {**spec.given, level: {**kept, **now}}
    sources = spec.sources
    if spec.query != request.query:  # its hints and WITH clauses may be others
        given |= {each.name: request.given.get(each.name, {}) for each in (Level.HINT, Level.WITH)}
        sources = sources_of(request)
    given = {each: values for each, values in given.items() if values}
    comments = [next((c for c in clauses if c[:7].upper() == "COMMENT"), "") for clauses in (spec.clauses, request.clauses)]
    return Update(
        replace(
            spec.with_constraints(recorded(request)),
            given=given,
            sources=sources,
            text=request.text,
            query=request.query,
            clauses=request.clauses,
            listed=request.listed,
        ),
        {key: value for key, value in request.properties.items() if there.get(key) != value},
        tuple(key for key in there if _is_of_statement(key) and key not in request.properties),
        None if comments[0] == comments[1] else comments[1][7:].strip() or "NULL",
    )


def differences(session: SparkSession, spec: FlowSpec, request: FlowRequest, of_state: Sequence[str]) -> list[str]:
    """Return the parts of a statement's definition that are others than those that the flow was made from, as phrases.

    Args:
        session: of the statement.
        of_state: the keys of options that decide about the flow's state and that the statement gives otherwise.
    """
    return [*_changes(session, spec, request), *(f"`{key}`" for key in of_state)]


def check_same(spec: FlowSpec, request: FlowRequest, changed: Sequence[str], because: str = "") -> None:
    """Raise NameTakenError if a statement's definition is another one than the flow was made from.

    Args:
        changed: the differences.
        because: why a difference cannot be made up for in place, as a sentence.
    """
    if changed:
        table, why = ".".join(request.table), f" It cannot be changed in place: {because}" if because else ""
        raise NameTakenError(
            f"The streaming table {'.'.join(spec.target)} is there, and was made from another definition: {', '.join(changed)} "
            f"differs.{why} CREATE OR REPLACE STREAMING TABLE {table} takes the new definition and recomputes the table from "
            f"all that its streams still hold; REFRESH STREAMING TABLE {table} FULL recomputes it by its present definition."
        )


def _changes(session: SparkSession, spec: FlowSpec, request: FlowRequest) -> list[str]:
    """Return the differing parts of a definition, as phrases."""
    changed = []
    if spec.query != request.query and _planned(spec) != _planned_by(request.plan):
        changed.append(QUERY)
    if not _is_list_same(spec, request):
        changed.append("the column list")
    if not spec.appends and {*spec.constraints} != {*recorded(request)}:
        changed.append("a constraint")
    here = (session.catalog.currentCatalog(), session.catalog.currentDatabase())
    there = (spec.catalog, spec.database)
    if not same_name(here, there) and (request.plan.references.relations or not same_name(here[:1], there[:1])):
        changed.append(f"the schema in which its query finds tables (it was {'.'.join(there)}, here it is {'.'.join(here)})")
    if spec.query:  # records of earlier versions know no clauses
        before, now = _fixed(spec.clauses), _fixed(request.clauses)
        changed += [f"{kind}{' BY' if kind != 'LOCATION' else ''}" for kind in _FIXED if before.get(kind) != now.get(kind)]
    return changed


def _is_of_statement(key: str) -> bool:
    """Return whether a table property is there only if the statement has it: an option, or a constraint on rows."""
    return is_option_key(key) or key.startswith(EXPECT_PROPERTY)


def listed(columns: Sequence[ColumnDefinition], folds_case: bool) -> tuple[str, ...]:
    """Return a column list as texts to compare: comments, white space and, unless it matters, case are normalised.

    Args:
        folds_case: whether names that differ in case are one.
    """
    return tuple(
        " ".join(
            [
                quote(column.name.lower() if folds_case else column.name),
                normal_text(column.type, folds_case),
                "NOT NULL" if column.is_required else "",
                "" if column.comment is None else f"COMMENT {quote_string(column.comment)}",
            ]
        )
        for column in columns
    )


def _is_list_same(spec: FlowSpec, request: FlowRequest) -> bool:
    if spec.listed is not None:
        return spec.listed == request.listed
    columns = () if request.definition is None else request.definition.columns
    # all that earlier versions have recorded
    known = [(column.target.lower(), column.type.lower().replace("timestamp_ltz", "timestamp")) for column in spec.columns]
    pairs = zip(columns, known, strict=False)
    return not columns or (
        [column.name.lower() for column in columns] == [name for name, _ in known]
        and all(column.type.lower() in ("", kind) for column, (_, kind) in pairs)
    )


def _fixed(clauses: tuple[str, ...]) -> dict[str, str]:
    return {clause.split(" ", 1)[0].upper(): clause for clause in clauses if clause}


def _planned(spec: FlowSpec) -> object:
    """Return what Spark runs for a flow."""
    prerequisites = [(each.name, _normal(each.sql)) for each in spec.prerequisites]
    return [(each.relation, _normal(each.sql)) for each in spec.streams], _normal(spec.above), prerequisites, spec.hybrids


def _planned_by(plan: FlowPlan) -> object:
    """Return what Spark would run for a plan."""
    prerequisites = [(each.name, _normal(each.sql)) for each in plan.prerequisites]
    return [(each.name, _normal(each.sql)) for each in plan.queries], _normal(plan.above), prerequisites, plan.hybrids


def _normal(text: str) -> str:
    return normal_text(text, folds_case=False)
