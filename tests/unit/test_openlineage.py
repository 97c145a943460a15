"""The events of OpenLineage that runs become, and their way to a collector."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.serde import Serde
from openlineage.client.transport import Config, Transport
from pyspark.sql import SparkSession

from sqlext.clock import Clock
from sqlext.execution.coordination.runs import RunEvent, RunKind, Runnable, RunState, listen, listened, tell, unlisten
from sqlext.execution.flows.registry import EventKind, FlowEvent, FlowRecord, FlowState
from sqlext.execution.flows.runs import written
from sqlext.openlineage import naming
from sqlext.openlineage.analysis import Analysis, Dataset, Datasets, Source
from sqlext.openlineage.events import PRODUCER, OpenRun, event_of, new_id
from sqlext.openlineage.naming import DatasetName
from sqlext.openlineage.sending import Sender, sender_of
from sqlext.plan.flow_spec import Column, FlowSpec, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.plan.lineage import Input
from sqlext.plan.view_spec import RefreshReport, SourceVersion
from sqlext.redaction import REDACTED, Redaction
from sqlext.spark.column_lineage import Use
from tests.support import eventually

DEADLINE = 60.0
NINE = datetime(2026, 3, 1, 9, tzinfo=UTC)
RECORD = SimpleNamespace(catalog="spark_catalog", database="shop", settings={}, variables={})
FLOW = Runnable(
    "f1",
    RunKind.FLOW,
    ("spark_catalog", "shop", "sales"),
    "CREATE STREAMING TABLE sales AS SELECT k, sum(v) AS total FROM STREAM read_kafka(`kafka.ssl.key.password` => 'p4ss')",
    Input(("spark_catalog", "shop", "sales"), "file:/w/shop.db/sales"),
    (("k", "STRING"), ("total", "BIGINT")),
    (),
    None,
    RECORD,
)
EVENTS = DatasetName("kafka://broker:9092", "events")
SALES = DatasetName("file", "/w/shop.db/sales")
DATASETS = Datasets(
    (Dataset(EVENTS, columns=(("k", "STRING"), ("v", "INT")), key="spark_catalog.shop.events"),),
    Dataset(SALES, DatasetName("file:/w", "shop.sales"), FLOW.columns),
    {"k": (Source(EVENTS, "k", Use.IDENTITY),), "total": (Source(EVENTS, "v", Use.AGGREGATION), Source(EVENTS, "v", Use.WINDOW))},
)


def event(heard: RunEvent, run: OpenRun | None = None) -> dict[str, Any]:
    made = event_of(run or OpenRun(new_id(NINE), FLOW, DATASETS), heard, "shop", Redaction())
    found: dict[str, Any] = json.loads(Serde.to_json(made))
    return found


# Names


@pytest.mark.parametrize(
    ("location", "namespace", "name"),
    [
        ("file:/tmp/sales", "file", "/tmp/sales"),
        ("file:///tmp/sales/", "file", "/tmp/sales"),
        ("/tmp/sales", "file", "/tmp/sales"),
        ("file://host/tmp/sales", "file://host", "/tmp/sales"),
        ("s3a://shop/w/sales", "s3://shop", "w/sales"),
        ("gs://shop/w/sales", "gs://shop", "w/sales"),
        ("abfss://data@acc.dfs.core.windows.net/w/sales", "abfss://data@acc.dfs.core.windows.net", "w/sales"),
        ("hdfs://nodes:8020/w/sales", "hdfs://nodes:8020", "/w/sales"),
        ("file:/tmp/sales #1?v=2%20", "file", "/tmp/sales #1?v=2%20"),
        ("s3a://shop/w/sales#1?", "s3://shop", "w/sales#1?"),
        ("/tmp/a:/b", "file", "/tmp/a:/b"),
        ("s3a://shop", "s3://shop", "/"),
    ],
)
def test_the_name_of_files(location: str, namespace: str, name: str) -> None:
    assert naming.of_location(location) == DatasetName(namespace, name)


def test_the_names_of_topics() -> None:
    assert naming.of_topics("one:9093,two:9093", "a, b") == (
        DatasetName("kafka://one:9093", "a"),
        DatasetName("kafka://one:9093", "b"),
    )
    assert naming.of_topics("one", '{"a": [0, 1]}') == (DatasetName("kafka://one:9092", "a"),)


def test_the_name_in_the_catalog() -> None:
    assert naming.of_table("file:/w", ("spark_catalog", "shop", "sales")) == DatasetName("file:/w", "shop.sales")
    assert naming.of_table("file:/w", ("other", "shop", "sales")) == DatasetName("file:/w", "other.shop.sales")
    assert naming.of_catalog("file:/w/", "") == "file:/w"
    assert naming.of_catalog("file:/w", "thrift://one:9083,thrift://two:9083") == "hive://one:9083"


# Events


def test_a_start_names_job_run_inputs_outputs_and_columns() -> None:
    found = event(RunEvent("f1", RunState.BEGUN, FLOW, at=NINE))
    assert (found["eventType"], found["eventTime"], found["producer"]) == ("START", "2026-03-01T09:00:00+00:00", PRODUCER)
    assert UUID(found["run"]["runId"]).version == 7
    assert (found["job"]["namespace"], found["job"]["name"]) == ("shop", "spark_catalog.shop.sales")
    facets = found["job"]["facets"]
    assert (facets["jobType"]["processingType"], facets["jobType"]["integration"]) == ("STREAMING", "SQLEXT")
    assert facets["jobType"]["jobType"] == "FLOW"
    assert REDACTED in facets["sql"]["query"]
    assert "p4ss" not in json.dumps(found)
    [read] = found["inputs"]
    assert (read["namespace"], read["name"]) == ("kafka://broker:9092", "events")
    assert [(each["name"], each["type"]) for each in read["facets"]["schema"]["fields"]] == [("k", "STRING"), ("v", "INT")]
    [written] = found["outputs"]
    assert (written["namespace"], written["name"]) == ("file", "/w/shop.db/sales")
    [symlink] = written["facets"]["symlinks"]["identifiers"]
    assert symlink == {"namespace": "file:/w", "name": "shop.sales", "type": "TABLE"}
    lineage = written["facets"]["columnLineage"]["fields"]
    assert lineage["k"]["inputFields"] == [
        {
            "namespace": "kafka://broker:9092",
            "name": "events",
            "field": "k",
            "transformations": [{"type": "DIRECT", "subtype": "IDENTITY"}],
        }
    ]
    assert lineage["total"]["inputFields"][0]["transformations"] == [
        {"type": "DIRECT", "subtype": "AGGREGATION"},
        {"type": "INDIRECT", "subtype": "WINDOW"},
    ]
    assert "outputStatistics" not in written.get("outputFacets", {})


def test_what_is_not_known_is_left_out() -> None:
    run = OpenRun(new_id(NINE), FLOW, replace(DATASETS, origins=None, output=Dataset(SALES)))
    [written] = event(RunEvent("f1", RunState.BEGUN, FLOW), run)["outputs"]
    assert "columnLineage" not in written["facets"]
    assert "schema" not in written["facets"]
    assert event(RunEvent("f1", RunState.BEGUN, FLOW), replace(run, datasets=Datasets()))["outputs"] == []


def test_a_failure_has_its_message_without_secrets() -> None:
    found = event(RunEvent("f1", RunState.FAILED, error="jdbc:postgresql://ann:p4ss@db/shop does not answer"))
    assert found["eventType"] == "FAIL"
    assert found["run"]["facets"]["errorMessage"]["message"] == f"jdbc:postgresql://ann:{REDACTED}@db/shop does not answer"


def test_a_refresh_says_which_versions_it_is_made_of_and_how_many_rows_it_wrote() -> None:
    report = RefreshReport(7, 3, "append", "", {"spark_catalog.shop.events": SourceVersion("t1", 41)})
    run = OpenRun(new_id(NINE), replace(FLOW, kind=RunKind.VIEW), DATASETS, rows=12)
    found = event(RunEvent("f1", RunState.COMPLETED, report=report), run)
    assert found["eventType"] == "COMPLETE"
    assert found["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert found["inputs"][0]["facets"]["version"]["datasetVersion"] == "41"
    assert found["outputs"][0]["facets"]["version"]["datasetVersion"] == "7"
    assert found["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 12


# Sending


class Collector(Transport):
    """A transport that keeps what it gets, after waiting until it may."""

    kind = "collector"
    config_class = Config

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self.wait = wait
        self.events: list[dict[str, Any]] = []

    def emit(self, event: Any) -> None:
        self.wait()
        self.events.append(json.loads(Serde.to_json(event)))

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(each["eventType"], each["run"]["runId"]) for each in self.events]


class HandClock(Clock):
    """A clock that the test advances."""

    now_seconds = 0.0

    def monotonic(self) -> float:
        return self.now_seconds

    def now(self) -> datetime:
        return NINE


def sender(collector: Collector, clock: Clock | None = None) -> Sender:
    analysis = cast(Analysis, SimpleNamespace(datasets=lambda runs: DATASETS))
    return Sender(analysis, OpenLineageClient(transport=collector), Redaction(), clock)


def rows_of(found: dict[str, Any]) -> int | None:
    statistics = found["outputs"][0].get("outputFacets", {}).get("outputStatistics")
    return None if statistics is None else statistics["rowCount"]


@pytest.mark.parametrize(
    ("variables", "logged"),
    [
        ({}, ""),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:1", "OPENLINEAGE_DISABLED": "true"}, ""),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "pigeon"}, "its client cannot be configured"),
    ],
)
def test_a_client_that_is_not_configured_sends_nothing(
    variables: dict[str, str], logged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [each for each in os.environ if each.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert sender_of(cast(SparkSession, None)) is None  # which is not needed
    assert logged in caplog.text
    assert bool(logged) == bool([each for each in caplog.records if each.name.startswith("sqlext")])


def test_flushes_are_told_once_a_minute_and_their_rows_add_up() -> None:
    collector, clock = Collector(), HandClock()
    to = sender(collector, clock)
    to.hear(RunEvent("f1", RunState.BEGUN, FLOW))
    for seconds, rows in ((10, 1), (59, 2), (61, 4), (90, 8), (121, 16)):
        clock.now_seconds = seconds
        to.hear(RunEvent("f1", RunState.FLUSHED, rows=rows))
    to.hear(RunEvent("f1", RunState.FLUSHED, rows=32))
    to.hear(RunEvent("f1", RunState.COMPLETED))
    to.close(DEADLINE)
    assert [(each["eventType"], rows_of(each)) for each in collector.events] == [
        ("START", None),
        ("RUNNING", 7),
        ("RUNNING", 31),
        ("COMPLETE", 63),
    ]
    assert len({run for _, run in collector.said}) == 1


def test_each_start_is_a_run_of_its_own_and_none_stays_open() -> None:
    collector = Collector()
    to = sender(collector)
    for state, runs in ((RunState.BEGUN, FLOW), (RunState.BEGUN, FLOW), (RunState.FAILED, None), (RunState.BEGUN, FLOW)):
        to.hear(RunEvent("f1", state, runs))
    to.hear(RunEvent("f2", RunState.COMPLETED))  # of a run that nobody has begun
    to.close(DEADLINE)
    assert [state for state, _ in collector.said] == ["START", "ABORT", "START", "FAIL", "START", "ABORT"]
    first, second, third = ([run for _, run in collector.said][at : at + 2] for at in (0, 2, 4))
    assert first[0] == first[1] != second[0] == second[1] != third[0] == third[1]


def test_a_collector_that_hangs_delays_nobody_and_what_waits_too_long_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    may_go_on = threading.Event()
    collector = Collector(may_go_on.wait)
    to = sender(collector)
    for number in range(1_500):
        to.hear(RunEvent(f"f{number}", RunState.BEGUN, FLOW))  # on this thread, which goes on
    assert collector.events == []
    assert 1_500 - 1_001 <= to.dropped <= 500
    to.close(0.1)
    assert "the collector does not answer" in caplog.text
    may_go_on.set()
    to._thread.join(DEADLINE)
    assert not to._thread.is_alive()


def test_what_a_transport_refuses_is_counted_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> None:
        raise ConnectionError("http://ann:p4ss@collector refused")

    to = sender(Collector(refuse), HandClock())
    to.hear(RunEvent("f1", RunState.BEGUN, FLOW))
    eventually(lambda: "1 events were not sent: ConnectionError" in caplog.text, DEADLINE)
    to.hear(RunEvent("f1", RunState.FAILED))
    to.close(DEADLINE)
    assert to.dropped == 1
    assert "p4ss" not in caplog.text


# Runs, by the events of the registry


def heard(*events: FlowEvent, epoch: int = 2) -> list[RunEvent]:
    columns = (Column("k", "k", "STRING"), Column("sum(v)", "total", "BIGINT"))
    stream = StreamSpec("", "SELECT k, sum(v) FROM STREAM ev GROUP BY k", OutputMode.UPDATE, ("k",), columns)
    spec = FlowSpec("f1", "sales", ("spark_catalog", "shop", "sales"), "file:/w/sales", "t1", "CREATE ..", (stream,))
    found: list[RunEvent] = []
    with listened(found.append):
        for each in events:
            written(each, {"f1": FlowRecord(spec, FlowState.RUNNING, epoch, "h", "", "")})
    return found


def test_a_flow_runs_from_its_start_to_what_ends_it() -> None:
    kinds = (EventKind.STARTED, EventKind.PHASE, EventKind.ALTERED, EventKind.RETRYING, EventKind.STARTED, EventKind.STOPPED)
    found = heard(*(FlowEvent("f1", kind, 2, detail="no broker") for kind in kinds))
    assert [each.state for each in found] == [RunState.BEGUN, RunState.FAILED, RunState.BEGUN, RunState.COMPLETED]
    assert found[1].error == "no broker"
    runs = found[0].runs
    assert runs is not None
    assert (runs.name, runs.target.location) == (("spark_catalog", "shop", "sales"), "file:/w/sales")
    assert runs.columns == (("k", "STRING"), ("total", "BIGINT"))
    assert runs.query is not None
    assert runs.query.columns == (("k", "k"), ("sum(v)", "total"))


def test_what_a_replaced_driver_writes_ends_no_run() -> None:
    assert heard(FlowEvent("f1", EventKind.FAILED, 1, detail="fenced"), epoch=2) == []


def test_a_method_that_listens_hears_no_more_when_it_is_told_to() -> None:
    found: list[RunEvent] = []
    listen(found.append)
    tell(RunEvent("f1", RunState.BEGUN))
    unlisten(found.append)  # another object, though the same method
    tell(RunEvent("f1", RunState.COMPLETED))
    assert [each.state for each in found] == [RunState.BEGUN]


def test_a_listener_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: RunEvent) -> None:
        raise ValueError("no")

    with listened(fail):
        assert len(heard(FlowEvent("f1", EventKind.STARTED, 2))) == 1
    assert "begun of f1 could not be told" in caplog.text
