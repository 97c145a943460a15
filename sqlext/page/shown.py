"""Records as the page shows them, without secrets. Flows, views and jobs run from the records themselves."""

from __future__ import annotations

from dataclasses import replace

from sqlext.execution.jobs.registry import JobRecord
from sqlext.plan.flow_spec import FlowSpec
from sqlext.plan.view_spec import ViewSpec
from sqlext.redaction import Redaction


def shown_flow(spec: FlowSpec, show: Redaction) -> FlowSpec:
    """Redact a flow's record: its statement, queries and graph."""
    return replace(
        spec,
        text=show.sql(spec.text),
        streams=tuple(replace(each, sql=show.sql(each.sql)) for each in spec.streams),
        above=show.sql(spec.above),
        prerequisites=tuple(replace(each, sql=show.sql(each.sql)) for each in spec.prerequisites),
        operators=tuple(replace(each, detail=show.sql(each.detail)) for each in spec.operators),
    )


def shown_view(spec: ViewSpec, show: Redaction) -> ViewSpec:
    """Redact a materialized view's record: its statement and query."""
    return replace(spec, text=show.sql(spec.text), query=show.sql(spec.query))


def shown_job(record: JobRecord, show: Redaction) -> JobRecord:
    """Redact a job's record: its statement."""
    return replace(record, spec=replace(record.spec, text=show.sql(record.spec.text)))
