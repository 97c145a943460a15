"""Runs as events of OpenLineage, in the classes of its client; what each facet means is in OpenLineage's specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any

import pyspark
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    column_lineage_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    sql_job,
    symlinks_dataset,
)
from openlineage.client.uuid import generate_new_uuid

from sqlext.execution.coordination import runs
from sqlext.execution.coordination.runs import RunKind, Runnable
from sqlext.openlineage.analysis import Dataset, Datasets, Source
from sqlext.openlineage.naming import DatasetName
from sqlext.redaction import Redaction
from sqlext.spark.column_lineage import Use

PRODUCER = f"urn:sqlext:{version('sqlext')}"
_STATES = {
    runs.RunState.BEGUN: RunState.START,
    runs.RunState.FLUSHED: RunState.RUNNING,
    runs.RunState.COMPLETED: RunState.COMPLETE,
    runs.RunState.FAILED: RunState.FAIL,
    runs.RunState.STOPPED: RunState.ABORT,
}
_KINDS = {RunKind.FLOW: "FLOW", RunKind.VIEW: "MATERIALIZED_VIEW", RunKind.JOB: "JOB"}


@dataclass
class OpenRun:
    """A run that has begun and not ended.

    Attributes:
        id: its id in OpenLineage.
        runs: what runs.
        datasets: what it reads and writes.
        rows: the number of rows that it has written; None: not known.
    """

    id: str
    runs: Runnable
    datasets: Datasets
    rows: int | None = None


def new_id(at: datetime) -> str:
    """Return the id of a run that begins at a time."""
    return str(generate_new_uuid(at))


def event_of(run: OpenRun, heard: runs.RunEvent, namespace: str, show: Redaction) -> RunEvent:
    """Return an event of a run.

    Args:
        run: the run, after it.
        heard: the event.
        namespace: of the jobs.
        show: redacts secrets in statements and errors.
    """
    facets: dict[str, Any] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=pyspark.__version__, name="spark", openlineageAdapterVersion=version("sqlext"), producer=PRODUCER
        )
    }
    if heard.state is runs.RunState.FAILED:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=show.message(heard.error), programmingLanguage="PYTHON", producer=PRODUCER
        )
    report = heard.report
    versions = {} if report is None else {name: each.version for name, each in report.sources.items()}
    output = run.datasets.output
    return RunEvent(
        eventTime=heard.at.isoformat(),
        eventType=_STATES[heard.state],
        run=Run(runId=run.id, facets=facets),
        job=_job(run.runs, namespace, show),
        inputs=[_input(each, versions.get(each.key)) for each in run.datasets.inputs],
        outputs=[] if output is None else [_output(output, run, None if report is None else report.version)],
        producer=PRODUCER,
    )


def _job(what: Runnable, namespace: str, show: Redaction) -> Job:
    is_streaming = what.kind is RunKind.FLOW and not getattr(what.session, "runs_once", False)
    return Job(
        namespace=namespace,
        name=".".join(what.name),
        facets={
            "sql": sql_job.SQLJobFacet(query=show.sql(what.text), dialect="spark", producer=PRODUCER),
            "jobType": job_type_job.JobTypeJobFacet(
                processingType="STREAMING" if is_streaming else "BATCH",
                integration="SQLEXT",
                jobType=_KINDS[what.kind],
                producer=PRODUCER,
            ),
        },
    )


def _input(dataset: Dataset, at: int | None) -> InputDataset:
    return InputDataset(namespace=dataset.name.namespace, name=dataset.name.name, facets=_facets(dataset, at))


def _output(dataset: Dataset, run: OpenRun, at: int | None) -> OutputDataset:
    facets = _facets(dataset, at)
    if run.datasets.origins is not None:
        facets["columnLineage"] = _lineage(run.datasets.origins)
    statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    return OutputDataset(
        namespace=dataset.name.namespace,
        name=dataset.name.name,
        facets=facets,
        outputFacets={} if run.rows is None else {"outputStatistics": statistics(rowCount=run.rows, producer=PRODUCER)},
    )


def _facets(dataset: Dataset, at: int | None) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if dataset.columns:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=name, type=kind, ordinal_position=place)
            for place, (name, kind) in enumerate(dataset.columns, 1)
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
    if dataset.table is not None:
        table = symlinks_dataset.Identifier(namespace=dataset.table.namespace, name=dataset.table.name, type="TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet(identifiers=[table], producer=PRODUCER)
    if at is not None and at >= 0:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(at), producer=PRODUCER)
    return facets


def _lineage(origins: Mapping[str, tuple[Source, ...]]) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    fields = {name: column_lineage_dataset.Fields(inputFields=_input_fields(sources)) for name, sources in origins.items()}
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields, dataset=[], producer=PRODUCER)


def _input_fields(sources: tuple[Source, ...]) -> list[column_lineage_dataset.InputField]:
    uses: dict[tuple[DatasetName, str], list[Use]] = {}
    for each in sources:
        uses.setdefault((each.dataset, each.column), []).append(each.use)
    return [
        column_lineage_dataset.InputField(
            namespace=dataset.namespace,
            name=dataset.name,
            field=column,
            transformations=[
                column_lineage_dataset.Transformation(type="DIRECT" if use.is_direct else "INDIRECT", subtype=use.name)
                for use in used
            ],
        )
        for (dataset, column), used in uses.items()
    ]
