"""Records as the page shows them: without secrets. What runs is the record itself."""

from __future__ import annotations

from dataclasses import replace

from sqlext.execution.jobs.registry import JobRecord
from sqlext.plan.flow_spec import FlowSpec
from sqlext.redaction import Redaction


def shown_flow(spec: FlowSpec, show: Redaction) -> FlowSpec:
    """A flow's record with its statement, queries and graph as they may be seen."""
    return replace(
        spec,
        text=show.sql(spec.text),
        streams=tuple(replace(each, sql=show.sql(each.sql)) for each in spec.streams),
        above=show.sql(spec.above),
        prerequisites=tuple(replace(each, sql=show.sql(each.sql)) for each in spec.prerequisites),
        operators=tuple(replace(each, detail=show.sql(each.detail)) for each in spec.operators),
    )


def shown_job(record: JobRecord, show: Redaction) -> JobRecord:
    """A job's record with its statement as it may be seen."""
    return replace(record, spec=replace(record.spec, text=show.sql(record.spec.text)))
