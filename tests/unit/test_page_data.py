"""What the page reads: Delta's commits, job events, a warehouse at rest, an address."""

from __future__ import annotations

import importlib
import json
import re
import socket
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sqlext import docs
from sqlext.cli import cli
from sqlext.errors import SetupError
from sqlext.execution.delta.commit import CommitInfo
from sqlext.execution.flows.registry import EventKind, FlowEvent
from sqlext.execution.jobs.events import ExecutionJobVertexInitialized, ExecutionVertexFinished, to_json
from sqlext.execution.jobs.registry import JobEventKind, JobSpec, RegisteredEvent
from sqlext.execution.views.history import metadata_of
from sqlext.execution.views.registry import ViewEvent, ViewEventKind, ViewRecord
from sqlext.execution.views.rows import ViewRow
from sqlext.execution.views.status import ViewStatus
from sqlext.options import OPTIONS, is_option_key
from sqlext.page import address, commits
from sqlext.page.files import LocalFolder
from sqlext.page.flushes import FlushLog
from sqlext.page.joblog import FinishedPart, JobLog, spans_of
from sqlext.page.painter import Painter, flushes_chart, refreshes_chart, timeline_chart
from sqlext.page.snapshot import FlowDetail, JobDetail, RefreshView, Span, ViewDetail, ViewSummary
from sqlext.page.stored import StoredHome
from sqlext.page.trace import trace
from sqlext.page.viewlog import ViewLog, view_detail
from sqlext.plan.flow_spec import FlowSpec, StreamSpec
from sqlext.plan.job_graph import OutputMode
from sqlext.plan.view_spec import RefreshReport, Schedule, SourceVersion, ViewSpec
from sqlext.redaction import Redaction
from tests.pages import FLUSHES, HOSTILE, NINE, REFRESHES, hostile_job

MERGED = {"numTargetRowsInserted": "3", "numTargetRowsUpdated": "4", "numTargetRowsDeleted": "1", "executionTimeMs": "1250"}


def write(folder: Path, number: int, *lines: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number:020d}.json").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def commit(table: Path, version: int, info: CommitInfo | None, metrics: dict[str, str] = MERGED) -> None:
    at = NINE + timedelta(minutes=version)
    said: dict[str, Any] = {"timestamp": int(at.timestamp() * 1000), "operation": "MERGE", "operationMetrics": metrics}
    said |= {"userMetadata": info.to_json()} if info is not None else {}
    log = table / "_delta_log"
    write(log, version, json.dumps({"commitInfo": said}, separators=(",", ":")), {"add": {"path": "x"}})


def flush(version: int, flow_id: str = "f1") -> CommitInfo:
    arrival = NINE + timedelta(minutes=version, seconds=-90)
    return CommitInfo("views", flow_id, 2, version * 5, version * 5 + 4, 40, "interval", None, arrival)


# Flushes.


def test_flushes_are_the_flows_own_commits(tmp_path: Path) -> None:
    commit(tmp_path, 0, None)
    commit(tmp_path, 1, flush(1))
    commit(tmp_path, 2, flush(2, "another flow"))
    commit(tmp_path, 3, replace(flush(3), rows=-1, violations={"positive": 3, "known": 0}), {})
    log = FlushLog(LocalFolder(tmp_path.as_uri().replace("file://", "file:")), "f1")
    first, last = log.read()
    assert (first.version, first.reason, first.first_batch, first.last_batch, first.micro_batches) == (1, "interval", 5, 9, 5)
    assert (first.buffered, first.changed, first.seconds) == (40, 8, 1.25)
    assert first.waited == timedelta(seconds=90)
    assert first.at == NINE + timedelta(minutes=1)
    assert (last.version, last.buffered, last.changed, last.seconds) == (3, None, None, None)
    assert (first.violations, first.all_violations) == (None, None)
    assert (last.violations, last.all_violations) == ({"positive": 3, "known": 0}, 3)


def test_later_flushes_are_read_as_they_come_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    for version in range(200, 290):  # those before were cleaned up
        commit(tmp_path, version, flush(version))
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text('{"version": 280, "size": 3}')
    log = FlushLog(LocalFolder(str(tmp_path)), "f1")
    assert [each.version for each in log.read()] == list(range(290 - commits.SHOWN, 290))
    commit(tmp_path, 290, flush(290))
    commit(tmp_path, 291, None)
    assert [each.version for each in log.read()] == list(range(291 - commits.SHOWN, 291))


def test_a_table_that_is_gone_or_torn_has_no_flushes(tmp_path: Path) -> None:
    assert FlushLog(LocalFolder(str(tmp_path / "gone")), "f1").read() == ()
    write(tmp_path / "_delta_log", 0, '{"commitInfo":{"timestamp":1,"userMetadata":"{\\"sqlext\\": 7}"}}')
    assert FlushLog(LocalFolder(str(tmp_path)), "f1").read() == ()


# Materialized views.


def view_spec(warehouse: Path) -> ViewSpec:
    return ViewSpec(
        id="v1",
        name=("spark_catalog", "default", "totals"),
        location=f"file:{warehouse / 'totals'}",
        table_id="totals-1",
        text="CREATE MATERIALIZED VIEW totals AS ..",
        query="SELECT k, count(*) AS n FROM ev WHERE url = 'x://ann:p4ss@h' GROUP BY k",
        columns=("k", "n"),
        schedule=Schedule(on_update=True),
    )


def source_commit(table: Path, version: int, table_id: str = "ev-1") -> None:
    commit(table, version, None)
    (table / "_delta_log" / f"{version:020d}.crc").write_text(json.dumps({"metadata": {"id": table_id}}))


def refresh_commit(warehouse: Path, version: int, done: str, because: str, source_version: int, rows_in: int = -1) -> None:
    """A refresh of the view, which has brought it to a version of `ev`."""
    sources = {"spark_catalog.default.ev": SourceVersion("ev-1", source_version, f"file:{warehouse / 'ev'}")}
    report = RefreshReport(version, version + 1, done, because, sources, rows_in, 1, 2, 1.5)
    foreign_commit(warehouse / "totals", version, "Refresh", userMetadata=metadata_of("v1", report))


def foreign_commit(table: Path, version: int, operation: str, **info: str) -> None:
    at = int((NINE + timedelta(minutes=version)).timestamp() * 1000)
    said = json.dumps({"commitInfo": {"timestamp": at, "operation": operation, **info}}, separators=(",", ":"))
    write(table / "_delta_log", version, said, {"add": {"path": "x", "dataChange": True}})


def stored_view(warehouse: Path) -> ViewSpec:
    """A view with a refresh in full and an incremental one, whose process is gone; its source has got two versions since."""
    spec = view_spec(warehouse)
    home = warehouse / "_sqlext" / "views"
    events = [
        ViewEvent("v1", kind, "dead", spec.to_json(), at=NINE.isoformat())
        for kind in (ViewEventKind.RESERVED, ViewEventKind.CREATED)
    ]
    for number, event in enumerate(events, 1):
        write(home / "registry", number, vars(event))
    (home / "status").mkdir()
    failed = ViewStatus(error="x://ann:p4ss@h does not answer", next_try=NINE + timedelta(hours=1))
    (home / "status" / "v1.json").write_text(failed.to_json())
    for version in range(4):
        source_commit(warehouse / "ev", version)
    refresh_commit(warehouse, 0, "full", "first refresh", 0)
    refresh_commit(warehouse, 1, "merge groups", "by k", 1, rows_in=7)
    return spec


def seen(spec: ViewSpec, log: ViewLog | None = None) -> ViewDetail:
    """The page of a view."""
    row = ViewRow(ViewRecord(spec, "dead", NINE.isoformat()), "totals", "IDLE", ViewStatus(), None)
    return view_detail(row, log or view_log(spec), Redaction())


def view_log(spec: ViewSpec) -> ViewLog:
    return ViewLog(spec, lambda location: LocalFolder(location) if location.startswith("file:") else None)


def freshness(view: ViewSummary) -> tuple[int | None, datetime | None]:
    return view.behind, view.behind_since


def test_a_view_is_as_far_behind_as_its_sources_have_newer_versions(tmp_path: Path) -> None:
    spec = stored_view(tmp_path)
    log = view_log(spec)
    view = seen(spec, log)
    first, last = view.refreshes
    assert first == RefreshView(0, NINE, "full", "first refresh", None, 1, 2, 1.5)
    assert last == RefreshView(1, NINE + timedelta(minutes=1), "merge groups", "by k", 7, 1, 2, 1.5)
    assert view.summary.last == last
    assert [(each.version, each.newest) for each in view.summary.sources] == [(1, 3)]
    assert freshness(view.summary) == (2, NINE + timedelta(minutes=2)), "since version 2 of the source"
    refresh_commit(tmp_path, 2, "append", "", 3, rows_in=2)
    view = seen(spec, log)
    assert [each.done for each in view.refreshes] == ["full", "merge groups", "append"]
    assert freshness(view.summary) == (0, None)


def test_changes_of_a_view_by_others_are_told(tmp_path: Path) -> None:
    spec = stored_view(tmp_path)
    foreign_commit(tmp_path / "totals", 2, "DELETE")
    view = seen(spec)
    assert view.summary.note == "version 2 (DELETE) of the view's table is not a refresh: the next refresh is in full"
    assert [each.version for each in view.refreshes] == [0, 1]


def test_a_source_that_was_dropped_and_one_in_its_place_are_told(tmp_path: Path) -> None:
    spec = stored_view(tmp_path)
    log = view_log(spec)
    seen(spec, log)
    (tmp_path / "ev").rename(tmp_path / "moved")
    view = seen(spec, log).summary
    assert view.problems == (f"spark_catalog.default.ev: The table was dropped or moved: there is none in file:{tmp_path}/ev.",)
    assert freshness(view) == (None, None)
    for version in range(3):
        source_commit(tmp_path / "ev", version, "ev-2")
    view = seen(spec, log).summary
    assert view.problems == ("spark_catalog.default.ev: The table was dropped and created again.",)
    assert view.behind is None


def test_a_view_whose_table_was_dropped_says_so(tmp_path: Path) -> None:
    spec = stored_view(tmp_path)
    log = view_log(spec)
    seen(spec, log)
    (tmp_path / "totals").rename(tmp_path / "moved")
    view = seen(spec, log).summary
    assert view.error == f"The table was dropped or moved: there is none in file:{tmp_path}/totals."
    assert (view.last, view.sources, view.behind) == (None, (), None)
    source_commit(tmp_path / "totals", 0, "totals-2")
    assert seen(spec, log).summary.error == "The table was dropped and created again."


def test_what_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    spec = stored_view(tmp_path)
    elsewhere = replace(spec, location="s3://bucket/totals")
    assert (seen(elsewhere).refreshes, seen(elsewhere).summary.error) == ((), "")
    write(tmp_path / "ev" / "_delta_log", 2, '{"commitInfo":{"timest')
    assert freshness(seen(spec).summary) == (2, None)
    write(tmp_path / "totals" / "_delta_log", 1, '{"commitInfo":{"timest')
    view = seen(spec)
    assert view.refreshes == ()
    assert view.summary.error.startswith("The log of the view's table cannot be read: ")


# Jobs.


def part(vertex: int, number: int, epoch: int, began: float, ended: float) -> FinishedPart:
    event = ExecutionVertexFinished(vertex, number, epoch, ended - began, {"rows_written": 10, "bytes_written": 100})
    return FinishedPart(event, NINE + timedelta(seconds=ended))


def test_the_time_between_two_drivers_is_left_out() -> None:
    parts = [part(0, 0, 1, 0, 4), part(0, 1, 1, 1, 5), part(1, 0, 1, 5, 6), part(1, 1, 2, 3600, 3603)]
    ended = NINE + timedelta(seconds=3605)
    assert spans_of(parts, 2, {0: "Scan"}, ended, seconds=6.0) == (
        Span("0 Scan", 1, 0.0, 5.0, 2, True),
        Span("1", 1, 5.0, 6.0, 1, True),
        Span("1", 2, 7.0, 10.0, 1, False),  # the second driver took 6 s, from 3599 to 3605; the first had worked for 6
        Span("into the table", 2, 10.0, 12.0, 1, False),
    )


def stored_job(home: Path) -> None:
    spec = JobSpec(
        id="j00ff11",
        text="INSERT INTO t SELECT k, count(*) AS n FROM STREAM e GROUP BY k GLOBAL WINDOW END OF STREAM",
        head="",
        query="",
        target=("spark_catalog", "default", "t"),
        target_version=0,
        target_location="",
        is_sorted=True,
        buckets=2,
        pins=(),
        fingerprint="",
    )
    events = [
        RegisteredEvent(spec.id, JobEventKind.SUBMITTED, spec=spec.to_json(), at=NINE.isoformat()),
        RegisteredEvent(spec.id, JobEventKind.STARTED, 1, "dead"),
        RegisteredEvent(spec.id, JobEventKind.STARTED, 2, "dead too"),
    ]
    for number, event in enumerate(events, 1):
        write(home / "jobs" / "registry", number, vars(event))
    folder = home / "jobs" / spec.id
    write(folder / "events", 1, to_json(ExecutionJobVertexInitialized(0, 2, ((0,), (1,)), "vertex-0-1", 1, "Scan", ())))
    done = [part(0, 0, 1, 0, 4), part(0, 1, 2, 60, 62)]
    for number, each in enumerate(done, 1):
        info = {"commitInfo": {"timestamp": int(each.at.timestamp() * 1000), "userMetadata": to_json(each.event)}}
        write(folder / "vertex-0-1" / "_delta_log", number, info)
    write(folder / "vertex-0-1" / "_delta_log", 0, {"commitInfo": {"timestamp": 0}})


def test_events_that_come_later_are_read_and_torn_ones_left_out(tmp_path: Path) -> None:
    stored_job(tmp_path)
    folder = tmp_path / "jobs" / "j00ff11"
    log = JobLog(LocalFolder(str(folder)))
    log.read()
    assert sorted(log.parts) == [(0, 0), (0, 1)]
    write(folder / "vertex-0-1" / "_delta_log", 3, '{"commitInfo": {"timestamp": 5, "userMeta')
    write(folder / "events", 2, to_json(ExecutionJobVertexInitialized(1, 4, (), "vertex-1-2", 2)))
    log.read()
    assert sorted(log.parts) == [(0, 0), (0, 1)]
    assert sorted(log.vertices) == [0, 1]


# A warehouse at rest.


def stored_flow(home: Path, table: Path) -> None:
    statement = "CREATE STREAMING TABLE views AS SELECT k, count(*) AS n FROM STREAM e GROUP BY k"
    key = "execution.flush.max-interval"
    spec = FlowSpec(
        id="f1",
        name="views",
        target=("spark_catalog", "default", "views"),
        target_location=f"file:{table}",
        target_id="",
        text=statement,
        streams=(StreamSpec("", "SELECT 1", OutputMode.UPDATE),),
        given={"PROPERTY": {key: "2 s"}, "CONF": {key: "9 s"}},
    )
    write(home / "registry", 1, vars(FlowEvent("f1", EventKind.RESERVED, spec=spec.to_json(), host="dead")))
    write(home / "registry", 2, vars(FlowEvent("f1", EventKind.STARTED, 1, "dead", at=NINE.isoformat())))


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    folder = tmp_path / "a 100% warehouse"
    stored_flow(folder / "_sqlext", folder / "views")
    stored_job(folder / "_sqlext")
    stored_view(folder)
    commit(folder / "views", 0, None)
    commit(folder / "views", 1, flush(1))
    return folder


def test_a_warehouse_tells_its_flows_views_and_jobs_without_spark(warehouse: Path) -> None:
    home = StoredHome(warehouse)
    overview = home.overview()
    assert [(flow.name, flow.status) for flow in overview.flows] == [("views", "LOST")]
    assert [(view.name, view.status, view.behind) for view in overview.views] == [("totals", "LOST", 2)]
    assert [(job.id, job.status) for job in overview.jobs] == [("j00ff11", "LOST")]
    flow = home.detail("VIEWS")
    assert isinstance(flow, FlowDetail)
    assert [each.version for each in flow.flushes] == [1]
    assert flow.options == (("execution.flush.max-interval", "2 s", "table property"),)
    assert flow.buffering == "for at most 2 s"
    assert flow.trace.graph is not None
    assert [operator.attributes for operator in flow.trace.graph.operators] == [(), ("is_output_idempotent",)]
    view = home.detail("default.TOTALS")
    assert isinstance(view, ViewDetail)
    assert [each.version for each in view.refreshes] == [0, 1]
    assert view.summary.schedule == "TRIGGER ON UPDATE AT MOST EVERY 1 MINUTE"
    assert view.summary.next_try == NINE + timedelta(hours=1)
    assert "does not answer" in view.summary.error
    assert "p4ss" not in str(view)
    job = home.detail("j00")
    assert isinstance(job, JobDetail)
    (vertex,) = job.vertices
    assert (vertex.name, vertex.parts, vertex.done, vertex.skipped, vertex.rows) == ("Scan", 2, 2, 1, 20)
    assert (job.summary.parts, job.summary.skipped, job.drivers) == (2, 1, 2)
    assert [span.is_skipped for span in job.spans] == [True, False]


def test_report_writes_one_file_and_starts_no_java(warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("views", "totals", "j00ff"):
        result = CliRunner().invoke(cli, ["report", name, "-o", str(tmp_path / name), "--warehouse", str(warehouse)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).read_text().count("data:image/svg+xml;base64,") == 2


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_report_finds_a_home_elsewhere(warehouse: Path, tmp_path: Path, scheme: str) -> None:
    home = (warehouse / "_sqlext").rename(tmp_path / "the home")
    given = ["-o", str(tmp_path / "r"), "--warehouse", str(warehouse), "--conf", f"spark.sqlext.home={scheme}{home}"]
    result = CliRunner().invoke(cli, ["report", "views", *given])
    assert result.exit_code == 0, result.output
    assert "data:image/svg+xml;base64," in (tmp_path / "r").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["report", "views", "--conf", "spark.sqlext.home=s3a://lake/home"],
            "`spark.sqlext.home` is `s3a://lake/home`, which is no folder of this machine: `sqlext report` starts no Spark",
        ),
        (["report", "views", "--conf", "spark.sqlext.home=/nowhere"], "There is no home in /nowhere: no flow, view or job was"),
        (["report", "vews"], "There is no flow or view `vews`, and no single job whose id begins with it. Did you mean `views`?"),
        (["report", "zzz"], "There are `views`, `totals`, `j00ff11`."),
        (["report", "views", "--warehouse", "/nowhere"], "There is no warehouse in /nowhere"),
        (["report", "views", "-o", "/nowhere/r.html"], "cannot be written to /nowhere/r.html: No such file or directory."),
        (["run", "--page", "99999"], "expected [HOST:]PORT, such as 8080 or [::1]:8080, not '99999'"),
        (["run", "--page", "http://x:1"], "expected [HOST:]PORT"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(warehouse: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    defaults = {"--warehouse": str(warehouse)} | ({"-o": str(tmp_path / "r")} if arguments[0] == "report" else {})
    given = [*arguments, *(word for key, value in defaults.items() if key not in arguments for word in (key, value))]
    result = CliRunner().invoke(cli, given)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_port_that_is_taken_is_told_before_spark_starts(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli, ["run", "--page", str(port), "--warehouse", str(warehouse)])
    assert result.exit_code == 2
    assert result.output.strip().splitlines() == [
        f"The page's port {port} is taken on 127.0.0.1. Give another port with --page, or 0 for any free one."
    ]


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback", "url"),
    [
        ("8080", "127.0.0.1", 8080, True, "http://127.0.0.1:8080/"),
        ("localhost:0", "localhost", 0, True, "http://localhost:0/"),
        ("[::1]:80", "::1", 80, True, "http://[::1]:80/"),
        ("0.0.0.0:8080", "0.0.0.0", 8080, False, "http://0.0.0.0:8080/"),
        ("a-host.example:1", "a-host.example", 1, False, "http://a-host.example:1/"),
    ],
)
def test_an_address(text: str, host: str, port: int, is_loopback: bool, url: str) -> None:
    found = address.parse(text)
    assert (found.host, found.port, found.is_loopback, found.url) == (host, port, is_loopback, url)


def test_a_host_that_is_not_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match=r"^The page cannot be served at 192\.0\.2\.1:8080: "):
        address.Address("192.0.2.1", 8080).listen()


# Traces, and charts.


def test_a_trace_looks_at_no_table_and_always_ends() -> None:
    def doubled(times: int) -> str:
        twice = [f"c{i + 1} AS (SELECT a.k FROM c{i} a JOIN c{i} b ON a.k = b.k)" for i in range(times)]
        first = "c0 AS (SELECT k, count(*) FROM STREAM e GROUP BY k)"
        return f"CREATE STREAMING TABLE t AS WITH {', '.join([first, *twice])} SELECT * FROM c{times}"

    assert trace(doubled(3)).error == ""
    assert "reads more than 1,000 relations" in trace(doubled(30)).error
    assert "nested too deeply" in trace(f"CREATE STREAMING TABLE t AS SELECT {'(' * 9000}1{')' * 9000} FROM STREAM e").error
    assert "at most 20,000" in trace("SELECT 1 -- " + "x" * 20_000).error


def test_charts_are_drawn_by_a_process_that_is_started_again_when_it_has_ended() -> None:
    with Painter() as painter:
        drawn = painter.svg(flushes_chart(HOSTILE, FLUSHES), 330)
        assert "<script" not in drawn
        assert 'role="img"><title>Rows, seconds and micro-batches of the last flushes of "&gt;&lt;script' in drawn
        assert "Violations of constraints" in drawn
        assert "prefers-color-scheme" in drawn
        assert " style=" not in drawn
        process = painter._helper._process
        assert process is not None
        assert painter.svg(flushes_chart(HOSTILE, FLUSHES), 330) == drawn
        process.kill()
        process.wait()
        points = painter.svg(refreshes_chart(HOSTILE, REFRESHES), 330)
        assert points.count('aria-roledescription="point"') == len(REFRESHES)
        assert "in full" in points
        assert 'aria-roledescription="point"' in painter.svg(refreshes_chart("v", REFRESHES[:1]), 720)
        timeline = painter.svg(timeline_chart(hostile_job()), 720)
        assert "parts: 1 skipped" in timeline
        assert "parts: 2 run" in timeline
        with pytest.raises(SetupError, match="The chart cannot be drawn: KeyError: 'pie'"):
            painter.svg({"kind": "pie", "title": "", "rows": []}, 330)
        started = painter._helper._process
        assert started is not None
    assert started.poll() is not None
    with pytest.raises(SetupError, match="closing"):
        painter.svg({"kind": "pie", "title": "", "rows": []}, 330)


def test_the_documentation_tells_how_to_use_it() -> None:
    """Its commands are commands, its options options, its number of flushes the one that is shown."""
    text = docs.page("page").text
    commands = re.findall(r"^sqlext (\w+) (.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert [name for name, _ in commands] == ["run", "report"]
    for name, arguments in commands:
        known = {option for parameter in cli.commands[name].params for option in parameter.opts}
        assert {word for word in arguments.split() if word.startswith("-")} <= known
    assert f"the last {commits.SHOWN} flushes" in text
    (key,) = re.findall(r"`(execution\.[\w.-]+)`", text)
    assert is_option_key(key)
    assert key in OPTIONS
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for module, name in re.findall(r"^from (sqlext\S+) import (\w+)$", code, re.MULTILINE):
            assert callable(getattr(importlib.import_module(module), name))
