"""A streaming table recreated by its own statement: what ALTER has set since is kept, or the refresh is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlext.errors import UnsupportedError
from sqlext.execution.delta import target
from sqlext.execution.delta.column_comments import comments_of
from sqlext.execution.flows.creation import FlowRequest
from sqlext.options import ValueText
from sqlext.plan.constraints import EXPECT_PROPERTY
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.job_graph import FLOW_PROPERTY
from sqlext.quoting import quote_parts, quote_string
from sqlext.sql.constraint_grammar import constraints_of

_CHECK = "delta.constraints."
ONLY_IN_STATEMENTS = ("delta.feature.", "delta.minreaderversion", "delta.minwriterversion")
"""Properties that Delta takes into the table's protocol, and does not list."""
_WRITTEN_BY_DELTA = (
    "delta.columnMapping.maxColumnId",
    "delta.rowTracking.materialized",
    "delta.inCommitTimestampEnablement",
    "delta.requireCheckpointProtectionBeforeVersion",
)
"""What Delta notes down for itself; a new table gets its own."""


def renewed(spec: FlowSpec, request: FlowRequest) -> FlowRequest:
    """Return the request that recreates a flow, under its own name and into its own table, whatever the current schema was.

    Args:
        request: what the flow's statement wants.

    Raises:
        UnsupportedError: the table has what no new table can be given.
    """
    request = replace(
        request,
        name=spec.qualified_name,
        table=spec.target,
        replace=True,
        refresh=False,
        if_not_exists=False,
    )
    definition, session = request.definition, request.session
    if definition is None:
        raise AssertionError("a streaming table was made by its statement")
    if not target.is_made_by(session, spec.target, FLOW_PROPERTY, spec.id, spec.target_id):
        # the statement and the record are all that is known; a table of somebody else's is refused later
        stated = {key: value for key, value in request.properties.items() if not key.startswith(EXPECT_PROPERTY)}
        now = {f"{EXPECT_PROPERTY}{each.name}": each.written for each in spec.constraints}
        return replace(request, properties=stated | now, constraints=spec.constraints)
    there = target.describe(session, spec.target).properties
    refuse_checks(spec.target, there)
    name = quote_parts(spec.target)
    detail = session.sql(f"DESCRIBE DETAIL {name}").collect()[0]
    kept = properties_of(request.properties, there)
    constraints = constraints_of({key: ValueText(value) for key, value in kept.items()})
    clauses = _clauses(definition.clauses, detail.description, detail.clusteringColumns)
    comments = comments_of(session.table(name).schema)
    return replace(
        request, properties=kept, constraints=constraints, definition=replace(definition, clauses=clauses, comments=comments)
    )


def properties_of(stated: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table that is made anew: what the statement needs, and what the table has now."""
    kept = {key: value for key, value in stated.items() if key.lower().startswith(ONLY_IN_STATEMENTS)}
    return kept | {k: v for k, v in there.items() if k != FLOW_PROPERTY and not k.startswith(_WRITTEN_BY_DELTA)}


def refuse_checks(table: tuple[str, ...], properties: Mapping[str, str]) -> None:
    """Raise UnsupportedError if a table that is to be made anew has constraints that no new one can be given."""
    found = sorted(key.removeprefix(_CHECK) for key in properties if key.startswith(_CHECK))
    if found:
        text = ".".join(table)
        raise UnsupportedError(
            f"{text} is made anew, and no new table can be given its constraint `{found[0]}`. ALTER TABLE {text} DROP "
            f"CONSTRAINT {found[0]} first, and add it again afterwards."
        )


def _clauses(written: Sequence[str], comment: str | None, clustering: Sequence[str]) -> tuple[str, ...]:
    """Return a statement's clauses, with the table's current comment and clustering."""
    kept = [clause for clause in written if not clause.upper().startswith(("COMMENT", "CLUSTER"))]
    if comment is not None:
        kept.append(f"COMMENT {quote_string(comment)}")
    if clustering:
        names = (name if "`" in name else quote_parts(name.split(".")) for name in clustering)
        kept.append(f"CLUSTER BY ({', '.join(names)})")
    else:  # ALTER .. CLUSTER BY NONE takes columns away
        kept += [clause for clause in written if clause.upper().startswith("CLUSTER") and "(" not in clause]
    return tuple(kept)
